"""Whatever a client sends to any operation, the answer is no 500, and what is wrong is a 4xx.

The operations and their types come from the table of routes, so that a new one is covered at once.
"""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, get_args, get_origin

import aiohttp
import msgspec
import pytest
from yarl import URL

from agentsvc.app import published_routes
from agentsvc.http import health as ops
from agentsvc.http import v0, v1
from agentsvc.http.routes import Route, Scope
from tests.conftest import FAST
from tests.service import Answer, Client, Service

HOOKS = [
    route
    for route in published_routes(FAST)
    if route.path.startswith(
        ("/api/v1/webhook-subscriptions", "/api/v1/sign-in", "/api/automation/v1")
    )
]
ROUTES = [*ops.ROUTES, *v0.ROUTES, *v1.ROUTES, *v1.LOGIN_ROUTES, *HOOKS]
PAGES = {"/oauth/device/verify"}
"""Pages for people, which say what is wrong in HTML."""
WITH_BODY = [
    route
    for route in ROUTES
    if route.body is not None and "application/json" in route.reads and route.path not in PAGES
]
ONE_OF_EACH_BODY = list({repr(route.body): route for route in reversed(WITH_BODY)}.values())
WITH_QUERY = [route for route in ROUTES if route.query is not None]
WITH_PATH = [route for route in ROUTES if "{" in route.path]

NOBODY_IS_NULL = {
    f"{method} /api/conversations/{{conversation_id}}" for method in ("GET", "DELETE")
}
"""Operations that answer null or false where nothing has the name."""

NEVER_UNKNOWN = {
    "POST /api/conversations/{conversation_id}/stop",
    "POST /api/v1/settings/profiles/{name}",
    "DELETE /api/v1/settings/profiles/{name}",
}
"""Operations that make what has the name, or find it done already where nothing has it."""

JSON = {"Content-Type": "application/json"}
LIMIT = 10 * 1024 * 1024
NOT_TOLD = "The value does not match its type in the API description"
"""What is said where the reason was not found, which would be a bug."""
OF_PYTHON = re.compile(
    r"\b(str|int|float|bool|dict|list|tuple|None|NoneType|regex|struct|msgspec)\b|\\A|\^\["
)
DEEP = b"[" * 1000 + b"]" * 1000

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    -(2**63) - 1,
    10**40,
    "",
    "no such value",
    "\0",
    "a\nb",
    "x" * 300_000,
    [],
    [None],
    ["\0"],
    [[[]]],
    {},
    {"": None},
    {"a": {"b": 1}},
]
PATH_VALUES = [
    "zzz",
    "%00",
    "%0a",
    "%ff",
    "%ed%a0%80",
    "..%2f..%2fetc%2fpasswd",
    "%7B%7D",
    "'%20OR%201=1--",
    "9" * 300,
    "a" * 3000,
]
QUERY_VALUES = [
    "",
    "zzz",
    "%00",
    "%ff",
    "%ed%a0%80",
    "-1",
    "9" * 30,
    "null",
    "[]",
    "W10",
    "x" * 900,
]
BROKEN = [
    b"{",
    b"[",
    b'{"a":',
    b'{"a" 1}',
    b"nul",
    b"'a'",
    b"{}{}",
    b'{"a":"\\ud800"}',
    b'{"a":NaN}',
    b"\xef\xbb\xbf{}",
    b"\0",
]


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


class Caller:
    """Calls one operation, as its scope demands, with ids that exist."""

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, route: Route, ids: dict[str, str]
    ) -> None:
        self.route = route
        self._session = session
        self._base_url = base_url
        self._ids = ids

    def path(self, **instead: str) -> str:
        ids = {**self._ids, **instead}
        return re.sub(r"\{(\w+)(?::[^{}]+)?\}", lambda match: ids[match.group(1)], self.route.path)

    async def send(
        self,
        body: bytes | None = None,
        *,
        path: str = "",
        headers: Mapping[str, str] = JSON,
        method: str = "",
    ) -> Answer:
        # A large body is sent from a file, since aiohttp warns of large bytes.
        data = None if body is None else io.BytesIO(body)
        url = URL(self._base_url + (path or self.path()), encoded=True)
        async with self._session.request(
            method or self.route.method, url, data=data, headers=headers if body is not None else {}
        ) as response:
            return Answer(
                status=response.status, headers=response.headers, body=await response.read()
            )


