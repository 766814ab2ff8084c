"""The published description as tests use it: what it says of an operation, and whether it is so."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
import msgspec
from aiohttp import web

from agentsvc.base.values import parse_time
from agentsvc.http.openapi import describe
from agentsvc.http.openapi.operations import methods_of
from agentsvc.http.path_parts import plain_path
from agentsvc.http.routes import Route, mounted, route_of

type Json = dict[str, Any]

OPEN_SCHEMAS: Final = frozenset({"StoredEvent", "HistoryEvent"})
"""Structs that name only what is in each event; the rest depends on the agent server."""


METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
"""What of the item of a path is an operation."""

FORMATS: Final = jsonschema.FormatChecker([])
FORMATS.checks("date-time")(
    lambda value: isinstance(value, str) and value.endswith("Z") and parse_time(value) is not None
)


def undescribed(document: Json) -> Iterator[str]:
    """Yield each place of a description that does not say what it is for.

    Where a value may be null, or be omitted, the text has to say what that means.
    """
    for path, item in document["paths"].items():
        yield from _silent_parameters(path, item)
        if item.keys().isdisjoint(METHODS) and not item["description"]:
            yield path
        for method in filter(item.get, METHODS):
            yield from _silent_operation(f"{method} {path}", item[method])
    for kind, items in document["components"].items():
        for name, item in items.items():
            if not item.get("description"):
                yield f"{kind} {name}"
            for field, schema in item.get("properties", {}).items():
                if not _is_told(schema, schema.get("description", "")):
                    yield f"{name}.{field}"


def _silent_operation(name: str, operation: Json) -> Iterator[str]:
    yield from _silent_parameters(name, operation)
    # Below what the operation does is which key it needs.
    if "\n\n" not in operation.get("description", ""):
        yield name
    for status, answer in operation["responses"].items():
        if "$ref" not in answer and not answer["description"].partition(": ")[2]:
            yield f"{name} {status}"


def _silent_parameters(place: str, item: Json) -> Iterator[str]:
    for one in item.get("parameters", ()):
        text = one.get("description", "")
        may_be_absent = one["in"] == "query" and not one.get("required")
        is_told = not may_be_absent or "default" in one["schema"] or "omitted" in text.lower()
        if not text or not is_told:
            yield f"{place} {one['name']}"


def _is_told(schema: Json, text: str) -> bool:
    may_be_null = {"type": "null"} in (schema, *schema.get("anyOf", ()))
    return bool(text) and (not may_be_null or "null" in text.lower())


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of the description, with its route."""

    method: str
    path: str
    about: Json
    route: Route

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def parameters(self) -> list[Json]:
        found: list[Json] = self.about.get("parameters", [])
        return found

    @property
    def contents(self) -> Json:
        found: Json = self.about.get("requestBody", {}).get("content", {})
        return found


