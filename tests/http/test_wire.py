"""JSON in and out, over a socket, with an application of nothing but the wire."""

import io
import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from agentsvc.base.errors import BodyTooLarge
from agentsvc.config.schema import Config
from agentsvc.http import wire
from agentsvc.http.middleware import pipeline as middleware
from agentsvc.http.routes import Route, Routes, Scope, effect_of, mount

type Client = TestClient[web.Request, web.Application]
type MakeClient = Callable[[web.Application], Awaitable[Client]]


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=5)]
    number: wire.Int64 = 0
    inner: list["Thing"] = []
    anything: Any = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[str] = []
    limit: wire.Limit = 100
    contains: str | None = msgspec.field(name="name__contains", default=None)


_THING = msgspec.json.Decoder(Thing)
_MAYBE = msgspec.json.Decoder(Thing | None)


async def _post(request: web.Request) -> web.Response:
    return wire.json_response(await wire.read_json(request, _THING))


async def _post_maybe(request: web.Request) -> web.Response:
    return wire.json_response(await wire.read_json(request, _MAYBE, default=None))


async def _get(request: web.Request) -> web.Response:
    return wire.json_response(wire.read_query(request, Filter))


async def _get_one(request: web.Request) -> web.Response:
    return wire.json_response(wire.path_id(request, "thing_id"))


async def _get_name(request: web.Request) -> web.Response:
    return wire.json_response(wire.path_text(request, "name"))


def _route(method: str, path: str, handler: Any) -> Route:
    return Route(method=method, path=path, handler=handler, scope=Scope.OPEN, summary="")


@pytest.fixture
async def client(aiohttp_client: MakeClient) -> Client:
    app = web.Application(client_max_size=100_000)
    middleware.install(app, Config())
    mount(
        app,
        [
            _route("POST", "/things", _post),
            _route("POST", "/maybe", _post_maybe),
            _route("GET", "/things", _get),
            _route("GET", "/things/{thing_id}", _get_one),
            _route("GET", "/names/{name}", _get_name),
        ],
    )
    return await aiohttp_client(app)


async def _refusal(client: Client, body: bytes, **headers: str) -> tuple[int, Any]:
    sent = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    response = await client.post("/things", data=body, headers=sent)
    answer = await response.json()
    assert set(answer) == {"detail", "code", "request_id"}
    assert answer["request_id"] == response.headers["X-Request-Id"]
    return response.status, answer["detail"]


@pytest.mark.parametrize(
    ("body", "kind", "loc"),
    [
        (b"", "missing", ["body"]),
        (b"{}", "missing", ["body", "name"]),
        (b'{"name":1}', "string_type", ["body", "name"]),
        (b'{"name":"a","number":"1"}', "int_type", ["body", "number"]),
        (b'{"name":"a","number":1.5}', "int_type", ["body", "number"]),
        (b'{"name":"abcdef"}', "string_too_long", ["body", "name"]),
        (b'{"name":"a","inner":[{"name":"b"},{}]}', "missing", ["body", "inner", 1, "name"]),
        (b"[]", "dict_type", ["body"]),
        (b'{"name":', "json_invalid", ["body", 8]),
        (b'{"name":"a"} x', "json_invalid", ["body", 14]),
        (b'{"name":"\\ud800abcdefgh"}', "json_invalid", ["body", 15]),
        (b"\xef\xbb\xbf{}", "json_invalid", ["body", 0]),
        (b'{"name":"a","number":NaN}', "json_invalid", ["body", 21]),
    ],
)
async def test_a_body_that_does_not_fit_is_answered_with_where(
    client: Client, body: bytes, kind: str, loc: list[str | int]
) -> None:
    status, detail = await _refusal(client, body)
    assert status == 422
    assert [(item["type"], item["loc"]) for item in detail] == [(kind, loc)]
    assert isinstance(detail[0]["msg"], str)


@pytest.mark.parametrize("field", ["number", "anything", "unknown"])
@pytest.mark.parametrize("digits", [str(2**63), str(-(2**63) - 1), "9" * 60, "9" * 5000])
async def test_an_integer_beyond_64_bits_is_refused_in_any_field(
    client: Client, field: str, digits: str
) -> None:
    status, _ = await _refusal(client, f'{{"name":"a","{field}":{digits}}}'.encode())
    assert status == 422


async def test_the_last_integers_of_64_bits_pass(client: Client) -> None:
    body = {"name": "a", "number": 2**63 - 1, "anything": [-(2**63)]}
    answer = await (await client.post("/things", json=body)).json()
    assert (answer["number"], answer["anything"]) == (2**63 - 1, [-(2**63)])


