"""The command `agentsvc import`: imports the data of another server; works while the server runs."""

import asyncio
from collections import Counter
from pathlib import Path

import click
import msgspec

from agentsvc.cli.extension import (
    CommandFailed,
    ConfigOptions,
    Installation,
    Role,
    Users,
    clean,
    columns,
    example,
    json_option,
    json_text,
    short,
    where_options,
)
from agentsvc.extension.storage import Database

from .files import Tree
from .model import ImportResult, Item, Unreadable
from .service import Importer


@click.group("import", epilog=example("agentsvc import openhands ~/.openhands --dry-run"))
def command() -> None:
    """Import the data of another server."""


@command.command(
    epilog=example(
        "agentsvc import openhands ~/.openhands --dry-run",
        "agentsvc import openhands ~/.openhands --user ann",
    )
)
@click.argument(
    "path", metavar="PATH", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--user", metavar="NAME", help="Owner of the data; default: the only administrator.")
@click.option(
    "--of", "source_user", metavar="ID", help="User of the other server, if it had several."
)
@click.option("--dry-run", is_flag=True, help="Report what would be imported; store nothing.")
@json_option
@where_options
def openhands(
    *,
    path: Path,
    user: str | None,
    source_user: str | None,
    dry_run: bool,
    as_json: bool,
    where: ConfigOptions,
) -> None:
    """Import conversations, settings and secrets of an OpenHands server.

    PATH is its data directory, such as ~/.openhands. Conversations of both of its generations are imported
    with their events, titles, times and costs, but without the files of their sandboxes. Nothing in PATH is
    changed. Existing data stays as it is, so that the command can be repeated, also after an
    interruption. The exit code is 1 if anything was skipped.
    """
    data_directory = where.data_directory()

    async def work() -> tuple[list[Item], list[str]]:
        async with await Installation.open(data_directory) as installation:
            database, user_id = installation.database, await _user_id(installation.database, user)
            importer = Importer(
                database, installation.vault, Tree(path), user_id, source_user, is_dry=dry_run
            )
            items = [item async for item in importer.run()]
            return items, await importer.other_users()

    try:
        items, others = asyncio.run(work())
    except Unreadable as exc:
        raise CommandFailed(f"{path}, or a directory in it, {exc}") from exc
    for line in [json_text(msgspec.to_builtins(items))] if as_json else _table(items):
        click.echo(line)
    if others:
        click.echo(f"users whose data is not imported: {', '.join(map(clean, others))}", err=True)
    _sum_up(items, is_dry=dry_run)


async def _user_id(database: Database, name: str | None) -> str:
    users = Users(database)
    if name is not None:
        return (await users.get_named(name)).id
    admins = [one for one in await users.list_all() if one.role is Role.ADMIN]
    if len(admins) != 1:
        raise CommandFailed(
            f"there are {len(admins)} administrators", "name the user with --user NAME"
        )
    return admins[0].id


def _table(items: list[Item]) -> list[str]:
    rows = [
        (
            item.kind,
            short(item.name),
            item.outcome.value,
            str(item.events) if item.events else "",
            "; ".join(filter(None, [short(item.title), *map(clean, item.notes)])),
        )
        for item in items
    ]
    return list(columns(("WHAT", "NAME", "OUTCOME", "EVENTS", "TITLE AND NOTES"), rows))


def _sum_up(items: list[Item], *, is_dry: bool) -> None:
    counts = Counter(item.outcome for item in items)
    result = "would be imported" if is_dry else "imported"
    click.echo(
        f"{counts[ImportResult.IMPORTED]} {result}, {counts[ImportResult.PRESENT]} are here already,"
        f" {counts[ImportResult.SKIPPED]} skipped",
        err=True,
    )
    if counts[ImportResult.SKIPPED]:
        raise CommandFailed("not everything was imported; see the notes above")
