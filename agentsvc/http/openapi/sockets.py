"""Socket.IO connections: path items without an operation, as OpenAPI cannot describe them.

The extension `x-messages` lists the events that are `sent` by the server and `taken` from clients.
"""

from collections.abc import Mapping
from typing import Any

from agentsvc.http.openapi.parameters import query_parameters
from agentsvc.http.openapi.schemas import Json, Schemas
from agentsvc.http.routes import Socket


def socket_types(socket: Socket) -> list[Any]:
    """Return the types of a socket's query and messages."""
    messages = (*socket.sent.values(), *socket.taken.values())
    return [socket.query, *(kind for kinds in messages for kind in kinds)]


def socket_item(socket: Socket, schemas: Schemas) -> Json:
    """Return the path item of a socket."""
    return {
        "summary": socket.summary,
        "description": socket.text,
        "parameters": query_parameters(socket.query, schemas, {}),
        "x-messages": {
            "sent": _messages(socket.sent, schemas),
            "taken": _messages(socket.taken, schemas),
        },
    }


def _messages(named: Mapping[str, tuple[Any, ...]], schemas: Schemas) -> Json:
    return {name: {"anyOf": [*map(schemas.of, kinds)]} for name, kinds in named.items()}