async def test_long_digits_that_are_no_integer_pass(client: Client) -> None:
    body = b'{"name":"a","anything":["\\\\\\"99999999999999999999",0.12345678901234567890123]}'
    response = await client.post("/things", data=body, headers={"Content-Type": "text/json+x"})
    assert response.status == 415
    response = await client.post("/things", json=json.loads(body))
    assert response.status == 200


@pytest.mark.parametrize("field", ["number", "anything", "unknown", "inner"])
async def test_nesting_of_a_thousand_levels_is_refused(client: Client, field: str) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    status, _ = await _refusal(client, b'{"name":"a","' + field.encode() + b'":' + deep + b"}")
    assert status == 422


async def test_nesting_that_exhausts_the_stack_is_refused(client: Client) -> None:
    status, _ = await _refusal(client, b'{"name":"a","anything":' + b"[" * 90_000)
    assert status == 422


async def test_many_brackets_that_are_not_deep_pass(client: Client) -> None:
    body = {"name": "a", "anything": [{"[": ["{", []]}] * 300}
    assert (await client.post("/things", json=body)).status == 200


async def test_a_body_that_is_not_utf_8_is_malformed_even_in_an_unknown_field(
    client: Client,
) -> None:
    assert (await _refusal(client, b'{"name":"a\xff"}'))[0] == 400
    assert (await _refusal(client, b'{"name":"a","unknown":"\xed\xa0\x80"}'))[0] == 400


async def test_a_body_over_the_limit_is_refused_whether_announced_or_not(client: Client) -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 10_000

    body = b'{"name":"' + b"a" * 100_000 + b'"}'
    assert (await _refusal(client, body))[0] == 413
    response = await client.post(
        "/things", data=chunks(), headers={"Content-Type": "application/json"}
    )
    assert response.status == 413


@pytest.mark.parametrize("limit", [100_000, wire.CALLBACK_BODY_BYTES])
async def test_a_request_may_have_a_limit_of_its_own(
    aiohttp_client: MakeClient, limit: int
) -> None:
    async def post(request: web.Request) -> web.Response:
        if limit != request.client_max_size:
            request[wire.BODY_LIMIT] = limit
        return wire.text_response(str(len(await wire.read_body(request))))

    @web.middleware
    async def refuse(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except BodyTooLarge as exc:
            return web.Response(status=exc.status, text=exc.message)
        return response

    app = web.Application(client_max_size=100_000, middlewares=[refuse])
    mount(app, [_route("POST", "/things", post)])
    client = await aiohttp_client(app)
    for size in (limit, limit + 1):
        body = io.BytesIO(b" " * size)
        headers = {"Content-Type": "application/json"}
        response = await client.post("/things", data=body, headers=headers)
        if size == limit:
            assert (response.status, await response.text()) == (200, str(size))
        else:
            assert (response.status, f" {limit} " in await response.text()) == (413, True)


async def test_a_small_body_that_inflates_over_the_limit_is_refused(client: Client) -> None:
    bomb = zlib.compress(b'{"name":"' + b"a" * 5_000_000 + b'"}')
    assert (await _refusal(client, bomb, Content_Encoding="deflate"))[0] == 413


async def test_a_wrong_content_encoding_is_malformed(client: Client) -> None:
    assert (await _refusal(client, b'{"name":"a"}', Content_Encoding="gzip"))[0] == 400
    assert (await _refusal(client, b'{"name":"a"}', Content_Encoding="rot13"))[0] == 400


async def test_a_compressed_body_is_read(client: Client) -> None:
    body = zlib.compress(b'{"name":"a"}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    response = await client.post("/things", data=body, headers=headers)
    assert (await response.json())["name"] == "a"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "a/b/c"])
async def test_a_body_of_another_media_type_is_refused(client: Client, kind: str) -> None:
    assert (await _refusal(client, b'{"name":"a"}', Content_Type=kind))[0] == 415


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/merge+json"])
async def test_every_json_media_type_is_read(client: Client, kind: str) -> None:
    headers = {"Content-Type": kind}
    response = await client.post("/things", data=b'{"name":"a"}', headers=headers)
    assert response.status == 200


async def test_an_operation_may_do_without_a_body(client: Client) -> None:
    assert await (await client.post("/maybe")).json() is None
    assert (await client.post("/maybe", json={"name": 1})).status == 422


