"""`agentsvc sandboxes`: lists, shows and controls sandboxes of a server."""

import itertools
from typing import Any, Final

import click

from agentsvc.cli.client import PAGE, Api
from agentsvc.cli.options import example, json_option, yes_option
from agentsvc.cli.server import IdParam, ServerChoice, found_options, get_api, server_options
from agentsvc.cli.talk import SANDBOXES, only
from agentsvc.cli.text import clean, columns, confirm, fields, moment, print_found, short

_HIDDEN: Final = ("session_api_key",)


def _find(api: Api, sandbox_id: str) -> dict[str, Any]:
    found = [one for one in api.call("GET", SANDBOXES, query={"id": sandbox_id}) if one]
    if not found:
        everything = api.pages(f"{SANDBOXES}/search")
        found = [one for one in everything if one["id"].startswith(sandbox_id)]
    return only(found, "sandboxes", sandbox_id)


_of_sandbox: Final = found_options(_find, IdParam(SANDBOXES))


@click.group(
    "sandboxes", epilog=example("agentsvc sandboxes list", "agentsvc sandboxes logs 5WPXcz")
)
def command() -> None:
    """List, show, pause, resume and delete sandboxes."""


@command.command("list", epilog=example("agentsvc sandboxes list --json"))
@click.option("--limit", default=50, type=click.IntRange(1, 10_000), help="Maximum; default: 50.")
@json_option
@server_options
def list_sandboxes(*, limit: int, as_json: bool, server: ServerChoice) -> None:
    """List sandboxes, newest first."""
    found = get_api(server).pages(f"{SANDBOXES}/search", {"limit": min(limit, PAGE)})
    items = [_shown(item) for item in itertools.islice(found, limit)]
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
    table = columns(("ID", "STATUS", "SPEC", "ISOLATION", "CREATED (UTC)", "DETAIL"), rows)
    print_found(items, table, as_json=as_json)


@command.command(epilog=example("agentsvc sandboxes show 5WPXcz"))
@json_option
@_of_sandbox
def show(*, as_json: bool, api: Api, found: dict[str, Any]) -> None:
    """Show the sandbox with this ID or prefix of an ID."""
    del api
    shown = _shown(found)
    print_found(shown, fields(shown), as_json=as_json)


@command.command(epilog=example("agentsvc sandboxes pause 5WPXcz"))
@_of_sandbox
def pause(*, api: Api, found: dict[str, Any]) -> None:
    """Pause the sandbox with this ID; its files are kept."""
    _request(api, found, "pause", "is being paused")


@command.command(epilog=example("agentsvc sandboxes resume 5WPXcz"))
@_of_sandbox
def resume(*, api: Api, found: dict[str, Any]) -> None:
    """Resume the paused sandbox with this ID, or restart a failed one on its files."""
    _request(api, found, "resume", "is being resumed")


@command.command(epilog=example("agentsvc sandboxes delete 5WPXcz --yes"))
@yes_option
@_of_sandbox
def delete(*, yes: bool, api: Api, found: dict[str, Any]) -> None:
    """Delete the sandbox with this ID and all of its files."""
    confirm(f"Delete sandbox {found['id']} and all of its files?", is_agreed=yes)
    api.call("DELETE", f"{SANDBOXES}/{found['id']}")
    click.echo(f"{found['id']} is being deleted", err=True)


@command.command(epilog=example("agentsvc sandboxes logs 5WPXcz | grep -i error"))
@_of_sandbox
def logs(*, api: Api, found: dict[str, Any]) -> None:
    """Print the last log lines of the sandbox with this ID."""
    for line in api.call("GET", f"{SANDBOXES}/{found['id']}/logs")["lines"]:
        click.echo(clean(line))


def _request(api: Api, found: dict[str, Any], what: str, done: str) -> None:
    api.call("POST", f"{SANDBOXES}/{found['id']}/{what}")
    click.echo(f"{found['id']} {done}", err=True)


def _shown(sandbox: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sandbox.items() if name not in _HIDDEN}
