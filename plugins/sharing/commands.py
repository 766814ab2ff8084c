"""The commands `agentsvc share`: manage links to conversations, and export conversations."""

from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from agentsvc.base import now, to_stored
from agentsvc.cli.extension import (
    ServerChoice,
    columns,
    example,
    find_conversation,
    get_api,
    json_option,
    print_found,
    save,
    server_options,
)

from .redaction import Redaction

_SHARES: Final = "/api/v1/shares"
_redact_option = click.option(
    "--redact",
    multiple=True,
    type=click.Choice([one.value for one in Redaction]),
    help="What to hide; may be given several times.",
)


@click.group("share", epilog=example("agentsvc share add 7c9e66797425 --days 7 --redact paths"))
def command() -> None:
    """Share conversations by links that need no key.

    The server must allow it by `sharing.enabled`. Your secrets are never shown.
    """


@command.command(epilog=example("agentsvc share add 7c9e66797425 --days 7 --redact paths"))
@click.argument("conversation_id", metavar="ID")
@click.option("--days", type=click.IntRange(1, 36500), help="Days until the link expires.")
@_redact_option
@server_options
def add(
    conversation_id: str, *, days: int | None, redact: tuple[str, ...], server: ServerChoice
) -> None:
    """Create a link to the conversation with this ID, and print its URL."""
    api = get_api(server)
    body = {
        "conversation_id": find_conversation(api, conversation_id)["id"],
        "expires_at": None if days is None else to_stored(now() + timedelta(days=days)),
        "redact": redact,
    }
    click.echo(api.call("POST", _SHARES, body=body)["url"])


@command.command("list", epilog=example("agentsvc share list"))
@json_option
@server_options
def list_links(*, as_json: bool, server: ServerChoice) -> None:
    """List your valid links."""
    found = get_api(server).call("GET", _SHARES)
    rows = [
        (one["id"], one["conversation_id"], one["expires_at"] or "never", ",".join(one["redact"]))
        for one in found
    ]
    print_found(found, columns(("LINK", "CONVERSATION", "ENDS", "REDACTED"), rows), as_json=as_json)


@command.command(epilog=example("agentsvc share revoke 7c9e6679742540de944be07fc1f90ae7"))
@click.argument("link", metavar="LINK")
@server_options
def revoke(link: str, *, server: ServerChoice) -> None:
    """Revoke a link, given by its id or its URL, at once."""
    link_id = link.rstrip("/").rpartition("/")[2]
    get_api(server).call("DELETE", f"{_SHARES}/{link_id}")
    click.echo(f"link {link_id} is revoked", err=True)


@command.command(epilog=example("agentsvc share export 7c9e66797425 --output work.html"))
@click.argument("conversation_id", metavar="ID")
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File to write, - for standard output.",
)
@_redact_option
@server_options
def export(
    conversation_id: str, *, output: Path, redact: tuple[str, ...], server: ServerChoice
) -> None:
    """Write the conversation with this ID to an HTML file that needs no script and no server."""
    api = get_api(server)
    found = find_conversation(api, conversation_id)
    path = f"/api/v1/app-conversations/{found['id']}/page"
    save(api.parts(path, {"redact": redact}), output)