class Description:
    """The description of some routes."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.document: Json = describe(routes)
        self._routes = {
            (method, plain_path(route.path)): route
            for route in routes
            for method in methods_of(route)
        }
        self._checkers: dict[int, tuple[Json, Any]] = {}

    def operations(self) -> Iterator[Operation]:
        for path, item in self.document["paths"].items():
            for method in filter(item.get, METHODS):
                about = item[method]
                yield Operation(
                    method=method, path=path, about=about, route=self._routes[method, path]
                )

    def resolve(self, node: Json) -> Json:
        """Return what a reference refers to, or the node itself."""
        if "$ref" not in node:
            return node
        found: Any = self.document
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return {**found, **{key: value for key, value in node.items() if key != "$ref"}}

    def answer(self, operation: Operation, status: int) -> Json | None:
        """Return the description of the answer with a status, None if there is none."""
        found = operation.about["responses"].get(str(status))
        return None if found is None else self.resolve(found)

    def problems(self, operation: Operation, status: int, media: str, body: bytes) -> list[str]:
        """Return where an answer differs from what is described."""
        answer = self.answer(operation, status)
        if answer is None:
            return [f"{operation.name}: {status} is not described: {body[:300]!r}"]
        content = answer.get("content", {})
        if media not in content:
            return [f"{operation.name}: {status} has {media}, described are {list(content)}"]
        if media != "application/json":
            return []
        schema = content[media]["schema"]
        value = msgspec.json.decode(body)
        wrong = [
            f"{operation.name}: {status} {error.json_path}: {error.message}"[:600]
            for error in self.checker(schema).iter_errors(value)
        ]
        unknown = [
            f"{operation.name}: {status} {at} is not described"
            for at in self._undescribed(schema, value, "$")
        ]
        # Errors have further members, for clients that look for them there.
        return wrong + (unknown if status < 400 else [])

    def checker(self, schema: Json) -> Any:
        """Return what checks values against a schema of the document."""
        known = self._checkers.get(id(schema))
        if known is not None:
            return known[1]
        whole = {**schema, "components": self.document["components"]}
        made = jsonschema.Draft202012Validator(whole, format_checker=FORMATS)
        # With the schema itself, so that its id stays its own.
        self._checkers[id(schema)] = schema, made
        return made

    def _undescribed(self, schema: Json, value: Any, at: str) -> Iterator[str]:
        if schema.get("$ref", "").rpartition("/")[2] in OPEN_SCHEMAS:
            return
        schema = self.resolve(schema)
        for option in self._meant(schema.get("anyOf", ()), value):
            yield from self._undescribed(option, value, at)
        if isinstance(value, dict) and "properties" in schema:
            for name, inner in value.items():
                if name not in schema["properties"]:
                    yield f"{at}.{name}"
                else:
                    yield from self._undescribed(schema["properties"][name], inner, f"{at}.{name}")
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            for number, item in enumerate(value):
                yield from self._undescribed(schema["items"], item, f"{at}[{number}]")

    def _meant(self, options: Sequence[Json], value: Any) -> list[Json]:
        """Return which options a value fits, given that it fits one of them."""
        left = [one for one in options if self._may_be(one, _KINDS[type(value)])]
        return (
            left if len(left) == 1 else [one for one in left if self.checker(one).is_valid(value)]
        )

    def _may_be(self, schema: Json, kinds: tuple[str, ...]) -> bool:
        kind = self.resolve(schema).get("type")
        return not isinstance(kind, str) or kind in kinds


_KINDS: Final[dict[type, tuple[str, ...]]] = {
    dict: ("object",),
    list: ("array",),
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number", "integer"),
    type(None): ("null",),
}
"""What a schema calls a value of JSON."""


def description_of(routes: tuple[Route, ...]) -> Description:
    """Return the description of some routes, which is made once for the same ones."""
    names = frozenset(f"{route.method} {route.path}" for route in routes)
    if names not in _DESCRIPTIONS:
        _DESCRIPTIONS[names] = Description(routes)
    return _DESCRIPTIONS[names]


class Watch:
    """Looks at every answer of a server, and remembers what is not as it is described."""

    def __init__(self, app: web.Application) -> None:
        self.problems: list[str] = []
        self._description = description_of(mounted(app))
        self._operations = {one.name: one for one in self._description.operations()}
        self._seen: dict[str, tuple[int, str, bytes]] = {}
        app.on_response_prepare.append(self._look)

    async def _look(self, request: web.Request, response: web.StreamResponse) -> None:
        route = route_of(request)
        if route is None or response.status in _NOT_OF_AN_OPERATION:
            return
        operation = self._operations.get(f"{request.method.lower()} {plain_path(route.path)}")
        body = getattr(response, "body", None)
        if operation is not None and isinstance(body, bytes):
            media = response.headers.get("Content-Type", "").partition(";")[0]
            answer = response.status, media, body
            # Who waits for something gets the same answer many times.
            if self._seen.get(operation.name) != answer:
                self._seen[operation.name] = answer
                self.problems += self._description.problems(operation, *answer)


def message_checker(route: Route) -> Any:
    """Return what checks the messages of a stream, or those that a socket sends."""
    if route.path not in _CHECKERS:
        _CHECKERS[route.path] = _new_checker(route)
    return _CHECKERS[route.path]


def _new_checker(route: Route) -> Any:
    document = describe([route])
    if route.socket is not None:
        schema = document["paths"][route.socket.path]["x-messages"]["sent"]["oh_event"]
    else:
        answers = document["paths"][plain_path(route.path)]["get"]["responses"]
        schema = answers["101"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    return jsonschema.Draft202012Validator(whole, format_checker=FORMATS)


_CHECKERS: Final[dict[str, Any]] = {}
_DESCRIPTIONS: Final[dict[frozenset[str], Description]] = {}
_NOT_OF_AN_OPERATION: Final = {304, 308, 417, 421}
"""The browser has it already, it is elsewhere, nobody can meet what is expected, or it was for another."""


def example_path(operation: Operation, real: Json) -> str:
    """Return the path and query of an operation's example; `real` has what only a server can give."""
    given = {one["name"]: one["example"] for one in operation.parameters if one["in"] == "path"}
    path = re.sub(
        r"\{(\w+)\}",
        lambda match: quote(str(real.get(match.group(1), given[match.group(1)])), safe=""),
        operation.path,
    )
    query = "&".join(
        f"{one['name']}={quote(str(value), safe='')}"
        for one in operation.parameters
        if one["in"] == "query" and "example" in one
        for value in _values(one["example"])
    )
    return f"{path}?{query}" if query else path


def example_body(operation: Operation, real: Json) -> Iterator[Json]:
    """Yield what a client sends as the body of an example: once for each media type."""
    for media, content in operation.contents.items():
        if "example" in content:
            example = content["example"]
            if isinstance(example, dict):
                example = {name: real.get(name, value) for name, value in example.items()}
            yield _encoded(media, example)
    if not any("example" in content for content in operation.contents.values()):
        yield {}


def _encoded(media: str, example: Any) -> Json:
    if media == "application/json":
        return {"json": example}
    if media == "application/x-www-form-urlencoded":
        return {"data": {name: str(value) for name, value in example.items()}}
    form = aiohttp.FormData(default_to_multipart=True)
    for name, values in example.items():
        for value in values:
            form.add_field(name, value.encode(), filename="example.txt")
    return {"data": form}


def _values(example: Any) -> list[Any]:
    return example if isinstance(example, list) else [example]
