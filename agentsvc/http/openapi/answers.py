"""Responses of operations in the OpenAPI document."""

from collections import defaultdict
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    BodyTooLarge,
    Conflict,
    IdempotencyKeyReused,
    InvalidRequest,
    MalformedBody,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Problem,
    RequestInProgress,
    ServiceLimitReached,
    TimedOut,
    TooManyRequests,
    UnsupportedMediaType,
)
from agentsvc.http.openapi.schemas import Json, Schemas
from agentsvc.http.path_parts import names_in
from agentsvc.http.routes import HTML, JSON, OF_USERS, Route, Scope, takes_repeats

_SCHEMAS: Final = "#/components/schemas/"
_HEADERS: Final = "#/components/headers/"
_RESPONSES: Final = "#/components/responses/"
_FORBIDDING: Final = frozenset({*Scope} - {Scope.OPEN, Scope.READ, Scope.PASS, Scope.MODEL})
_RETRY: Final = "Retry-After"
_REQUEST: Final = "X-Request-Id"
_DEPRECATION: Final = "Deprecation"
_LINK: Final = "Link"
_RATE_LIMIT: Final = "RateLimit"
_RATE_POLICY: Final = "RateLimit-Policy"


_LINES: Final = (
    "Server-sent events. `event` is the `type` of a message, `id` its `id` if it has one, and `data`"
    " its `data` as JSON on one line. Lines that begin with a colon only show that the stream is"
    " alive."
)
_FRAMES: Final = (
    "a WebSocket, if the client asks for one (`Upgrade: websocket`). Each text frame is one message"
    " as JSON. A client that can send no header with it, such as a browser, sends its key in the"
    ' query, or as the first frame: `{"type": "auth", "session_api_key": "..."}`. What it sends'
    " else is not read. The server closes it with 1001 when it stops, 1011 where it cannot tell,"
    " 4001 when the key counts no more, 4004 when there is nothing to tell of, and 4008 when"
    " something may be missing; the reason of 4008 is the number of the last event that is sure."
)
_IN_WORDS: Final = {
    "object": "an object.",
    "string": "a text.",
    "integer": "a whole number.",
    "boolean": "true or false.",
    "null": "null.",
}


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to what cannot be done; the code is stable, the detail is for people."""

    detail: str
    """What is wrong and what can be done about it, for people"""
    code: str
    """What is wrong, for programs; it stays the same"""
    request_id: str


class InvalidRequestError(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that does not fit its description.

    All that was found is in it, but of more than 100 problems the last item says how many there are.
    """

    detail: list[Problem]
    """What does not fit, one entry for each place"""
    code: Literal["invalid_request"]
    """What is wrong, for programs"""
    request_id: str


class ServiceLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What a service knows as full."""

    error: Literal["CONCURRENCY_LIMIT_REACHED"]
    """What is full: no further sandbox of the user may run now"""
    message: str
    """Why, for people"""


class ServiceLimitError(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a service that acts for a user, where no further sandbox may run now."""

    detail: ServiceLimit
    """What is full, and why"""
    code: Literal["concurrency_limit_reached"]
    """What is wrong, for programs"""
    request_id: str


ERROR_TYPES: Final = (Error, InvalidRequestError, ServiceLimitError)
_OF_THEIR_OWN: Final[dict[type[AgentsvcError], type[msgspec.Struct]]] = {
    InvalidRequest: InvalidRequestError,
    ServiceLimitReached: ServiceLimitError,
}
"""The errors whose body is not the usual one."""


def _header(text: str, **schema: Any) -> Json:
    return {"description": text, "schema": schema or {"type": "string"}}


HEADERS: Final[dict[str, Json]] = {
    _REQUEST: _header("Id of the request, which is in the server's log as well"),
    _RETRY: _header("Seconds after which to try again", type="integer", minimum=0),
    _DEPRECATION: _header("Since when the operation is deprecated (RFC 9745)"),
    _RATE_LIMIT: _header(
        "What is left of the limit on requests, and in how many seconds all of it is"
    ),
    _RATE_POLICY: _header("The limit on requests, and of how many seconds it is"),
    _LINK: _header("Where the newer generation is (RFC 8288)"),
}
"""The headers that answers carry."""


def errors_of(route: Route) -> tuple[type[AgentsvcError], ...]:
    """Return every error a route may answer, each once: its own, and those that go without saying."""
    # Any request may turn out not to be well-formed HTTP, by a path or query that is too long.
    given: list[type[AgentsvcError]] = [AgentsvcError, MalformedBody, *route.errors]
    if not route.is_stream:
        given.append(TimedOut)
    if route.scope is not Scope.OPEN:
        given += [NotAuthenticated, TooManyRequests]
    if route.scope in _FORBIDDING:
        given.append(NotAllowed)
    if takes_repeats(route):
        given += [BadRequest, Conflict, RequestInProgress, IdempotencyKeyReused, TooManyRequests]
    if names_in(route.path):
        given.append(NotFound)
    if names_in(route.path) or route.query is not None or route.body is not None:
        given.append(InvalidRequest)
    if route.body is not None:
        given += [BodyTooLarge, UnsupportedMediaType]
    return tuple(sorted(dict.fromkeys(given), key=lambda error: (error.status, error.code)))


