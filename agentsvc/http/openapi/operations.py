"""Converts routes to operations of the OpenAPI document."""

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from msgspec import UNSET

from agentsvc.base import MemberDocs
from agentsvc.http.openapi.answers import about, accepted, error_answers, stream_answers, success
from agentsvc.http.openapi.parameters import IDEMPOTENCY_KEY, path_parameters, query_parameters
from agentsvc.http.openapi.schemas import Json, Schemas, without_null
from agentsvc.http.routes import (
    JSON,
    OF_USERS,
    SERVICE_HEADER,
    Route,
    Scope,
    Undescribed,
    takes_repeats,
    types_in,
)

V0_TAG: Final = "V0"
_V1_PREFIX: Final = "/api/v1/"
_METHODS: Final = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH")
_ANY: Final = "*"
_SEPARATORS: Final = re.compile(r"[^A-Za-z0-9]+")

_TAGS: Final = {
    **dict.fromkeys(("alive", "health", "ready", "server_info", "openapi.json", "docs"), "server"),
    "login": "logins",
    ".well-known": "mcp",
    "login.css": "logins",
    "reset-settings": "settings",
    "add-git-providers": "secrets",
    "unset-provider-tokens": "secrets",
    **dict.fromkeys(("shared-conversations", "shared-events"), "shared"),
}
"""Tags by the first path segment, if they differ."""

USER_KEYS: Final = ("apiKey", "bearer", "accessToken", "login")
_SECURITY: Final[dict[Scope, tuple[str, ...]]] = {
    Scope.OPEN: (),
    **dict.fromkeys(OF_USERS, USER_KEYS),
    Scope.SANDBOX: ("sandboxKey",),
    Scope.MODEL: ("modelToken",),
    Scope.PASS: ("pass",),
}


def types_of(route: Route) -> list[Any]:
    """Return the parameter, body, response and message types of a route."""
    kinds = [*types_in(route).values(), route.query, route.body, answer_type(route), route.message]
    return [kind for kind in kinds if kind is not None]


def answer_type(route: Route) -> Any:
    """Return the type of the JSON response; `Any` if it is no JSON or undescribed."""
    is_known = route.media == JSON and route.answer not in (Undescribed, None)
    return route.answer if is_known else Any


def methods_of(route: Route) -> list[str]:
    """Return the methods of a route in lower case; all methods for `*`."""
    return [method.lower() for method in (_METHODS if route.method == _ANY else [route.method])]


def operation(route: Route, method: str, schemas: Schemas) -> Json:
    """Return the operation object of a route and method."""
    described: Json = {
        "operationId": operation_id(route, method),
        "summary": route.summary,
        "description": _description(route),
        "tags": [tag_of(route)],
        "security": [{name: []} for name in security_of(route)],
    }
    if route.is_deprecated:
        described["deprecated"] = True
    parameters = path_parameters(route, schemas)
    if route.query is not None:
        parameters += query_parameters(route.query, schemas, route.example.query)
    if takes_repeats(route):
        parameters.append(IDEMPOTENCY_KEY)
    if parameters:
        described["parameters"] = parameters
    if route.body is not None:
        described["requestBody"] = _request_body(route, schemas.of(route.body))
    described["responses"] = error_answers(route)
    if route.answer is not None:
        schema = schemas.of(answer_type(route))
        text = about(schema, schemas) if route.media == JSON else f"`{route.media}`."
        described["responses"][str(int(route.status))] = success(route, schema, text)
    if route.accepted:
        described["responses"]["202"] = accepted(route)
    if route.message is not None:
        described["responses"] |= stream_answers(route, schemas.of(route.message))
    described["responses"] = dict(sorted(described["responses"].items()))
    return described


def _description(route: Route) -> str:
    """Return the body of the handler's docstring, and the required key."""
    _, _, text = (inspect.getdoc(route.handler) or "").partition("\n\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(filter(None, (*paragraphs, _keys()[route.scope.name])))


@functools.cache
def _keys() -> Mapping[str, str]:
    """Return the descriptions of the scopes."""
    return MemberDocs().members(Scope)


def operation_id(route: Route, method: str) -> str:
    """Return a stable id derived from method and path."""
    words = _SEPARATORS.sub("_", route.path.removeprefix("/api/v1").removeprefix("/api"))
    return "_".join(filter(None, (_generation(route), method, words.strip("_"))))


def tag_of(route: Route) -> str:
    """Return the tag of an operation, which is derived from the first segment of its path."""
    path = route.path.removeprefix(_V1_PREFIX).removeprefix("/api/").strip("/")
    word = path.split("/")[0]
    if route.is_deprecated:
        return f"{V0_TAG}: {_TAGS.get(word, word)}"
    return _TAGS.get(word, word)


def security_of(route: Route) -> tuple[str, ...]:
    """Return the alternative security schemes of a route."""
    keys = _SECURITY[route.scope]
    more = {"basic": route.is_page, "queryKey": route.takes_query_key}
    more["serviceKey"] = route.key_header == SERVICE_HEADER
    more["runtimeKey"] = bool(route.key_header) and not more["serviceKey"]
    return (*keys, *(name for name, is_taken in more.items() if is_taken and keys))


def _generation(route: Route) -> str:
    if route.is_deprecated:
        return "v0"
    return "v1" if route.path.startswith("/api/") else ""


def _request_body(route: Route, schema: Json) -> Json:
    content: Json = {"schema": without_null(schema)}
    if route.example.body is not UNSET:
        content["example"] = route.example.body
    described: Json = {"content": dict.fromkeys(route.reads, content)}
    if type(None) not in get_args(route.body):
        described["required"] = True
    return described
