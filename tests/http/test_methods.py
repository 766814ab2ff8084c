"""Which methods paths take, how that is told, and what is told to who shows no key.

The paths come from the tables of routes, so that a new one is covered at once.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest

from agentsvc.app import published_routes
from agentsvc.http.routes import Route, Scope
from agentsvc.http.web import read_console
from tests.conftest import FAST
from tests.service import Answer, Client, Service

ROUTES = published_routes(FAST)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
UNKNOWN = "7c9e6679742540de944be07fc1f90ae7"
CONSOLE = ["/", "/login"]
SOCKET = ["/socket.io/", "/socket.io"]


def _path_of(path: str, ids: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::[^{}]+)?\}", lambda one: ids.get(one[1], UNKNOWN), path)


def _by_path(ids: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the methods of each path that can be asked for."""
    found: defaultdict[str, set[str]] = defaultdict(lambda: {"OPTIONS"})
    for route in ROUTES:
        names = {"HEAD"} if route.method == "GET" else set[str]()
        found[_path_of(route.path, ids)] |= {route.method, *names}
    # A path may be that of two routes, one of which has a variable in a place of it.
    for path, methods in found.items():
        for route in ROUTES:
            shape = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route.path))
            if re.fullmatch(shape, path):
                methods |= {route.method, *({"HEAD"} if route.method == "GET" else ())}
    return dict(found)


def _allowed(answer: Answer) -> set[str]:
    return {one.strip() for one in answer.headers["Allow"].split(",")}


@pytest.fixture
async def ids(client: Client) -> dict[str, str]:
    conversation_id = await client.start_conversation(None)
    found = await client.conversation(conversation_id)
    return {
        "conversation_id": conversation_id,
        "sandbox_id": found["sandbox_id"],
        "repository_name": "a/b",
        "key_id": "99",
    }


async def test_every_path_says_which_methods_it_takes_to_whoever_asks(
    service: Service, ids: dict[str, str]
) -> None:
    nobody = await service.make_client(None)
    for path, methods in {
        **_by_path(ids),
        **{path: {"GET", "HEAD", "OPTIONS"} for path in CONSOLE},
    }.items():
        options = await nobody.request("OPTIONS", path)
        assert (options.status, options.body, _allowed(options)) == (204, b"", methods), path
        for method in sorted((METHODS | {"PROPFIND"}) - methods):
            refused = await nobody.request(method, path)
            assert (refused.status, _allowed(refused)) == (405, methods), (method, path)
            assert method == "HEAD" or refused.json()["code"] == "method_not_allowed"


async def test_the_socket_says_which_methods_it_takes(client: Client) -> None:
    for path in SOCKET:
        answer = await client.request("PUT", path)
        assert (answer.status, _allowed(answer)) == (405, {"GET", "POST", "OPTIONS"}), path


async def test_a_sandbox_path_says_which_methods_are_passed_on(
    client: Client, ids: dict[str, str]
) -> None:
    answer = await client.request("TRACE", f"/sandboxes/{ids['sandbox_id']}/agent/server_info")
    assert answer.status == 405
    assert _allowed(answer) == METHODS


async def test_a_head_is_answered_as_a_get_is_without_its_body(
    client: Client, service: Service, ids: dict[str, str]
) -> None:
    sandbox = service.client_with(
        (await client.conversation(ids["conversation_id"]))["session_api_key"]
    )
    for route in ROUTES:
        if route.method != "GET" or route.scope is Scope.MODEL or route.is_stream:
            continue
        caller = sandbox if route.scope is Scope.SANDBOX else client
        path = _path_of(route.path, ids)
        whole, head = await caller.get(path), await caller.request("HEAD", path)
        assert (head.status, head.body) == (whole.status, b""), path
        assert head.headers["Content-Type"] == whole.headers["Content-Type"], path


async def test_the_head_of_a_stream_is_what_a_get_begins_with(
    client: Client, ids: dict[str, str]
) -> None:
    known = [
        f"/api/v1/conversation/{ids['conversation_id']}/events/stream",
        "/api/v1/events/stream",
    ]
    for path in known:
        head = await client.request("HEAD", path)
        assert (head.status, head.body) == (200, b""), path
        assert head.headers["Content-Type"].startswith("text/event-stream")
    for path in (
        f"/api/v1/conversation/{UNKNOWN}/events/stream",
        f"/api/v1/app-conversations/{UNKNOWN}/download",
        f"/api/conversations/{UNKNOWN}/zip-directory",
    ):
        whole, head = await client.get(path), await client.request("HEAD", path)
        assert (head.status, head.body) == (whole.status, b""), path
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    socket = await client.request("HEAD", known[0], headers=upgrade)
    assert (socket.status, socket.body) == (400, b"")


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


async def test_each_401_says_how_to_show_a_key_in_the_one_shape(
    service: Service, ids: dict[str, str]
) -> None:
    nobody, wrong = await service.make_client(None), service.client_with("sk-of-nobody")
    refused = 0
    for route in ROUTES:
        if route.scope is Scope.OPEN:
            continue
        path = _path_of(route.path, ids)
        methods = (route.method, "HEAD") if route.method == "GET" else (route.method,)
        for caller in (nobody, wrong):
            for method in methods:
                answer = await caller.request(method, path)
                assert answer.status == 401, _name(route)
                scheme = "Basic" if route.is_page else "Bearer"
                assert answer.headers["WWW-Authenticate"].startswith(f'{scheme} realm="'), path
                refused += 1
                if method != "HEAD":
                    body = answer.json()
                    assert set(body) == {"detail", "code", "request_id"}, path
                    assert (type(body["detail"]), body["code"]) == (str, "not_authenticated")
    assert refused > 300


async def test_each_401_beside_the_table_says_how_to_show_a_key(
    service: Service, ids: dict[str, str]
) -> None:
    nobody = await service.make_client(None)
    form = {"user_code": "AAAA-AAAA", "api_key": "sk-of-nobody", "approve": "true"}
    answers = [
        await nobody.get(f"/sandboxes/{ids['sandbox_id']}/agent/api/conversations"),
        await nobody.get(f"/sandboxes/{ids['sandbox_id']}/8011/"),
        await nobody.get("/socket.io/?EIO=4&transport=polling"),
        await nobody.post("/oauth/device/verify", data=form),
        await nobody.post("/api/v1/logins", json={"api_key": "sk-of-nobody"}),
    ]
    for answer in answers:
        assert answer.status == 401, answer.text
        assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="')


async def test_the_parts_of_the_console_have_a_head_too(service: Service) -> None:
    nobody = await service.make_client(None)
    console = read_console()
    for path in (*CONSOLE, *(f"/console/{console.tag}/{part}" for part in console.parts)):
        whole, head = await nobody.get(path), await nobody.request("HEAD", path)
        assert (whole.status, head.status, head.body) == (200, 200, b""), path
        assert head.headers["Content-Length"] == whole.headers["Content-Length"]