def error_answers(route: Route) -> dict[str, Json]:
    """Return what refers to the answer of each status."""
    return {
        str(status): {"$ref": _RESPONSES + _name(errors, route)}
        for status, errors in _by_status(errors_of(route)).items()
    }


def shared_answers(routes: Iterable[Route]) -> dict[str, Json]:
    """Return the answers that operations refer to."""
    return {
        _name(errors, route): _answer_of(errors, route)
        for route in routes
        for errors in _by_status(errors_of(route)).values()
    }


def success(route: Route, schema: Json, told: str) -> Json:
    """Describe the answer to what is right, of which the schema is told in words."""
    content = {"schema": schema} if route.media == JSON else _raw(route)
    names = (_REQUEST, _DEPRECATION, _LINK) if route.is_deprecated else (_REQUEST,)
    names = (*names, _RATE_LIMIT, _RATE_POLICY) if route.scope in OF_USERS else names
    return {
        "description": f"{HTTPStatus(route.status).phrase}: {told}",
        "headers": _refs(*names),
        "content": {route.media: content},
    }


def accepted(route: Route) -> Json:
    """Describe the answer without a body to what was taken."""
    return {
        "description": f"{HTTPStatus.ACCEPTED.phrase}: {route.accepted}.",
        "headers": _refs(_REQUEST, _RATE_LIMIT, _RATE_POLICY),
    }


def stream_answers(route: Route, message: Json) -> dict[str, Json]:
    """Describe the answer of a stream, whose messages have this schema, in both its forms."""
    lines: Json = {
        "type": "string",
        "contentMediaType": route.media,
        "contentSchema": message,
        "description": _LINES,
    }
    return {
        "101": {
            "description": f"Switching Protocols: {_FRAMES}",
            "content": {JSON: {"schema": message}},
        },
        "200": {
            "description": "OK: server-sent events, without an end of their own",
            "headers": _refs(_REQUEST, _RATE_LIMIT, _RATE_POLICY),
            "content": {route.media: {"schema": lines}},
        },
    }


def about(schema: Json, schemas: Schemas) -> str:
    """Say in words what a schema is of."""
    if "$ref" in schema:
        text: str = schemas.find(schema).get("description", "")
        return text.split("\n\n", maxsplit=1)[0]
    if "anyOf" in schema:
        return " Or ".join(about(one, schemas) for one in schema["anyOf"])
    if schema.get("type") == "array":
        inner = schema.get("items", {})
        return f"a list: {about(inner, schemas)}" if "type" not in inner else "a list of texts."
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"]) + "."
    return _IN_WORDS.get(schema.get("type", ""), "bytes.")


def _refs(*headers: str) -> Json:
    return {name: {"$ref": _HEADERS + name} for name in headers}


def _raw(route: Route) -> Json:
    return {"schema": {"type": "string"}} if route.media.startswith("text/") else {}


def _by_status(errors: Iterable[type[AgentsvcError]]) -> dict[int, list[type[AgentsvcError]]]:
    grouped: defaultdict[int, list[type[AgentsvcError]]] = defaultdict(list)
    for error in errors:
        grouped[error.status].append(error)
    return grouped


def _is_form(route: Route) -> bool:
    """Whether this is what the form of a page is sent to, so that errors may be pages."""
    return route.media == HTML and route.body is not None


def _name(errors: list[type[AgentsvcError]], route: Route) -> str:
    name = "-".join(dict.fromkeys(error.code for error in errors))
    return f"{name}-page" if _is_form(route) else name


def _answer_of(errors: list[type[AgentsvcError]], route: Route) -> Json:
    content: Json = {JSON: {"schema": _schema(errors)}}
    if _is_form(route):
        content[HTML] = _raw(route)
    names = [_REQUEST, _RETRY] if any(error.retryable for error in errors) else [_REQUEST]
    return {
        "description": "\n".join(f"`{error.code}`: {_text(error)}" for error in errors),
        "headers": _refs(*names),
        "content": content,
    }


def _schema(errors: list[type[AgentsvcError]]) -> Json:
    others = [error.code for error in errors if error not in _OF_THEIR_OWN]
    own = [_OF_THEIR_OWN[error].__name__ for error in errors if error in _OF_THEIR_OWN]
    options: list[Json] = [{"$ref": _SCHEMAS + name} for name in own]
    if others:
        codes: dict[str, Any] = {"code": {"enum": list(dict.fromkeys(others))}}
        options.append({"$ref": _SCHEMAS + Error.__name__, "properties": codes})
    return options[0] if len(options) == 1 else {"anyOf": options}


def _text(error: type[AgentsvcError]) -> str:
    if error is AgentsvcError:
        return "The server failed on a bug."
    return (error.__doc__ or "").splitlines()[0]
