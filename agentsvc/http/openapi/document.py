"""The whole description of a server."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from agentsvc import __version__
from agentsvc.http.openapi.answers import ERROR_TYPES, HEADERS, shared_answers
from agentsvc.http.openapi.operations import methods_of, operation, tag_of, types_of
from agentsvc.http.openapi.schemas import Json, Schemas, as_answer, reachable, schemas_of
from agentsvc.http.openapi.sockets import socket_item, socket_types
from agentsvc.http.path_parts import plain_path
from agentsvc.http.routes import KEY_PARAMETER, LOGIN_HEADER, SERVICE_HEADER, Route

_ABOUT: Final = """\
Runs conversations with software agents inside sandboxes.

V1 is under `/api/v1`; V0, under `/api`, is deprecated. Every operation but the open ones needs an
API key, in any of three headers. Errors have one shape: `detail` for people, a stable `code`, and
the `request_id` that is in the log of the server; in a 422 `detail` is a list of what does not fit,
each with its place (`loc`), its kind (`type`) and a text (`msg`).

Times are ISO 8601 in UTC with `Z` unless a field says otherwise; sizes are bytes, amounts US dollars.
A field of a request that may be null and is left out counts as null unless its text says otherwise;
unknown fields of a request are not read unless a schema forbids them. Answers have every field.

Streams carry messages of one form: `type`, `data` and, where they have a number, `id`. The path
`/socket.io/` has no operation of HTTP: its `x-messages` are the events of Socket.IO that the server
sends and takes.
"""

_TAGS: Final = {
    "app-conversations": "Conversations: start, list, change and delete them, and talk to the agent",
    "conversations": "Messages for conversations that are not ready yet",
    "conversation": "What has happened in a conversation",
    "events": "What has happened in a conversation, as clients of 2025 ask for it",
    "sandboxes": "Where conversations run",
    "sandbox-specs": "What sandboxes are made of",
    "sandbox-rules": "What becomes of sandboxes that nobody uses",
    "archives": "Saved workspaces",
    "webhooks": "What sandboxes call back",
    "shares": "Links that show a conversation to whoever has them",
    "shared": "Conversations that are shown to whoever has a link",
    "settings": "Settings of a user, and saved language models",
    "secrets": "Secrets of a user, and tokens of git providers",
    "skills": "What agents have learned",
    "users": "The user who asks",
    "git": "Repositories, branches and tasks at git providers",
    "config": "Language models to choose from",
    "web-client": "What a web front end asks for at page load",
    "keys": "API keys of a user",
    "mcp": "The Model Context Protocol, for other agents",
    "logins": "Logins of browsers",
    "oauth": "Login of programs that have no browser (RFC 8628)",
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
        "X-Access-Token", "Signed pass for one secret, which the server has given to a sandbox"
    ),
    "basic": _http("basic", f"{_OF_USER} as the password; the name is not read"),
    "login": _key(
        LOGIN_HEADER,
        "Login of a browser, for pages of this server: what a page got when it logged"
        " in. It counts together with the cookie that the browser got then",
    ),
    "modelToken": _http("bearer", "Token for the model of one conversation, which its sandbox has"),
    "runtimeKey": _key("X-API-Key", f"{_OF_USER}, as clients of the remote runtime API send it"),
    "serviceKey": _key(
        SERVICE_HEADER, "API key of the scope `service`, which an administrator made for a service"
    ),
    "queryKey": _key(
        KEY_PARAMETER,
        f"{_OF_USER}, for browsers, which send no headers with a stream",
        place="query",
    ),
}


def describe(routes: Sequence[Route], *, prefix: str = "") -> Json:
    """Return the description of the routes, all below a prefix, as an OpenAPI 3.1 document."""
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
    """Return the schemas that are referred to; one that is only sent says all it always has."""
    components = schemas.components
    kinds = [kind for route in routes for kind in (route.query, route.body) if kind is not None]
    read = reachable([schemas.of(kind) for kind in kinds], components)
    used = reachable([paths, answers], components)
    return {
        name: schema if name in read else as_answer(schema)
        for name, schema in sorted(components.items())
        if name in used
    }


def _tag(name: str) -> Json:
    text: Any = _TAGS.get(name.removeprefix("V0: "))
    return {"name": name, "description": text} if text else {"name": name}