@pytest.fixture
async def caller(
    request: pytest.FixtureRequest, client: Client, service: Service
) -> AsyncIterator[Caller]:
    route: Route = request.param
    ids = {
        **dict.fromkeys(("name", "secret_id", "secret_name", "model_host"), "NAME"),
        **dict.fromkeys(
            ("key_id", "delivery_id", "archive_id", "login_id", "message_id", "run_id"), "99"
        ),
        "repository_name": "a/b",
        "login_provider": "company",
    }
    key = client.key
    if route.scope is Scope.SANDBOX or "{" in route.path:
        ids["conversation_id"] = await client.start_conversation(None)
        found = await client.conversation(ids["conversation_id"])
        ids["sandbox_id"] = found["sandbox_id"]
        key = found["session_api_key"] if route.scope is Scope.SANDBOX else key
    if "{user_id}" in route.path:
        user = await client.post("/api/v1/users", json={"name": "bob"})
        ids["user_id"] = ids["org_id"] = user.json()["id"]
    if "{subscription_id}" in route.path:
        order = {"url": "https://receiver.invalid/"}
        made = await client.post("/api/v1/webhook-subscriptions", json=order)
        ids["subscription_id"] = made.json()["id"]
    if "{automation_id}" in route.path:
        automation = {"name": "any", "prompt": "any", "trigger": {"type": "webhook"}}
        made = await client.post("/api/automation/v1", json=automation)
        ids["automation_id"] = made.json()["id"]
    if "{environment_id}" in route.path:
        made = await client.post("/api/v1/environments", json={"name": "any"})
        ids["environment_id"] = made.json()["id"]
    if "{attempts_id}" in route.path:
        made = await client.post("/api/v1/attempts", json={"message": "any", "count": 2})
        ids["attempts_id"] = made.json()["id"]
    async with aiohttp.ClientSession(headers={"X-Session-API-Key": key or ""}) as session:
        yield Caller(session, service.url, route, ids)


def _problem(answer: Answer) -> str:
    """Return what is wrong with an answer that should be a refusal in the one shape."""
    if not 400 <= answer.status < 500:
        return f"status {answer.status}: {answer.text[:200]}"
    body = answer.json()
    if not {"detail", "code", "request_id"} <= set(body):
        return f"members {sorted(body)}"
    if answer.status != 422 or body["code"] != "invalid_request":
        return "" if isinstance(body["detail"], str) else f"detail {body['detail']}"
    return next(filter(None, map(_problem_of_item, body["detail"])), "")


def _problem_of_item(item: Mapping[str, Any]) -> str:
    is_well_formed = set(item) == {"type", "loc", "msg"} and item["loc"][0] in (
        "body",
        "query",
        "path",
        "header",
    )
    if not is_well_formed or item["msg"] == NOT_TOLD:
        return f"detail {item}"
    return f"words of Python in {item}" if OF_PYTHON.search(item["msg"]) else ""


def _fits(body: bytes, kind: Any) -> bool:
    """Whether a body is of a type and has no integer beyond 64 bits."""
    try:
        msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return False
    return re.search(rb"\d{19}", body) is None


def _real(problems: Mapping[str, str]) -> dict[str, str]:
    return {name: problem for name, problem in problems.items() if problem}


