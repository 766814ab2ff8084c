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


_EVENT_STREAM_TEXT: Final = (
    "Server-sent events. `event` is the `type` of a message, `id` its `id` if it has one, and `data`"
    " its `data` as JSON on one line. Lines that begin with a colon are heartbeats."
)
_WEBSOCKET_TEXT: Final = (
    "a WebSocket, if the client requests one (`Upgrade: websocket`). Each text frame is one message"
    " as JSON. A client that cannot send headers, such as a browser, sends its key in the query, or"
    ' as the first frame: `{"type": "auth", "session_api_key": "..."}`. Other messages of the client'
    " are ignored. The server closes with 1001 when it stops, 1011 after an error, 1013 when the user"
    " has too many connections, 4001 when the key is no longer valid, 4004 when the resource does not"
    " exist, and 4008 when events may be missing; its reason is the id of the last event before the gap."
)
_TYPE_TEXTS: Final = {
    "object": "an object.",
    "string": "a string.",
    "integer": "an integer.",
    "boolean": "true or false.",
    "null": "null.",
}


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """An error; the code is stable, the detail is for people."""

    detail: str
    """What is wrong and what to do about it, for people"""
    code: str
    """Stable error code, for programs"""
    request_id: str


class InvalidRequestError(msgspec.Struct, frozen=True, kw_only=True):
    """The validation errors of a request.

    Lists at most 100 problems; a last item has the number of further ones.
    """

    detail: list[Problem]
    """The validation errors, one per location"""
    code: Literal["invalid_request"]
    """Stable error code, for programs"""
    request_id: str


class ServiceLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that a service has reached."""

    error: Literal["CONCURRENCY_LIMIT_REACHED"]
    """Which limit is reached: the number of running sandboxes of the user"""
    message: str
    """Explanation, for people"""


class ServiceLimitError(msgspec.Struct, frozen=True, kw_only=True):
    """The error for a service that acts for a user whose sandbox limit is reached."""

    detail: ServiceLimit
    """The limit and an explanation"""
    code: Literal["concurrency_limit_reached"]
    """Stable error code, for programs"""
    request_id: str


ERROR_TYPES: Final = (Error, InvalidRequestError, ServiceLimitError)
_OWN_BODIES: Final[dict[type[AgentsvcError], type[msgspec.Struct]]] = {
    InvalidRequest: InvalidRequestError,
    ServiceLimitReached: ServiceLimitError,
}
"""The errors whose body is not `Error`."""


def _header(text: str, **schema: Any) -> Json:
    return {"description": text, "schema": schema or {"type": "string"}}


HEADERS: Final[dict[str, Json]] = {
    _REQUEST: _header("Id of the request, as in the server's log"),
    _RETRY: _header("Seconds to wait before a retry", type="integer", minimum=0),
    _DEPRECATION: _header("Time since which the operation is deprecated (RFC 9745)"),
    _RATE_LIMIT: _header(
        "Remaining requests of the limit, and the seconds until it is fully replenished"
    ),
    _RATE_POLICY: _header("The limit on requests, and its window in seconds"),
    _LINK: _header("URL of the newer generation of the API (RFC 8288)"),
}
"""The response headers by name."""


def errors_of(route: Route) -> tuple[type[AgentsvcError], ...]:
    """Return the distinct errors of a route: declared ones and those of its other fields."""
    # Any request may be malformed HTTP, for example with a path or query that is too long.
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
    """Return references to the shared error responses by status."""
    return {
        str(status): {"$ref": _RESPONSES + _name(errors, route)}
        for status, errors in _by_status(errors_of(route)).items()
    }


def shared_answers(routes: Iterable[Route]) -> dict[str, Json]:
    """Return the error responses that operations refer to, by name."""
    return {
        _name(errors, route): _answer_of(errors, route)
        for route in routes
        for errors in _by_status(errors_of(route)).values()
    }


def success(route: Route, schema: Json, text: str) -> Json:
    """Describe the successful response; `text` is the schema in words."""
    content = {"schema": schema} if route.media == JSON else _raw(route)
    names = (_REQUEST, _DEPRECATION, _LINK) if route.is_deprecated else (_REQUEST,)
    names = (*names, _RATE_LIMIT, _RATE_POLICY) if route.scope in OF_USERS else names
    return {
        "description": f"{HTTPStatus(route.status).phrase}: {text}",
        "headers": _refs(*names),
        "content": {route.media: content},
    }


def accepted(route: Route) -> Json:
    """Describe the 202 response without a body."""
    return {
        "description": f"{HTTPStatus.ACCEPTED.phrase}: {route.accepted}.",
        "headers": _refs(_REQUEST, _RATE_LIMIT, _RATE_POLICY),
    }


def stream_answers(route: Route, message: Json) -> dict[str, Json]:
    """Describe the responses of a stream: server-sent events and a WebSocket."""
    lines: Json = {
        "type": "string",
        "contentMediaType": route.media,
        "contentSchema": message,
        "description": _EVENT_STREAM_TEXT,
    }
    return {
        "101": {
            "description": f"Switching Protocols: {_WEBSOCKET_TEXT}",
            "content": {JSON: {"schema": message}},
        },
        "200": {
            "description": "OK: an endless stream of server-sent events",
            "headers": _refs(_REQUEST, _RATE_LIMIT, _RATE_POLICY),
            "content": {route.media: {"schema": lines}},
        },
    }


def about(schema: Json, schemas: Schemas) -> str:
    """Describe a schema in words."""
    if "$ref" in schema:
        text: str = schemas.find(schema).get("description", "")
        return text.split("\n\n", maxsplit=1)[0]
    if "anyOf" in schema:
        return " Or ".join(about(one, schemas) for one in schema["anyOf"])
    if schema.get("type") == "array":
        inner = schema.get("items", {})
        return f"a list: {about(inner, schemas)}" if "type" not in inner else "a list of strings."
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"]) + "."
    return _TYPE_TEXTS.get(schema.get("type", ""), "bytes.")


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
    """Whether the route handles an HTML form, so that its errors may be HTML pages."""
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
    others = [error.code for error in errors if error not in _OWN_BODIES]
    own = [_OWN_BODIES[error].__name__ for error in errors if error in _OWN_BODIES]
    options: list[Json] = [{"$ref": _SCHEMAS + name} for name in own]
    if others:
        codes: dict[str, Any] = {"code": {"enum": list(dict.fromkeys(others))}}
        options.append({"$ref": _SCHEMAS + Error.__name__, "properties": codes})
    return options[0] if len(options) == 1 else {"anyOf": options}


def _text(error: type[AgentsvcError]) -> str:
    if error is AgentsvcError:
        return "The server failed because of a bug."
    return (error.__doc__ or "").splitlines()[0]
