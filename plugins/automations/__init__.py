"""Automations: conversations that start on a schedule, by a webhook, or by hand.

What is due becomes a run, a row with a key of its own; a run becomes a conversation in the
transaction that creates its start task. `service` keeps automations, `scheduler` makes and starts
runs, `follower` sees how they end, `routes` and `commands` are for users.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the scheduler, and its routes."""
    from .extension import AutomationsExtension  # noqa: PLC0415  # what it imports takes time

    return [AutomationsExtension]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc automations`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
