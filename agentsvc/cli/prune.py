"""`agentsvc prune`: deletes old events and unused sandboxes."""

import asyncio
import re
from datetime import datetime, timedelta
from typing import Final

import click
import msgspec

from agentsvc.base import now
from agentsvc.cli.options import (
    ConfigOptions,
    example,
    existing_data_dir,
    where_options,
    yes_option,
)
from agentsvc.cli.text import columns, confirm, moment
from agentsvc.config import Config, DataDirectory
from agentsvc.conversations import (
    IdleSandbox,
    count_old_events,
    delete_idle,
    delete_old_events,
    find_idle,
    find_idle_by_rules,
)
from agentsvc.plugin import IdleRules
from agentsvc.sandboxes import defaults_of
from agentsvc.settings import SettingsStore
from agentsvc.storage import Installation

_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}


class Duration(click.ParamType[timedelta]):
    """A duration, such as `90d`."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Parse a duration; fails on any other text."""
        found = _AGE.fullmatch(str(value))
        if found is None:
            self.fail(f"`{value}` is not an age; write it as 12h, 90d or 8w", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Deletion limits: older events and sandboxes are deleted; None disables a limit."""

    events_before: datetime | None
    sandboxes_before: datetime | None
    idle: IdleRules | None = None
    """Idle rules that apply if `sandboxes_before` is None; users and specs may override them."""


@click.command(
    "prune",
    epilog=example("agentsvc prune --events-older-than 90d --sandboxes-idle-for 4w --dry-run"),
)
@click.option(
    "--events-older-than",
    type=Duration(),
    metavar="AGE",
    help="Delete events older than AGE, of conversations whose sandbox is gone.",
)
@click.option(
    "--sandboxes-idle-for",
    type=Duration(),
    metavar="AGE",
    help="Delete sandboxes, with their files, that were not used for AGE.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@yes_option
@where_options
def command(
    *,
    events_older_than: timedelta | None,
    sandboxes_idle_for: timedelta | None,
    dry_run: bool,
    yes: bool,
    where: ConfigOptions,
) -> None:
    """Delete old events and unused sandboxes of all users, also while the server runs.

    An AGE is a number of hours, days or weeks: 12h, 90d, 8w. Without these options the rules of the
    configuration apply, as for a running server: events.delete_after_seconds, and
    sandboxes.delete_after_seconds unless specs or users override it. The database reuses the freed
    space; `agentsvc db vacuum` returns it to the file system.
    """
    loaded = where.load()
    if events_older_than is None and sandboxes_idle_for is None:
        rules = _configured(loaded.config)
    else:
        rules = Rules(
            events_before=now() - events_older_than if events_older_than else None,
            sandboxes_before=now() - sandboxes_idle_for if sandboxes_idle_for else None,
        )
    data_directory = existing_data_dir(loaded)
    events, conversations, idle = asyncio.run(_count_due(data_directory, rules))
    rows = [(one.id, one.user_name, moment(one.used_at)) for one in idle]
    for line in columns(("SANDBOX", "USER", "USED LAST (UTC)"), rows) if rows else ():
        click.echo(line)
    what = f"{events} events of {conversations} conversations and {len(idle)} sandboxes"
    if dry_run or not (events or idle):
        click.echo(f"would delete {what}" if dry_run else "nothing is old enough", err=True)
        return
    confirm(f"Delete {what}?", is_agreed=yes)
    events, sandboxes = asyncio.run(_delete(data_directory, rules))
    click.echo(f"deleted {events} events; {sandboxes} sandboxes are being deleted", err=True)


def _configured(config: Config) -> Rules:
    age_seconds = config.events.delete_after_seconds
    return Rules(
        events_before=now() - timedelta(seconds=age_seconds) if age_seconds else None,
        sandboxes_before=None,
        idle=defaults_of(config.sandboxes),
    )


async def _count_due(
    data_directory: DataDirectory, rules: Rules
) -> tuple[int, int, list[IdleSandbox]]:
    """Return the number of events to delete, of their conversations, and the sandboxes."""
    async with await Installation.open(data_directory) as installation:
        database = installation.database
        events, conversations = (0, 0)
        if rules.events_before is not None:
            events, conversations = await count_old_events(database, rules.events_before)
        return events, conversations, await _find_sandboxes(installation, rules)


async def _find_sandboxes(installation: Installation, rules: Rules) -> list[IdleSandbox]:
    database = installation.database
    if rules.sandboxes_before is not None:
        return await find_idle(database, rules.sandboxes_before)
    if rules.idle is not None:
        settings = SettingsStore(database, installation.vault)
        return await find_idle_by_rules(database, settings, rules.idle)
    return []


async def _delete(data_directory: DataDirectory, rules: Rules) -> tuple[int, int]:
    async with await Installation.open(data_directory) as installation:
        database = installation.database
        events = 0
        if rules.events_before is not None:
            events = await delete_old_events(database, rules.events_before)
        found = {one.id for one in await _find_sandboxes(installation, rules)}
        before = rules.sandboxes_before or now()
        return events, await delete_idle(database, before, only=found)