def _sample(kind: Any) -> Any:
    """Return a value with no more than what its type demands."""
    kind = getattr(kind, "__value__", kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {
            field.encode_name: _sample(field.type)
            for field in msgspec.structs.fields(kind)
            if field.required
        }
    if get_origin(kind) is list:
        return [_sample(get_args(kind)[0])]
    if args := get_args(kind):
        return _sample(args[0])
    return {"type": "text", "text": "hello"} if kind is msgspec.Raw else "a" * 8


def _variants(kind: Any) -> Iterator[Any]:
    """Yield bodies of a type in which one value is replaced, at every depth."""
    yield from VALUES
    kind = getattr(kind, "__value__", kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        whole = _sample(kind)
        for field in msgspec.structs.fields(kind):
            for value in _variants(field.type):
                yield {**whole, field.encode_name: value}
    elif get_origin(kind) in (list, tuple):
        for value in _variants(get_args(kind)[0]):
            yield [value]
    elif get_origin(kind) is dict:
        for value in _variants(get_args(kind)[1]):
            yield {"a": value}
    else:
        for part in get_args(kind):
            if isinstance(getattr(part, "__value__", part), type) or get_args(part):
                yield from _variants(part)


@pytest.mark.parametrize("caller", ONE_OF_EACH_BODY, ids=_name, indirect=True)
async def test_no_value_in_a_body_is_a_500_and_a_wrong_one_is_refused(caller: Caller) -> None:
    problems = {}
    seen = set()
    for variant in _variants(caller.route.body):
        body = json.dumps(variant).encode()
        if body in seen:
            continue
        seen.add(body)
        answer = await caller.send(body)
        if answer.status >= 400 or not _fits(body, caller.route.body):
            problems[str(body[:200])] = _problem(answer)
    assert _real(problems) == {}


@pytest.mark.parametrize("caller", WITH_BODY, ids=_name, indirect=True)
async def test_a_body_that_cannot_be_read_is_refused(caller: Caller) -> None:
    large = b'"' + b"a" * (LIMIT - 2) + b'"'
    bodies = {
        **{str(body): await caller.send(body) for body in BROKEN},
        "not UTF-8": await caller.send(b'{"a":"\xff"}'),
        "deep": await caller.send(DEEP),
        "deep inside": await caller.send(b'{"unknown":' + DEEP + b"}"),
        "deep and open": await caller.send(b"[" * 100_000),
        "as large as may be": await caller.send(large),
        "larger": await caller.send(large + b" "),
        "text": await caller.send(b"{}", headers={"Content-Type": "text/plain"}),
        "form": await caller.send(b"a=b", headers={"Content-Type": "multipart/form-data"}),
        "not compressed": await caller.send(b"{}", headers={**JSON, "Content-Encoding": "gzip"}),
        "unknown coding": await caller.send(b"{}", headers={**JSON, "Content-Encoding": "x"}),
    }
    assert _real({name: _problem(answer) for name, answer in bodies.items()}) == {}
    assert bodies["not UTF-8"].status == 400
    # A sandbox may report an event of any size that events have.
    is_callback = caller.route.scope is Scope.SANDBOX
    assert bodies["larger"].status == (422 if is_callback else 413)
    assert bodies["text"].status == 415


@pytest.mark.parametrize("caller", WITH_QUERY, ids=_name, indirect=True)
async def test_no_parameter_is_a_500_and_a_wrong_one_is_refused(caller: Caller) -> None:
    problems = {}
    for field in msgspec.structs.fields(caller.route.query):
        name = field.encode_name
        for value in QUERY_VALUES:
            answer = await caller.send(path=f"{caller.path()}?{name}={value}")
            is_wrong = (
                value == "%00"
                or (name == "page_id" and value)
                or (name == "limit" and value != "null")
            )
            if answer.status >= 400 or is_wrong:
                problems[f"{name}={value}"] = _problem(answer)
    assert _real(problems) == {}


@pytest.mark.parametrize("caller", WITH_PATH, ids=_name, indirect=True)
async def test_no_path_is_a_500_and_a_wrong_one_is_refused(caller: Caller) -> None:
    problems = {}
    for name in re.findall(r"\{(\w+)(?::[^{}]+)?\}", caller.route.path):
        for value in PATH_VALUES:
            answer = await caller.send(b"{}", path=caller.path(**{name: value}))
            is_answer = answer.body in (b"null", b"false") and _name(caller.route) in NOBODY_IS_NULL
            is_done = answer.status in (200, 201) and _name(caller.route) in NEVER_UNKNOWN
            if not is_answer and not is_done:
                problems[f"{name}={value}"] = _problem(answer)
    assert _real(problems) == {}


@pytest.mark.parametrize("caller", ROUTES, ids=_name, indirect=True)
async def test_another_method_is_refused(caller: Caller) -> None:
    answer = await caller.send(method="PROPFIND")
    assert (answer.status, answer.json()["detail"]) == (405, "Method Not Allowed")
    assert caller.route.method in answer.headers["Allow"]


RAW_REQUESTS = [
    b"GET /api/v1/sandboxes/\xff\xfe HTTP/1.1\r\nHost: x\r\n",
    b"GET /api/conversations/\xed\xa0\x80 HTTP/1.1\r\nHost: x\r\n",
    b"GET /api/v1/app-conversations/search?title__contains=\xff HTTP/1.1\r\nHost: x\r\n",
    b"GET /api/v1/app-conversations/search?limit=\xed\xa0\x80 HTTP/1.1\r\nHost: x\r\n",
    b"GET /api/settings\x00 HTTP/1.1\r\nHost: x\r\n",
    b"GET //api//settings/../.. HTTP/1.1\r\nHost: x\r\n",
    b"GET http://else.example/api/v1/nowhere HTTP/1.1\r\nHost: x\r\n",
    b"GET /api/v1/sandboxes HTTP/1.1\r\nHost: \xff\r\n",
    b"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Type: \xff/\xfe\r\nContent-Length: 2\r\n",
    b"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n",
    b"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n",
    b"POST /api/settings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
    b"POST /api/settings HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nContent-Length: 2\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n",
    b"\xff\xfe\r\n",
]


@pytest.mark.parametrize("head", RAW_REQUESTS)
async def test_no_bytes_on_the_socket_are_a_500(client: Client, head: bytes) -> None:
    key = f"X-Session-API-Key: {client.key}\r\nConnection: close\r\n\r\n"
    host, _, port = client.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head + key.encode() + b"{}\xff\r\n")
    answer = await reader.read(100_000)
    writer.close()
    await writer.wait_closed()
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", answer), answer


@pytest.mark.parametrize(
    "header", ["X-Session-API-Key: \xff\xfe", "Authorization: Bearer \xff", "Authorization:"]
)
async def test_a_key_that_is_no_text_is_unauthorized(client: Client, header: str) -> None:
    host, _, port = client.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"GET /api/settings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n"
    writer.write(head.encode("latin-1"))
    answer = await reader.read(100_000)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 401 "), answer
