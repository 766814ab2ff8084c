"""`agentsvc logout`: forgets the server of `agentsvc login`."""

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.options import example
from agentsvc.cli.server import find_login, login_file


@click.command("logout", epilog=example("agentsvc logout"))
def command() -> None:
    """Forget the server that you logged in to, and its key; the key is not revoked."""
    login = find_login()
    if login is None:
        raise CommandFailed("you are not logged in")
    login_file().unlink()
    click.echo(f"logged out from {login.url}")