async def test_a_query_takes_every_value_of_a_list_and_the_last_of_others(client: Client) -> None:
    response = await client.get("/things?ids=a&ids=b&limit=1&limit=2&name__contains=c&other=d")
    assert await response.json() == {"ids": ["a", "b"], "limit": 2, "name__contains": "c"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("limit=", "limit"),
        ("name__contains=%00", "name__contains"),
        ("ids=a&ids=%00", "ids"),
    ],
)
async def test_a_query_that_does_not_fit_is_answered_with_where(
    client: Client, query: str, name: str
) -> None:
    response = await client.get(f"/things?{query}")
    assert response.status == 422
    assert (await response.json())["detail"][0]["loc"] == ["query", name]


async def test_an_id_of_the_path_may_be_dashed(client: Client) -> None:
    plain = "0123456789abcdef0123456789abcdef"
    response = await client.get("/things/01234567-89ab-cdef-0123-456789abcdef")
    assert await response.json() == plain
    assert await (await client.get(f"/things/{plain.upper()}")).json() == plain


@pytest.mark.parametrize("path", ["/things/zzz", "/things/%00", "/names/a%00b", "/things/%ff"])
async def test_a_path_that_does_not_fit_is_answered_with_where(client: Client, path: str) -> None:
    response = await client.get(path)
    assert response.status == 422
    assert (await response.json())["detail"][0]["loc"][0] == "path"


def test_a_page_of_stored_bytes_is_joined_not_decoded() -> None:
    assert wire.raw_page([b'{"a": 1}', b"2"], "x") == b'{"items":[{"a": 1},2],"next_page_id":"x"}'
    assert wire.raw_page([], None) == b'{"items":[],"next_page_id":null}'
    assert wire.raw_array([b"1", None]) == b"[1,null]"


def test_a_handler_puts_itself_into_a_table_with_the_first_line_of_its_docstring() -> None:
    routes = Routes()

    @routes.add("POST", "/newer", scope=Scope.OPEN, summary="Do it anew", answer=int)
    @routes.add("GET", "/it", scope=Scope.READ)
    async def get_it(_request: web.Request) -> web.Response:
        """Get it.

        As it is.
        """
        return web.Response()

    assert [(one.method, one.path, one.scope, one.summary) for one in routes] == [
        ("GET", "/it", Scope.READ, "Get it"),
        ("POST", "/newer", Scope.OPEN, "Do it anew"),
    ]
    assert all(one.handler is get_it for one in routes)
    assert routes[1].answer is int


def test_what_an_effect_shows_may_say_its_type_as_a_text() -> None:
    def show(number: int) -> "Thing":
        return Thing(name="a", number=number)

    routes = Routes("/things")

    @routes.add("POST", "", effect=effect_of(int, show))
    async def make(_request: web.Request) -> int:
        """Make one."""
        return 1

    assert routes[0].answer is Thing


def test_changes_have_the_names_on_the_wire_of_what_they_change() -> None:
    class Shown(msgspec.Struct, frozen=True, kw_only=True, rename={"is_shared": "public"}):
        is_shared: bool
        size: int = msgspec.field(name="size__gte", default=1)

    changes = wire.changes_of(Shown, "ShownUpdate", "What to change.")
    made = wire.decode(b'{"public": true}', changes)
    assert msgspec.structs.asdict(made) == {"is_shared": True, "size": msgspec.UNSET}
    assert changes.__struct_encode_fields__ == ("public", "size__gte")


async def test_a_handler_returns_what_is_answered(aiohttp_client: MakeClient) -> None:
    routes = Routes("/things", scope=Scope.OPEN)

    @routes.add("GET", "/told", list[Any])
    @routes.add("GET", "")
    async def get_it(_request: web.Request) -> list[int]:
        """Get it."""
        return [1, 2]

    assert [one.answer for one in routes] == [list[int], list[Any]]
    app = web.Application()
    mount(app, routes)
    client = await aiohttp_client(app)
    for path in ("/things", "/things/told"):
        response = await client.get(path)
        assert (response.status, await response.json()) == (200, [1, 2])
        assert response.content_type == "application/json"


async def test_what_a_handler_takes_is_read_before_it_is_called(aiohttp_client: MakeClient) -> None:
    routes = Routes("/things", scope=Scope.OPEN)

    @routes.add("POST", "/{id}", str, example={"name": "a"})
    async def post_it(request: web.Request, query: wire.PageQuery, body: Thing) -> web.Response:
        """Post it."""
        return wire.text_response(f"{request.match_info['id']} {query.limit} {body.name}")

    [route] = routes
    assert (route.path, route.query, route.body) == ("/things/{id}", wire.PageQuery, Thing)
    assert (route.scope, route.example.body) == (Scope.OPEN, {"name": "a"})
    app = web.Application()
    mount(app, routes)
    client = await aiohttp_client(app)
    response = await client.post("/things/7", params={"limit": "3"}, json={"name": "b"})
    assert (response.status, await response.text()) == (200, "7 3 b")
