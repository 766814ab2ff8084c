"""Attempts: one task given to several agents at once, compared, and one of them gone on with.

Each attempt is a conversation in a sandbox of its own, a fork or a new one. `service` keeps the sets,
`runner` takes each attempt from its start to its end, `measuring` says what it has changed and how its
tests end, `routes` and `commands` are for users.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer attempts, and their routes."""
    from .extension import AttemptsExtension  # noqa: PLC0415  # what it imports takes time

    return [AttemptsExtension]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc attempts`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
