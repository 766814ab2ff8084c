"""Corrects times that were stored while the system clock was wrong.

A clock that was put forward makes what is due then; once it is put back, nothing may wait for the times it has
shown. What was made already is known by its key, and is not made again.
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
    # Only a further try waits by itself; what is put off may be tried at once.
    """
    UPDATE plugin_automations_runs
    SET due_at = :now
    WHERE status = 'PENDING' AND due_at > :now AND (attempt = 1 OR created_at > :now)
    """,
    "UPDATE plugin_automations_polls SET due_at = :now WHERE due_at > :now",
    "UPDATE plugin_automations_works SET due_at = :now WHERE due_at > :now",
)


class ClockWatch:
    """Notices when the clock is changed."""

    def __init__(self) -> None:
        self._offset: float | None = None

    def jump(self) -> float | None:
        """Return by how many seconds it was put forward since the last call; None for the first one."""
        before, self._offset = self._offset, now().timestamp() - monotonic()
        return None if before is None else self._offset - before


async def reset_future_times(db: Database, moment: datetime) -> None:
    """Let nothing wait longer than it would if it were stored at this moment."""

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
    """Return what is due before the time that is stored of it, and as it is to be. Takes a while."""
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
