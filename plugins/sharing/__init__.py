"""Shared conversations: links that show one to whoever has them, without a key and read-only.

`links` keeps them, `masking` and `redaction` say what of an event is shown, `page` is a conversation as
one HTML file, `routes` has the API, for readers as published front ends call it.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the API."""
    from .routes import Sharing  # noqa: PLC0415  # what it imports takes time

    return [Sharing]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc share`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
