"""The commands `agentsvc sign-in`: invite users to sign in by a provider."""

import click

from agentsvc.cli.extension import ServerChoice, example, get_api, server_options


@click.group("sign-in", epilog=example("agentsvc sign-in invite ann"))
def command() -> None:
    """Let users sign in by OpenID Connect, or by a proxy.

    The server must have `sign_in.enabled` set.
    """


@command.command(epilog=example("agentsvc sign-in invite ann"))
@click.argument("user_name", metavar="USER")
@server_options
def invite(user_name: str, *, server: ServerChoice) -> None:
    """Print a URL for signing in as the user USER, once.

    From then on, the account that was used belongs to this user.
    """
    body = {"user_name": user_name}
    click.echo(get_api(server).call("POST", "/api/v1/sign-in/invitations", body=body)["url"])
