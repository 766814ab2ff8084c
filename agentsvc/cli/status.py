"""`agentsvc status`: shows the server, the sandboxes, and conversations that need attention."""

import itertools
from collections import Counter
from typing import Any

import click

from agentsvc.cli.options import example, json_option
from agentsvc.cli.server import ServerChoice, get_api, server_options
from agentsvc.cli.talk import CONVERSATIONS, SANDBOXES, Record
from agentsvc.cli.text import SHORT_ID, json_text, short

_MAX = 500
_WAITING = "waiting_for_confirmation"


@click.command("status", epilog=example("agentsvc status", "agentsvc status --json"))
@json_option
@server_options
def command(*, as_json: bool, server: ServerChoice) -> None:
    """Show the server, your sandboxes, and conversations that work or wait for confirmation."""
    api = get_api(server)
    info = api.call("GET", "/server_info")
    conversations = list(itertools.islice(api.pages(f"{CONVERSATIONS}/search"), _MAX))
    sandboxes = Counter(one["status"] for one in api.pages(f"{SANDBOXES}/search"))
    waiting = [one for one in conversations if one["execution_status"] == _WAITING]
    working = [one for one in conversations if one["execution_status"] == "running"]
    if as_json:
        shown: dict[str, Any] = {
            "url": api.url,
            "version": info.get("agentsvc_version"),
            "agent_server_version": info.get("version"),
            "sandboxes": dict(sandboxes),
            "working": [one["id"] for one in working],
            "waiting": [one["id"] for one in waiting],
        }
        click.echo(json_text(shown))
        return
    versions = f"agentsvc {info.get('agentsvc_version')}, agent server {info.get('version')}"
    click.echo(f"server     {api.url}, {versions}")
    states = ", ".join(f"{number} {name.lower()}" for name, number in sorted(sandboxes.items()))
    click.echo(f"sandboxes  {states or 'none'}")
    _list("to confirm", waiting)
    _list("working   ", working)


def _list(label: str, found: list[Record]) -> None:
    if not found:
        click.echo(f"{label} none")
    for one in found:
        click.echo(f"{label} {one['id'][:SHORT_ID]}  {short(one['title'])}")
