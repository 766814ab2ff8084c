"""Connections of Socket.IO: paths without an operation, since OpenAPI has no word for them.

`x-messages` says under which names what is `sent` by the server and `taken` from clients.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentsvc.http.openapi.parameters import query_parameters
from agentsvc.http.openapi.schemas import Json
from agentsvc.http.routes import Route, Socket


def sockets_of(routes: Iterable[Route]) -> list[Socket]:
    """Return the sockets of routes."""
    return [route.socket for route in routes if route.socket is not None]


def socket_types(socket: Socket) -> list[Any]:
    """Return the types of a socket in the order in which `socket_item` expects their schemas."""
    messages = (*socket.sent.values(), *socket.taken.values())
    return [socket.query, *(kind for kinds in messages for kind in kinds)]


def socket_item(socket: Socket, schemas: Iterator[Json], components: dict[str, Json]) -> Json:
    """Describe a socket, taking the schemas of its types from an iterator."""
    parameters = query_parameters(next(schemas), components, {})
    return {
        "summary": socket.summary,
        "description": socket.text,
        "parameters": parameters,
        "x-messages": {
            "sent": _messages(socket.sent, schemas),
            "taken": _messages(socket.taken, schemas),
        },
    }


def _messages(named: Mapping[str, tuple[Any, ...]], schemas: Iterator[Json]) -> Json:
    return {name: {"anyOf": [next(schemas) for _ in kinds]} for name, kinds in named.items()}
