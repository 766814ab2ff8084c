"""The complete OpenAPI document of a server."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentsvc import __version__
from agentsvc.http.openapi.answers import ERROR_TYPES, HEADERS, shared_answers
from agentsvc.http.openapi.operations import methods_of, operation, tag_of, types_of
from agentsvc.http.openapi.schemas import Json, Schemas, as_response_schema, reachable, schemas_of
from agentsvc.http.openapi.sockets import socket_item, socket_types
from agentsvc.http.path_parts import plain_path
from agentsvc.http.routes import KEY_PARAMETER, LOGIN_HEADER, SERVICE_HEADER, Route

_ABOUT: Final = """\
Runs conversations with software agents inside sandboxes.

V1 is under `/api/v1`; V0, under `/api`, is deprecated. All operations except open ones need an API
key, in any of three headers. All errors have the same format: `detail` for people, a stable `code`, and
the `request_id` that is in the log of the server; in a 422, `detail` is a list of validation errors,
each with its location (`loc`), kind (`type`) and message (`msg`).

Times are ISO 8601 in UTC with `Z` unless a field says otherwise; sizes are bytes, amounts US dollars.
A nullable field of a request that is omitted counts as null unless its description says otherwise;
unknown fields of a request are ignored unless a schema forbids them. Responses have all fields.

The messages of streams have the fields `type`, `data` and, if they are numbered, `id`. The path
`/socket.io/` has no HTTP operation: its `x-messages` are the Socket.IO events that the server emits
and accepts.
"""

_TAGS: Final = {
    "app-conversations": "Conversations: start, list, change and delete them, and talk to the agent",
    "conversations": "Messages for conversations that are not ready yet",
    "conversation": "Events of a conversation",
    "events": "Events of a conversation, for clients of 2025",
    "sandboxes": "Sandboxes, in which conversations run",
    "sandbox-specs": "Templates for sandboxes",
    "sandbox-rules": "Rules for idle sandboxes",
    "archives": "Saved workspaces",
    "webhooks": "Callbacks from sandboxes",
    "shares": "Share links of conversations",
    "shared": "Conversations that are public through a share link",
    "settings": "Settings of a user, and saved language models",
    "secrets": "Secrets of a user, and tokens of git providers",
    "skills": "Skills of agents",
    "users": "The calling user",
    "git": "Repositories, branches and tasks at git providers",
    "config": "Language models to choose from",
    "web-client": "Configuration for web front ends",
    "keys": "API keys of a user",
    "mcp": "The Model Context Protocol, for other agents",
    "logins": "Logins of browsers",
    "oauth": "Device login of programs without a browser (RFC 8628)",
    "server": "The server itself",
}


def _key(name: str, text: str, *, place: str = "header") -> Json:
    return {"type": "apiKey", "in": place, "name": name, "description": text}


def _http(scheme: str, text: str) -> Json:
    return {"type": "http", "scheme": scheme, "description": text}


_OF_USER: Final = "API key of a user"
_SCHEMES: Final[dict[str, Json]] = {
    "apiKey": _key("X-Session-API-Key", _OF_USER),
    "bearer": _http("bearer", _OF_USER),
    "accessToken": _key("X-Access-Token", _OF_USER),
    "sandboxKey": _key("X-Session-API-Key", "Session key of a running sandbox"),
    "pass": _key(
        "X-Access-Token", "Signed pass for one secret, which the server has issued to a sandbox"
    ),
    "basic": _http("basic", f"{_OF_USER} as the password; the user name is ignored"),
    "login": _key(
        LOGIN_HEADER,
        "Page token of a browser's login, for pages of this server. It is valid only"
        " together with the cookie that was set at the login",
    ),
    "modelToken": _http("bearer", "Model token of one conversation, which its sandbox holds"),
    "runtimeKey": _key("X-API-Key", f"{_OF_USER}, as clients of the remote runtime API send it"),
    "serviceKey": _key(
        SERVICE_HEADER,
        "API key of the scope `service`, which an administrator makes for a service",
    ),
    "queryKey": _key(
        KEY_PARAMETER,
        f"{_OF_USER}, for browsers, which send no headers with a stream",
        place="query",
    ),
}


def describe(routes: Sequence[Route], *, prefix: str = "") -> Json:
    """Return the OpenAPI 3.1 document of routes below a path prefix."""
    sockets = [route.socket for route in routes if route.socket is not None]
    types = [kind for route in routes for kind in types_of(route)]
    types += [kind for socket in sockets for kind in socket_types(socket)]
    schemas = schemas_of([*types, *ERROR_TYPES])
    paths = _paths(routes, schemas)
    paths |= {one.path: socket_item(one, schemas) for one in sockets}
    answers = shared_answers(routes)
    return {
        "openapi": "3.1.1",
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "info": {"title": "agentsvc", "version": __version__, "description": _ABOUT},
        "servers": [{"url": prefix or "/"}],
        "tags": [_tag(name) for name in dict.fromkeys(tag_of(route) for route in routes)],
        "paths": paths,
        "components": {
            "schemas": _components(routes, paths, answers, schemas),
            "responses": dict(sorted(answers.items())),
            "headers": HEADERS,
            "securitySchemes": _SCHEMES,
        },
    }


def _paths(routes: Iterable[Route], schemas: Schemas) -> dict[str, Json]:
    paths: defaultdict[str, Json] = defaultdict(dict)
    for route in routes:
        for method in methods_of(route):
            paths[plain_path(route.path)][method] = operation(route, method, schemas)
    return dict(paths)


def _components(
    routes: Iterable[Route], paths: dict[str, Json], answers: dict[str, Json], schemas: Schemas
) -> dict[str, Json]:
    """Return the referenced schemas; in those used only by responses, defaults are required."""
    components = schemas.components
    kinds = [kind for route in routes for kind in (route.query, route.body) if kind is not None]
    read = reachable([schemas.of(kind) for kind in kinds], components)
    used = reachable([paths, answers], components)
    return {
        name: schema if name in read else as_response_schema(schema)
        for name, schema in sorted(components.items())
        if name in used
    }


def _tag(name: str) -> Json:
    text: Any = _TAGS.get(name.removeprefix("V0: "))
    return {"name": name, "description": text} if text else {"name": name}
