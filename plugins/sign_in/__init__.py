"""Sign-in of browsers by OpenID Connect, or by the header of a proxy, beside API keys and login links.

`provider` asks a provider and checks what it says, `identities` keeps who is which user, `roles` says
what users may do, `routes` has the API. What begins is a login as any other, see `agentsvc.accounts`.
"""

from collections.abc import Iterable

import click

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the API."""
    from .routes import SignIn  # noqa: PLC0415  # what it imports takes time

    return [SignIn]


@hookimpl
def agentsvc_register_commands() -> Iterable[click.Command]:
    """Offer `agentsvc sign-in`."""
    from .commands import command  # noqa: PLC0415  # what it imports takes time

    return [command]
