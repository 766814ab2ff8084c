"""`agentsvc prune`: deletes what was kept for long enough."""

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
    delete_old_events,
    find_idle,
    find_idle_by_rules,
    give_up_idle,
)
from agentsvc.plugin import IdleRules
from agentsvc.sandboxes import defaults_of
from agentsvc.settings import SettingsStore
from agentsvc.storage import Installation

_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}


class Duration(click.ParamType[timedelta]):
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
    idle: IdleRules | None = None
    """The configured rules for idle sandboxes, which users and specs may change, instead."""


@click.command(
    "prune",
    epilog=example("agentsvc prune --events-older-than 90d --sandboxes-idle-for 4w --dry-run"),
)
@click.option(
    "--events-older-than",
    type=Duration(),
    metavar="AGE",
    help="Delete events of that age of conversations whose sandbox is gone.",
)
@click.option(
    "--sandboxes-idle-for",
    type=Duration(),
    metavar="AGE",
    help="Delete sandboxes, with their files, that nobody has used for so long.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
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
    """Delete what was kept for long enough, of all users; the server may run.

    An AGE is a number of hours, days or weeks: 12h, 90d, 8w. Without one the rules of the configuration
    count, by which a server does the same in the background: events.delete_after_seconds, and
    sandboxes.delete_after_seconds with what specs and users say instead. The room in the database is
    used again; `agentsvc db vacuum` gives it back.
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
    """Return how many events of how many conversations the rules apply to, and which sandboxes."""
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
        return events, await give_up_idle(database, before, only=found)
