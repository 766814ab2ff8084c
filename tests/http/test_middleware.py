"""What surrounds every request, with an application of nothing else but the key ring."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base import errors
from agentsvc.base.values import Secret
from agentsvc.config.schema import Config, ServerConfig
from agentsvc.http import wire
from agentsvc.http.keys import KEYRING, PRINCIPAL
from agentsvc.http.middleware.pipeline import install
from agentsvc.http.routes import Route, Scope, mount
from agentsvc.storage.database import Database

type Client = TestClient[web.Request, web.Application]
type MakeClient = Callable[[web.Application], Awaitable[Client]]

MEMBER_KEY = "m" * 40
ADMIN_KEY = "a" * 40
ORIGIN = "https://app.example"


_DELIBERATE = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.AgentsvcError)
}
_OWN_TEXTS = {"internal", "invalid_request", "method_not_allowed"}
_SERVICE_LIMIT = "concurrency_limit_reached"


async def _raise(request: web.Request) -> web.Response:
    code = request.match_info["code"]
    if code == _SERVICE_LIMIT:
        raise errors.ServiceLimitReached("what went wrong")
    raise _DELIBERATE[code]("what went wrong", detail="for the log only")


async def _fail(_request: web.Request) -> web.Response:
    raise KeyError("a bug")


async def _fail_late(request: web.Request) -> web.StreamResponse:
    async def items() -> AsyncGenerator[int]:
        yield 1
        raise KeyError("a late bug")

    return await wire.stream_array(request, items())


async def _stream(request: web.Request) -> web.StreamResponse:
    async def items() -> AsyncGenerator[int]:
        for number in range(3):
            await asyncio.sleep(0.05)
            yield number

    return await wire.stream_array(request, items())


async def _hang(_request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError


async def _wait_in_vain(_request: web.Request) -> web.Response:
    raise TimeoutError("not the one of the request")


async def _leave(request: web.Request) -> web.Response:
    raise {
        "found": web.HTTPFound("/stream"),
        "large": web.HTTPRequestEntityTooLarge(max_size=1, actual_size=2),
        "teapot": web.HTTPBadRequest(reason="I am a teapot"),
    }[request.match_info["how"]]


async def _who(request: web.Request) -> web.Response:
    return wire.json_response(request[PRINCIPAL].user_name)


def _route(path: str, handler: Any, scope: Scope = Scope.OPEN, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, scope=scope, summary="", **more)


@pytest.fixture
async def client(aiohttp_client: MakeClient, db: Database) -> Client:
    app = web.Application()
    server = ServerConfig(cors_origins=(ORIGIN,), request_seconds=0.1)
    install(app, Config(server=server))
    mount(
        app,
        [
            _route("/errors/{code}", _raise),
            _route("/bug", _fail),
            _route("/late", _fail_late),
            _route("/stream", _stream, is_stream=True),
            _route("/slow", _hang),
            _route("/vain", _wait_in_vain),
            _route("/leave/{how}", _leave),
            _route("/alive", _stream, is_stream=True),
            _route("/member", _who, Scope.READ),
            _route("/admin", _who, Scope.ADMIN),
        ],
    )
    app[KEYRING] = ring = KeyRing(db)
    for name, role, key in (("meg", Role.MEMBER, MEMBER_KEY), ("ada", Role.ADMIN, ADMIN_KEY)):
        user_id = await ring.create_user(name, role)
        await ring.create_key(user_id, "a key", key=Secret(key))
    return await aiohttp_client(app)


@pytest.mark.parametrize("code", sorted(set(_DELIBERATE) - _OWN_TEXTS))
async def test_every_deliberate_error_has_its_status_and_the_one_body(
    client: Client, code: str
) -> None:
    response = await client.get(f"/errors/{code}")
    kind = _DELIBERATE[code]
    assert response.status == kind.status
    told: object = "what went wrong"
    if code == _SERVICE_LIMIT:
        told = {"error": "CONCURRENCY_LIMIT_REACHED", "message": told}
    assert await response.json() == {
        "detail": told,
        "code": code,
        "request_id": response.headers["X-Request-Id"],
    }
    assert ("Retry-After" in response.headers) is kind.retryable


async def test_an_invalid_request_is_answered_with_a_list_of_one_problem(client: Client) -> None:
    response = await client.get("/errors/invalid_request")
    assert response.status == 422
    assert (await response.json())["detail"] == [
        {"type": "value_error", "loc": ["body"], "msg": "what went wrong"}
    ]


async def test_a_bug_is_answered_without_a_word_about_it_and_logged_with_its_request(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    response = await client.get("/bug")
    assert response.status == 500
    body = await response.json()
    assert (body["detail"], body["code"]) == ("Internal Server Error", "internal")
    [record] = [record for record in caplog.records if record.exc_info]
    assert "a bug" in str(record.exc_info)


async def test_an_unknown_path_is_not_found(client: Client) -> None:
    response = await client.get("/nowhere")
    assert response.status == 404
    body = await response.json()
    assert (body["detail"], body["code"]) == ("Not Found", "not_found")


async def test_another_method_is_answered_with_those_that_are_allowed(client: Client) -> None:
    response = await client.post("/member")
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert (await response.json())["detail"] == "Method Not Allowed"


async def test_what_fails_after_the_answer_began_breaks_the_connection(client: Client) -> None:
    response = await client.get("/late")
    assert response.status == 200
    with pytest.raises(Exception, match=r"payload|closed|reset"):
        await response.read()


async def test_a_request_that_takes_too_long_is_ended(client: Client) -> None:
    response = await client.get("/slow")
    assert response.status == 504
    assert (await response.json())["code"] == "timed_out"


async def test_another_deadline_that_passes_is_a_bug(client: Client) -> None:
    assert (await client.get("/vain")).status == 500


@pytest.mark.parametrize(
    ("how", "status", "code"), [("large", 413, "body_too_large"), ("teapot", 400, "bad_request")]
)
async def test_what_aiohttp_refuses_has_the_one_body_too(
    client: Client, how: str, status: int, code: str
) -> None:
    response = await client.get(f"/leave/{how}")
    assert (response.status, (await response.json())["code"]) == (status, code)


async def test_a_redirect_is_no_error(client: Client) -> None:
    response = await client.get("/leave/found", allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (302, "/stream")


async def test_a_stream_may_take_longer_than_a_request(client: Client) -> None:
    response = await client.get("/stream")
    text = await response.text()
    assert text == "[\n0,\n1,\n2]"
    assert json.loads(text) == [0, 1, 2]
    assert response.headers["Content-Type"] == "application/json"
    assert "no-store" in response.headers["Cache-Control"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Session-API-Key": MEMBER_KEY},
        {"Authorization": f"Bearer {MEMBER_KEY}"},
        {"Authorization": f"bearer  {MEMBER_KEY} "},
        {"X-Access-Token": MEMBER_KEY},
        {"X-Session-API-Key": "of a sandbox", "Authorization": f"Bearer {MEMBER_KEY}"},
    ],
)
async def test_a_key_means_the_same_in_every_header(
    client: Client, headers: dict[str, str]
) -> None:
    response = await client.get("/member", headers=headers)
    assert await response.json() == "meg"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Session-API-Key": ""},
        {"X-Session-API-Key": "x" * 40},
        {"X-Session-API-Key": "é" * 20},
        {"Authorization": f"Basic {MEMBER_KEY}"},
        {"Authorization": MEMBER_KEY},
    ],
)
async def test_no_key_and_a_wrong_key_look_the_same(
    client: Client, headers: dict[str, str]
) -> None:
    response = await client.get("/member", headers=headers)
    assert response.status == 401
    assert (await response.json())["detail"] == "Unauthorized"


async def test_what_is_for_administrators_is_refused_to_others(client: Client) -> None:
    response = await client.get("/admin", headers={"X-Session-API-Key": MEMBER_KEY})
    assert response.status == 403
    response = await client.get("/admin", headers={"X-Session-API-Key": ADMIN_KEY})
    assert await response.json() == "ada"


async def test_nothing_is_cached(client: Client) -> None:
    response = await client.get("/nowhere")
    assert response.headers["Cache-Control"] == ("no-cache, no-store, must-revalidate, max-age=0")
    assert response.headers["Pragma"] == "no-cache"
    assert response.headers["Expires"] == "0"


async def test_a_configured_origin_may_read_answers_and_errors(client: Client) -> None:
    for path in ("/stream", "/nowhere"):
        response = await client.get(path, headers={"Origin": ORIGIN})
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert response.headers["Access-Control-Allow-Credentials"] == "true"


async def test_a_preflight_is_answered_before_any_key_is_asked_for(client: Client) -> None:
    headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "x-session-api-key",
    }
    response = await client.options("/member", headers=headers)
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "GET" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == "x-session-api-key"


async def test_another_origin_is_told_nothing(client: Client) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    response = await client.options("/member", headers=headers)
    assert (response.status, response.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")
    assert "Access-Control-Allow-Origin" not in response.headers


async def test_each_request_writes_one_line_and_health_checks_are_quiet(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="agentsvc")
    await (await client.get("/stream?session_api_key=hidden")).read()
    await (await client.get("/alive")).read()
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    assert [line.levelname for line in lines] == ["INFO", "DEBUG"]
    assert vars(lines[0])["path"] == "/stream"
    assert vars(lines[0])["status"] == 200
    assert "hidden" not in caplog.text


async def test_a_path_of_control_characters_stays_one_line(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agentsvc")
    await client.get("/no%0Awhere%00")
    [line] = [record for record in caplog.records if record.getMessage() == "request"]
    assert vars(line)["path"] == "/no%0Awhere%00"
