"""A request that does not fit is answered with every part that does not, where it is, and what would.

What is sent is made from the types of the routes, so that a new field is covered at once.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec.inspect as mi
import pytest

from agentsvc.app import published_routes
from agentsvc.http import health as ops
from agentsvc.http import v0, v1
from agentsvc.http.routes import JSON, Route, Scope
from tests.conftest import FAST
from tests.service import Answer, Client, Service

OF_PLUGINS = [
    route
    for route in published_routes(FAST)
    if route.path.startswith(
        ("/runtime", "/api/v1/webhook-subscriptions", "/api/v1/sign-in", "/api/automation/v1")
    )
]
ROUTES = [*ops.ROUTES, *v0.ROUTES, *v1.ROUTES, *v1.LOGIN_ROUTES, *OF_PLUGINS]
WITH_BODY = [route for route in ROUTES if route.body is not None and JSON in route.reads]
WITH_QUERY = [route for route in ROUTES if route.query is not None]
IN_OTHER_WORDS = {"/oauth/device/token"}
"""An operation whose refusals have the form of another specification."""

OF_PYTHON = re.compile(
    r"\b(str|int|float|bool|dict|list|tuple|None|NoneType|regex|struct|msgspec)\b|\\A|\^\["
)
VALUES: tuple[Any, ...] = (True, "text", 7, 1.5, {}, [], None)
TEXTS = ("a", "a/b", "https://a.example/", "A" * 8, "7c9e6679742540de944be07fc1f90ae7")
LARGEST = 100_000
"""The longest text and list that is sent to be over a bound."""

type Loc = tuple[str | int, ...]


class Misfit(NamedTuple):
    """A value that does not fit, where the problem is, and what its message has to say."""

    value: Any
    loc: Loc
    words: tuple[str, ...]


def _plain(kind: mi.Type) -> tuple[mi.Type, ...]:
    """Return the types a value may be of."""
    if isinstance(kind, mi.Metadata):
        return _plain(kind.type)
    if isinstance(kind, mi.UnionType):
        return tuple(part for one in kind.types for part in _plain(one))
    return (kind,)


def _name(value: Any) -> str:
    names = {bool: "boolean", str: "string", int: "integer", float: "number", dict: "object"}
    return names.get(type(value), "null" if value is None else "array")


def _names(kind: mi.Type) -> set[str]:
    """Return what JSON calls the values of a type; nothing for those that take any."""
    found: set[str] = set()
    for one in _plain(kind):
        match one:
            case mi.StructType() | mi.DictType():
                found.add("object")
            case mi.ListType() | mi.VarTupleType():
                found.add("array")
            case mi.IntType():
                found.add("integer")
            case mi.FloatType():
                found |= {"number", "integer"}
            case mi.BoolType():
                found.add("boolean")
            case mi.NoneType():
                found.add("null")
            case mi.AnyType() | mi.RawType():
                return set()
            case _:
                found.add("string")
    return found


def _sample(kind: mi.Type) -> Any:
    """Return a value that fits, with no more in it than there must be."""
    stated = (kind.extra_json_schema or {}) if isinstance(kind, mi.Metadata) else {}
    if "pattern" in stated:
        return next(one for one in TEXTS if re.search(stated["pattern"], one))
    [first, *_] = _plain(kind)
    found: Any = {"type": "text", "text": "hello"}
    match first:
        case mi.StructType():
            tag = {first.tag_field: first.tag} if first.tag_field else {}
            found = tag | {
                one.encode_name: _sample(one.type) for one in first.fields if one.required
            }
        case mi.DictType():
            found = {}
        case mi.ListType() | mi.VarTupleType():
            found = [_sample(first.item_type)] * (first.min_length or 0)
        case mi.EnumType():
            found = next(iter(first.cls)).value
        case mi.IntType() | mi.FloatType():
            found = first.ge or 1
        case mi.StrType() | mi.LiteralType() | mi.UUIDType() | mi.BoolType():
            pattern = getattr(first, "pattern", None) or ""
            chosen = {mi.UUIDType: TEXTS[-1:], mi.BoolType: (True,)}.get(type(first), TEXTS)
            options = getattr(first, "values", chosen)
            found = next(one for one in options if re.search(pattern, str(one)))
        case _:
            pass
    return found


def _misfits(kind: mi.Type, loc: Loc) -> Iterator[Misfit]:
    """Yield values that do not fit a type: of another type, out of bounds, and inside of it."""
    names = _names(kind)
    if names:
        wrong = next(value for value in VALUES if _name(value) not in names)
        allowed = any(isinstance(one, mi.EnumType | mi.LiteralType) for one in _plain(kind))
        words = ("one of",) if allowed else tuple(f"`{name}`" for name in names - {"integer"})
        yield Misfit(wrong, loc, (*words, f"got `{_name(wrong)}`"))
    for one in _plain(kind):
        yield from _out_of_bounds(one, loc)
        yield from _inside(one, loc)


def _out_of_bounds(kind: mi.Type, loc: Loc) -> Iterator[Misfit]:
    match kind:
        case mi.IntType() | mi.FloatType():
            yield from _beyond(kind, loc)
        case mi.StrType():
            yield from _not_of_form(kind, loc)
        case mi.EnumType():
            yield Misfit("no such value", loc, tuple(f"`{one.value}`" for one in kind.cls))
        case mi.LiteralType():
            yield Misfit("no such value", loc, tuple(f"`{one}`" for one in kind.values))
        case mi.UUIDType():
            yield Misfit("no such value", loc, ("UUID",))
        case mi.ListType() | mi.VarTupleType():
            if kind.max_length is not None and kind.max_length <= LARGEST:
                many = [_sample(kind.item_type)] * (kind.max_length + 1)
                yield Misfit(many, loc, (f"{kind.max_length} items",))
            if kind.min_length:
                yield Misfit([], loc, (f"{kind.min_length} ",))
        case _:
            pass


def _beyond(kind: mi.IntType | mi.FloatType, loc: Loc) -> Iterator[Misfit]:
    if kind.ge is not None and kind.ge > -(2**63):
        yield Misfit(kind.ge - 1, loc, (str(kind.ge),))
    if kind.le is not None:
        yield Misfit(kind.le + 1, loc, (str(kind.le),))


def _not_of_form(kind: mi.StrType, loc: Loc) -> Iterator[Misfit]:
    if kind.pattern is not None and not re.search(kind.pattern, "\0\n="):
        yield Misfit("\0\n=", loc, ("`string`",))
    if kind.max_length is not None and kind.max_length <= LARGEST:
        long = "https://a/" + "a" * kind.max_length
        yield Misfit(long, loc, (f"{kind.max_length} characters",))
    if kind.min_length:
        yield Misfit("", loc, (f"{kind.min_length} ",))


def _inside(kind: mi.Type, loc: Loc) -> Iterator[Misfit]:
    match kind:
        case mi.StructType():
            whole = _sample(kind)
            for field in kind.fields:
                name = field.encode_name
                for one in _misfits(field.type, (*loc, name)):
                    yield one._replace(value={**whole, name: one.value})
                if field.required:
                    rest = {key: value for key, value in whole.items() if key != name}
                    yield Misfit(rest, (*loc, name), ("Field required",))
            if kind.forbid_unknown_fields:
                value = {**whole, "no_such_field": 1}
                yield Misfit(value, (*loc, "no_such_field"), ("not permitted",))
        case mi.ListType() | mi.VarTupleType():
            for one in _misfits(kind.item_type, (*loc, 0)):
                yield one._replace(value=[one.value])
        case mi.DictType():
            key = str(_sample(kind.key_type))
            for one in _misfits(kind.value_type, (*loc, key)):
                yield one._replace(value={key: one.value})
        case _:
            pass


def _all_wrong(kind: mi.Type) -> Misfit | None:
    """Return a body each of whose members is of a wrong type; the words are their names."""
    struct = next((one for one in _plain(kind) if isinstance(one, mi.StructType)), None)
    if struct is None:
        return None
    wrong = {
        field.encode_name: next(value for value in VALUES if _name(value) not in names)
        for field in struct.fields
        if (names := _names(field.type))
    }
    return Misfit(wrong, (), tuple(wrong))


def _told(answer: Answer) -> list[tuple[Loc, str]]:
    assert answer.status == 422, answer.text
    body = answer.json()
    assert set(body) >= {"detail", "code", "request_id"}
    for item in body["detail"]:
        assert set(item) == {"type", "loc", "msg"}
        assert not OF_PYTHON.search(item["msg"]), item
    return [(tuple(item["loc"]), item["msg"]) for item in body["detail"]]


class Site:
    """A server, and what is needed to call each of its operations."""

    def __init__(self, admin: Client, sandbox: Client, ids: dict[str, str]) -> None:
        self.admin = admin
        self._sandbox = sandbox
        self._ids = ids

    async def send(self, route: Route, *, body: Any = ..., query: str = "", **ids: str) -> Answer:
        client = self._sandbox if route.scope is Scope.SANDBOX else self.admin
        known = {**self._ids, **ids}
        path = re.sub(r"\{(\w+)(?::[^{}]+)?\}", lambda one: quote(known[one[1]]), route.path)
        options = {} if body is ... else {"json": body}
        return await client.request(route.method, f"{path}?{query}", **options)


@pytest.fixture
async def site(client: Client, service: Service) -> Site:
    ids = {
        **dict.fromkeys(("name", "secret_id", "secret_name"), "NAME"),
        **dict.fromkeys(("key_id", "delivery_id", "login_id"), "99"),
        "archive_id": TEXTS[-1],
        "repository_name": "a/b",
        "login_provider": "company",
    }
    ids["conversation_id"] = await client.start_conversation(None)
    found = await client.conversation(ids["conversation_id"])
    ids["sandbox_id"] = ids["session_id"] = ids["runtime_id"] = found["sandbox_id"]
    user = await client.post("/api/v1/users", json={"name": "bob"})
    ids["user_id"] = ids["org_id"] = user.json()["id"]
    order = {"url": "https://receiver.invalid/"}
    made = await client.post("/api/v1/webhook-subscriptions", json=order)
    ids["subscription_id"] = made.json()["id"]
    automation = {"name": "any", "prompt": "any", "trigger": {"type": "manual"}}
    made = await client.post("/api/automation/v1", json=automation)
    ids["automation_id"] = made.json()["id"]
    made = await client.post("/api/v1/environments", json={"name": "any"})
    ids["environment_id"] = made.json()["id"]
    made = await client.post("/api/v1/attempts", json={"message": "any", "count": 2})
    ids["attempts_id"] = made.json()["id"]
    return Site(client, service.client_with(found["session_api_key"]), ids)


async def test_a_part_of_a_body_that_does_not_fit_is_named_with_its_place_and_what_fits(
    site: Site,
) -> None:
    problems: list[str] = []
    count = 0
    for route in WITH_BODY:
        if route.path in IN_OTHER_WORDS:
            continue
        for misfit in _misfits(mi.type_info(route.body), ("body",)):
            count += 1
            answer = await site.send(route, body=misfit.value)
            what = f"{route.method} {route.path} {json.dumps(misfit.value)[:200]}"
            if answer.status != 422:
                problems.append(f"{what}: {answer.status} {answer.text[:200]}")
                continue
            told = _told(answer)
            [first, *more] = told
            is_right = first[0] == misfit.loc and not more
            # What is sent as a form may be a text for any type.
            words = [word for word in misfit.words if route.reads == (JSON,) or "got" not in word]
            if not is_right or not all(word in first[1] for word in words):
                problems.append(f"{what}: {misfit.loc} {misfit.words}, got {told[:3]}")
    assert problems == []
    assert count > 500


async def test_all_that_does_not_fit_in_a_body_is_named_at_once(site: Site) -> None:
    for route in WITH_BODY:
        wrong = _all_wrong(mi.type_info(route.body))
        if wrong is None or not wrong.words or route.path in IN_OTHER_WORDS:
            continue
        told = _told(await site.send(route, body=wrong.value))
        assert {loc for loc, _ in told} == {("body", name) for name in wrong.words}, route.path
        assert len(told) == len(wrong.words)
        # Any two of them, too.
        for pair in zip(wrong.words, wrong.words[1:], strict=False):
            whole = _sample(mi.type_info(route.body)) or {}
            body = {**whole, **{name: wrong.value[name] for name in pair}}
            told = _told(await site.send(route, body=body))
            assert {loc for loc, _ in told} == {("body", name) for name in pair}, route.path


def _wrong_parameters(shape: mi.Type) -> tuple[dict[str, str], set[Loc]]:
    """Return a query in which all is wrong that can be, and where."""
    query: dict[str, str] = {}
    places: set[Loc] = set()
    assert isinstance(shape, mi.StructType)
    for field in shape.fields:
        for one in _plain(field.type):
            [kind, *_] = _plain(one.item_type) if isinstance(one, mi.ListType) else (one,)
            place: Loc = ("query", field.encode_name)
            if isinstance(kind, mi.IntType | mi.BoolType | mi.EnumType | mi.UUIDType):
                query[field.encode_name] = "no-such-value"
                places.add((*place, 0) if isinstance(one, mi.ListType) else place)
            elif field.required:
                places.add(place)
    return query, places


async def test_all_that_does_not_fit_in_a_query_is_named_at_once(site: Site) -> None:
    count = 0
    for route in WITH_QUERY:
        query, places = _wrong_parameters(mi.type_info(route.query))
        if places:
            count += 1
            told = _told(await site.send(route, query=urlencode(query)))
            assert {loc for loc, _ in told} == places, route.path
    assert count > 20


async def test_what_does_not_fit_in_path_query_and_body_is_named_at_once(
    site: Site, client: Client
) -> None:
    told = _told(await client.get("/api/v1/conversation/zzz/events/search?limit=0&kind__eq=no"))
    assert {loc for loc, _ in told} == {
        ("path", "conversation_id"),
        ("query", "limit"),
        ("query", "kind__eq"),
    }
    answer = await client.patch("/api/v1/app-conversations/zzz", json={"title": 1, "public": 2})
    assert {loc for loc, _ in _told(answer)} == {
        ("path", "conversation_id"),
        ("body", "title"),
        ("body", "public"),
    }


SERVER = {"command": 5, "env": {"A": 1, "B": "b"}}
INSIDE: list[tuple[str, str, Any, set[Loc]]] = [
    (
        "POST",
        "/api/v1/settings",
        {"mcp_config": {"mcpServers": {"x": SERVER, "y": {}}}, "llm_model": 1, "language": "\0"},
        {
            ("body", "llm_model"),
            ("body", "mcp_config", "mcpServers", "x", "command"),
            ("body", "mcp_config", "mcpServers", "x", "env", "A"),
            ("body", "mcp_config", "mcpServers", "y"),
        },
    ),
    (
        "POST",
        "/api/v1/settings",
        {
            "mcp_config": {"x": {"command": "a b", "env": {"1": "b"}}},
            "max_iterations": 0,
            "condenser_max_size": 1,
            "secrets_store": {"provider_tokens": {"svn": "t"}, "custom_secrets": {"a b": "c"}},
        },
        {
            ("body", "max_iterations"),
            ("body", "condenser_max_size"),
            ("body", "mcp_config", "x", "command"),
            ("body", "mcp_config", "x", "env", "1"),
            ("body", "secrets_store", "provider_tokens", "svn"),
            ("body", "secrets_store", "custom_secrets", "a b"),
        },
    ),
    (
        "POST",
        "/api/settings",
        {
            "mcp_config": {"sse_servers": ["nope", {"url": "http://a", "key": 1}], "more": []},
            "secrets_store": {"custom_secrets": {"A": {"secret": 1}}},
            "v1_enabled": "yes",
        },
        {
            ("body", "mcp_config", "more"),
            ("body", "mcp_config", "sse_servers", 0, "url"),
            ("body", "mcp_config", "sse_servers", 1, "key"),
            ("body", "secrets_store", "custom_secrets", "A", "secret"),
            ("body", "v1_enabled"),
        },
    ),
    (
        "POST",
        "/api/settings",
        {
            "mcp_config": {"sse_servers": ["nope", {"url": "http://a", "key": 1}]},
            "max_iterations": 0,
        },
        {
            ("body", "mcp_config", "sse_servers", 0, "url"),
            ("body", "mcp_config", "sse_servers", 1, "key"),
            ("body", "max_iterations"),
        },
    ),
    (
        "POST",
        "/api/v1/app-conversations",
        {
            "initial_message": {
                "content": [
                    {"type": "text", "text": 1},
                    {"type": "text", "text": "a", "more": 1},
                    {"type": "image", "image_urls": ["ftp://a", 1]},
                    {"type": "sound"},
                ]
            },
            "secrets": {"A=B": "c", "D": 1},
            "title": 1,
        },
        {
            ("body", "initial_message", "content", 0, "text"),
            ("body", "initial_message", "content", 1, "more"),
            ("body", "initial_message", "content", 2, "image_urls", 0),
            ("body", "initial_message", "content", 2, "image_urls", 1),
            ("body", "initial_message", "content", 3, "type"),
            ("body", "secrets", "A=B"),
            ("body", "secrets", "D"),
            ("body", "title"),
        },
    ),
    (
        "POST",
        "/api/conversations",
        {
            "mcp_config": {"stdio_servers": [{"name": "a b", "command": "c"}]},
            "repository": "nope",
            "selected_branch": "-x",
        },
        {
            ("body", "mcp_config", "stdio_servers", 0, "name"),
            ("body", "repository"),
            ("body", "selected_branch"),
        },
    ),
    (
        "POST",
        "/api/settings",
        {"agent": "Nope", "security_analyzer": "nope", "llm_base_url": "x", "max_iterations": 0},
        {
            ("body", "agent"),
            ("body", "security_analyzer"),
            ("body", "llm_base_url"),
            ("body", "max_iterations"),
        },
    ),
    (
        "POST",
        "/api/v1/app-conversations",
        {"agent_profile_id": "nope", "initial_message": {"content": []}, "secrets": {"LLM_X": "x"}},
        {
            ("body", "agent_profile_id"),
            ("body", "initial_message", "content"),
            ("body", "secrets", "LLM_X"),
        },
    ),
    (
        "POST",
        "/api/v1/app-conversations",
        {"agent_profile_id": "nope", "title": 1},
        {("body", "agent_profile_id"), ("body", "title")},
    ),
]
"""What is decoded in a second step, by itself and beside what is not."""


async def test_what_is_inside_of_a_part_is_named_down_to_the_key_of_a_map(client: Client) -> None:
    for method, path, body, places in INSIDE:
        told = _told(await client.request(method, path, json=body))
        assert {loc for loc, _ in told} == places, path


async def test_a_parameter_that_is_the_text_null_is_not_taken_for_none(client: Client) -> None:
    for path in (
        "/api/v1/conversation/7c9e6679742540de944be07fc1f90ae7/events/count?kind__eq=null",
        "/api/v1/app-conversations/start-tasks/count?conversation_id__eq=NULL",
        "/api/conversations?conversation_trigger=null",
        "/api/v1/config/models/search?verified__eq=Null",
    ):
        [(loc, _)] = _told(await client.get(path))
        assert loc == ("query", path.partition("?")[2].partition("=")[0])
    answer = await client.get("/api/v1/app-conversations/search?title__contains=null")
    assert answer.status == 200


async def test_a_nested_setting_that_does_not_fit_is_named_in_one_text(client: Client) -> None:
    diff = {"llm": {"num_retries": "x", "top_p": 2}, "mcp_config": {"x": {"command": 1}}}
    answer = await client.post("/api/v1/settings", json={"agent_settings_diff": diff})
    assert answer.status == 400
    text = answer.json()["detail"]
    assert "llm.num_retries: Expected `integer` or `null`, got `string`" in text
    assert "llm.top_p: Expected `null` or `number` from 0 to 1" in text
    assert answer.json()["error"] == text
    assert not OF_PYTHON.search(text)


async def test_of_very_many_problems_a_hundred_are_named_and_the_rest_counted(
    client: Client,
) -> None:
    path = "/api/v1/app-conversations"
    told = _told(
        await client.post(path, json={"secrets": dict.fromkeys(map("N{}".format, range(300)), 1)})
    )
    assert told[0] == (("body", "secrets"), "Expected `null` or `object` of at most 50 members")
    assert told[100] == (("body",), "201 further problems are not listed")
    assert len(told) == 101
    told = _told(await client.post(path, json={"pr_number": ["x"] * 50_000}))
    assert re.fullmatch(r"\d{4} or more further problems are not listed", told[100][1])
    # To look through more than this would hold up everybody else.
    told = _told(await client.post(path, json={"processors": [{}] * 200_000, "title": 1}))
    assert [loc for loc, _ in told] == [("body", "title"), ("body",)]
    assert told[1][1] == "There may be further problems"
    [(loc, _), *_] = _told(await client.post(path, json={"secrets": {"x" * 100_000: 1}}))
    assert len(str(loc[-1])) < 300


async def test_nesting_and_broken_json_behind_what_does_not_fit_are_refused(client: Client) -> None:
    path, headers = "/api/v1/app-conversations", {"Content-Type": "application/json"}
    deep = b"[" * 5000
    for body in (
        b'{"title":1,"processors":' + deep + b"]" * 5000 + b"}",
        b'{"title":1,"processors":' + deep,
        b'{"title":1,"public":}',
        b'{"title":1,"pr_number":[' + b"9" * 5000 + b"]}",
    ):
        assert _told(await client.post(path, data=body, headers=headers))
