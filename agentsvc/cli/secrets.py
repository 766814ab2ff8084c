"""`agentsvc secrets`: manages the secrets that agents may use."""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import V1, RequestRefused
from agentsvc.cli.options import example, json_option
from agentsvc.cli.server import ServerChoice, get_api, server_options
from agentsvc.cli.settings import read_value
from agentsvc.cli.text import columns, print_found, short

_SECRETS: Final = f"{V1}/secrets"


@click.group(
    "secrets", epilog=example("agentsvc secrets set DEPLOY_KEY < key.txt", "agentsvc secrets list")
)
def command() -> None:
    """Manage secrets for your agents. A command gets the value of a secret if it names it."""


@command.command("list", epilog=example("agentsvc secrets list"))
@json_option
@server_options
def list_secrets(*, as_json: bool, server: ServerChoice) -> None:
    """List the names of your secrets; values are never shown."""
    found = list(get_api(server).pages(f"{_SECRETS}/search"))
    rows = [(one["name"], short(one["description"])) for one in found]
    print_found(found, columns(("NAME", "DESCRIPTION"), rows), as_json=as_json)


@command.command(
    "set",
    epilog=example(
        'agentsvc secrets set DEPLOY_KEY --description "For the staging host" < key.txt'
    ),
)
@click.argument("name", metavar="NAME")
@click.option("--description", metavar="TEXT", help="Purpose of the secret; agents see it.")
@server_options
def set_secret(name: str, *, description: str | None, server: ServerChoice) -> None:
    """Store a secret. Its value is prompted for, or read from standard input."""
    api = get_api(server)
    body = {"name": name, "value": read_value(name), "description": description}
    api.call("POST", _SECRETS, body=body)
    click.echo(f"{name} is stored", err=True)


@command.command(epilog=example("agentsvc secrets delete DEPLOY_KEY"))
@click.argument("name", metavar="NAME")
@server_options
def delete(name: str, *, server: ServerChoice) -> None:
    """Delete a secret."""
    try:
        get_api(server).call("DELETE", f"{_SECRETS}/{quote(name, safe='')}")
    except RequestRefused as exc:
        if exc.status != HTTPStatus.NOT_FOUND:
            raise
        raise CommandFailed(
            f"there is no secret `{name}`", "run `agentsvc secrets list` to see them"
        ) from exc
    click.echo(f"{name} is deleted", err=True)
