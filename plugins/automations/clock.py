"""Corrects due times that were stored while the system clock was wrong.

A clock that is ahead makes runs due early, and stores later due times relative to itself. Once it is
set back, nothing may wait for those times. Runs that exist already have keys, and are not created again.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from agentsvc.base import InvalidRequest, monotonic, now, to_stored
from agentsvc.extension.storage import Database, Transaction

from .cron import parse_cron
from .model import Automation, CronTrigger
from .table import AutomationTable

_FUTURE: Final = (
    # Only a retry waits on purpose; a postponed run may start at once.
    """
    UPDATE plugin_automations_runs
    SET due_at = :now
    WHERE status = 'PENDING' AND due_at > :now AND (attempt = 1 OR created_at > :now)
    """,
    "UPDATE plugin_automations_polls SET due_at = :now WHERE due_at > :now",
    "UPDATE plugin_automations_works SET due_at = :now WHERE due_at > :now",
)


class ClockWatch:
    """Detects changes of the system clock."""

    def __init__(self) -> None:
        self._offset: float | None = None

    def jump(self) -> float | None:
        """Return the seconds by which the clock was set forward since the last call, or None."""
        before, self._offset = self._offset, now().timestamp() - monotonic()
        return None if before is None else self._offset - before


async def reset_future_times(db: Database, moment: datetime) -> None:
    """Lower each due time that is later than it would be if computed at this moment."""

    async def reset(tx: Transaction) -> None:
        for sql in _FUTURE:
            await tx.run(sql, {"now": to_stored(moment)})

    await db.write(reset)
    waiting = await AutomationTable.waiting(db, moment)
    sooner = await asyncio.to_thread(_due_sooner, waiting, moment)

    async def store(tx: Transaction) -> None:
        for before, after in sooner:
            if await AutomationTable.find(tx, before.id) == before:
                await AutomationTable.update(tx, after)

    if sooner:
        await db.write(store)


def _due_sooner(
    waiting: Iterable[Automation], moment: datetime
) -> list[tuple[Automation, Automation]]:
    """Return the automations to correct, each before and after. Slow, so it runs in a thread."""
    found = []
    for automation in waiting:
        trigger, due = automation.definition.trigger, automation.next_at
        if not isinstance(trigger, CronTrigger) or due is None:
            continue
        with contextlib.suppress(InvalidRequest):
            due = parse_cron(trigger.schedule, trigger.timezone).find_next(moment) or due
        if due < (automation.next_at or due):
            found.append((automation, msgspec.structs.replace(automation, next_at=due)))
    return found
