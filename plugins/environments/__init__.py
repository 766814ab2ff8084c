"""Prepared environments: the set-up of a repository done once, and copied into each new sandbox.

`preparing` runs the set-up in a sandbox of its own and has its backend keep the files as a layer,
`service` keeps environments and tells starts which one they begin with, `routes` and `commands` are
for users.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer environments, and their routes."""
    from .extension import EnvironmentsExtension  # noqa: PLC0415  # what it imports takes time

    return [EnvironmentsExtension]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc environments`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
