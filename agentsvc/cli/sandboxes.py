"""`agentsvc sandboxes`: lists, shows and steers sandboxes of a server."""

from typing import Any, Final

import click

from agentsvc.cli.client import PAGE, Api
from agentsvc.cli.options import example, json_option, yes_option
from agentsvc.cli.server import Id, ServerChoice, get_api, server_options
from agentsvc.cli.talk import SANDBOXES, only
from agentsvc.cli.text import columns, confirm, fields, moment, print_found, short

_HIDDEN: Final = ("session_api_key",)


@click.group(
    "sandboxes", epilog=example("agentsvc sandboxes list", "agentsvc sandboxes logs 5WPXcz")
)
def command() -> None:
    """List, show and steer the sandboxes of a server."""


@command.command("list", epilog=example("agentsvc sandboxes list --json"))
@click.option("--limit", default=50, type=click.IntRange(1, 10_000), help="How many; otherwise 50.")
@json_option
@server_options
def list_sandboxes(*, limit: int, as_json: bool, server: ServerChoice) -> None:
    """List sandboxes, newest first."""
    found = get_api(server).pages(f"{SANDBOXES}/search", {"limit": min(limit, PAGE)})
    items = [_shown(item) for item, _ in zip(found, range(limit), strict=False)]
    rows = [
        (
            item["id"],
            item["status"],
            item["sandbox_spec_id"],
            item["isolation"] or "",
            moment(item["created_at"]),
            short(item["status_detail"]),
        )
        for item in items
    ]
    print_found(
        items,
        columns(("ID", "STATUS", "SPEC", "ISOLATION", "CREATED (UTC)", "DETAIL"), rows),
        as_json=as_json,
    )


@command.command(epilog=example("agentsvc sandboxes show 5WPXcz"))
@click.argument("sandbox_id", type=Id(SANDBOXES), metavar="ID")
@json_option
@server_options
def show(sandbox_id: str, *, as_json: bool, server: ServerChoice) -> None:
    """Show the sandbox with this ID; its beginning is enough."""
    found = _shown(_find(get_api(server), sandbox_id))
    print_found(found, fields(found), as_json=as_json)


@command.command(epilog=example("agentsvc sandboxes pause 5WPXcz"))
@click.argument("sandbox_id", type=Id(SANDBOXES), metavar="ID")
@server_options
def pause(sandbox_id: str, *, server: ServerChoice) -> None:
    """Pause the sandbox with this ID; its files stay."""
    _steer(server, sandbox_id, "pause", "is being paused")


@command.command(epilog=example("agentsvc sandboxes resume 5WPXcz"))
@click.argument("sandbox_id", type=Id(SANDBOXES), metavar="ID")
@server_options
def resume(sandbox_id: str, *, server: ServerChoice) -> None:
    """Let the paused sandbox with this ID go on."""
    _steer(server, sandbox_id, "resume", "is being resumed")


@command.command(epilog=example("agentsvc sandboxes delete 5WPXcz --yes"))
@click.argument("sandbox_id", type=Id(SANDBOXES), metavar="ID")
@yes_option
@server_options
def delete(sandbox_id: str, *, yes: bool, server: ServerChoice) -> None:
    """Delete the sandbox with this ID, with all of its files."""
    api = get_api(server)
    found = _find(api, sandbox_id)
    confirm(f"Delete sandbox {found['id']} with all of its files?", is_agreed=yes)
    api.call("DELETE", f"{SANDBOXES}/{found['id']}")
    click.echo(f"{found['id']} is being deleted", err=True)


@command.command(epilog=example("agentsvc sandboxes logs 5WPXcz | grep -i error"))
@click.argument("sandbox_id", type=Id(SANDBOXES), metavar="ID")
@server_options
def logs(sandbox_id: str, *, server: ServerChoice) -> None:
    """Print the last lines that the sandbox with this ID has written."""
    api = get_api(server)
    found = _find(api, sandbox_id)
    for line in api.call("GET", f"{SANDBOXES}/{found['id']}/logs")["lines"]:
        click.echo(line)


def _steer(server: ServerChoice, sandbox_id: str, what: str, done: str) -> None:
    api = get_api(server)
    found = _find(api, sandbox_id)
    api.call("POST", f"{SANDBOXES}/{found['id']}/{what}")
    click.echo(f"{found['id']} {done}", err=True)


def _find(api: Api, sandbox_id: str) -> dict[str, Any]:
    asked = api.call("GET", SANDBOXES, query={"id": sandbox_id})
    if found := [one for one in asked if one]:
        return only(found, "sandboxes", sandbox_id)
    everything = api.pages(f"{SANDBOXES}/search")
    return only(
        [one for one in everything if one["id"].startswith(sandbox_id)], "sandboxes", sandbox_id
    )


def _shown(sandbox: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sandbox.items() if name not in _HIDDEN}
