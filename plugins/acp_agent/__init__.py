"""An agent for editors that speak the Agent Client Protocol: `agentsvc acp`, and a WebSocket at `/acp`.

Its sessions are conversations of a server, in sandboxes there. `connection` has the messages, `updates`
what editors are told of events, `agent` the methods, `remote` the WebSocket, which is off by default.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the WebSocket."""
    from .remote import RemoteAgent  # noqa: PLC0415  # what it imports takes time

    return [RemoteAgent]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer the command."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
