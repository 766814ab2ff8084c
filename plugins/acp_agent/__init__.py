"""`agentsvc acp`: an agent for editors that speak the Agent Client Protocol, over standard input and output.

Its sessions are conversations of a server, in sandboxes there. `connection` has the messages, `updates`
what editors are told of events, `agent` the methods. No server loads it.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer the command."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
