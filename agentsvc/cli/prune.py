"""`agentsvc prune`: deletes what was kept for long enough."""

import asyncio
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click
import msgspec

from agentsvc.cli.options import (
    config_option,
    data_dir_option,
    example,
    existing_data_dir,
    load_config,
    yes_option,
)
from agentsvc.cli.text import columns, confirm, moment
from agentsvc.conversations.retention import (
    IdleSandbox,
    count_old_events,
    delete_old_events,
    find_idle,
    give_up_idle,
)
from agentsvc.datadir import DataDir
from agentsvc.db import Database
from agentsvc.values import now

_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}


class Age(click.ParamType[timedelta]):
    """A length of time, such as `90d`."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the length of time that a text stands for; fails on any other text."""
        found = _AGE.fullmatch(str(value))
        if found is None:
            self.fail(f"`{value}` is no age; write it as 12h, 90d or 8w", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Before when things are deleted; None keeps them."""

    events_before: datetime | None
    sandboxes_before: datetime | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules apply to."""

    events: int
    conversations: int
    sandboxes: list[IdleSandbox]


@click.command(
    "prune",
    epilog=example("agentsvc prune --events-older-than 90d --sandboxes-idle-for 4w --dry-run"),
)
@click.option(
    "--events-older-than",
    type=Age(),
    metavar="AGE",
    help="Delete events of that age of conversations whose sandbox is gone.",
)
@click.option(
    "--sandboxes-idle-for",
    type=Age(),
    metavar="AGE",
    help="Delete sandboxes, with their files, that nobody has used for so long.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@yes_option
@data_dir_option
@config_option
def command(
    *,
    events_older_than: timedelta | None,
    sandboxes_idle_for: timedelta | None,
    dry_run: bool,
    yes: bool,
    data_dir: str | None,
    config_file: Path | None,
) -> None:
    """Delete what was kept for long enough, of all users; the server may run.

    An AGE is a number of hours, days or weeks: 12h, 90d, 8w. The room in the database is used again;
    `agentsvc db vacuum` gives it back.
    """
    if events_older_than is None and sandboxes_idle_for is None:
        raise click.UsageError("say what to delete: --events-older-than, --sandboxes-idle-for")
    moment_now = now()
    rules = Rules(
        events_before=moment_now - events_older_than if events_older_than else None,
        sandboxes_before=moment_now - sandboxes_idle_for if sandboxes_idle_for else None,
    )
    places = existing_data_dir(load_config(config_file, server__data_dir=data_dir))
    found = asyncio.run(_look(places, rules))
    rows = [(one.id, one.user_name, moment(one.used_at)) for one in found.sandboxes]
    for line in columns(("SANDBOX", "USER", "USED LAST (UTC)"), rows) if rows else ():
        click.echo(line)
    what = (
        f"{found.events} events of {found.conversations} conversations"
        f" and {len(found.sandboxes)} sandboxes"
    )
    if dry_run or not (found.events or found.sandboxes):
        click.echo(f"would delete {what}" if dry_run else "nothing is old enough", err=True)
        return
    confirm(f"Delete {what}?", is_agreed=yes)
    events, sandboxes = asyncio.run(_delete(places, rules))
    click.echo(f"deleted {events} events; {sandboxes} sandboxes are being deleted", err=True)


async def _look(places: DataDir, rules: Rules) -> Found:
    database = await Database.open(places.database)
    try:
        events, conversations = (0, 0)
        if rules.events_before is not None:
            events, conversations = await count_old_events(database, rules.events_before)
        sandboxes: list[IdleSandbox] = []
        if rules.sandboxes_before is not None:
            sandboxes = await find_idle(database, rules.sandboxes_before)
        return Found(events=events, conversations=conversations, sandboxes=sandboxes)
    finally:
        await database.close()


async def _delete(places: DataDir, rules: Rules) -> tuple[int, int]:
    database = await Database.open(places.database)
    try:
        events = sandboxes = 0
        if rules.events_before is not None:
            events = await delete_old_events(database, rules.events_before)
        if rules.sandboxes_before is not None:
            sandboxes = await give_up_idle(database, rules.sandboxes_before)
        return events, sandboxes
    finally:
        await database.close()
