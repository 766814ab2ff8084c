"""Outgoing webhooks: who wants to be told of what, and telling it, signed, in order, at least once.

What is to be told is noted by triggers of the database, in the transaction that makes it true; the
rows of the queue name stored events and hold no copies of them. `service` keeps subscriptions and
shows deliveries, `courier` delivers, `routes` and `commands` are for users and operators.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the delivery, and its routes."""
    from .extension import WebhooksExtension  # noqa: PLC0415  # what it imports takes time

    return [WebhooksExtension]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc webhooks`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
