"""Corrects times that were stored while the system clock was wrong.

A clock that was put forward makes what is due then; once it is put back, nothing may wait for the times it has
shown. What was made already is known by its key, and is not made again.
"""

import contextlib
from datetime import datetime
from typing import Final

import msgspec

from agentsvc.base import InvalidRequest, monotonic, now, to_stored
from agentsvc.extension.storage import Transaction

from .cron import parse_cron
from .model import CronTrigger
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


async def reset_future_times(tx: Transaction, moment: datetime) -> None:
    """Let nothing wait longer than it would if it were stored at this moment."""
    for sql in _FUTURE:
        await tx.run(sql, {"now": to_stored(moment)})
    for automation in await AutomationTable.waiting(tx, moment):
        trigger, due = automation.definition.trigger, automation.next_at
        if not isinstance(trigger, CronTrigger):
            continue
        with contextlib.suppress(InvalidRequest):
            due = parse_cron(trigger.schedule, trigger.timezone).find_next(moment)
        if due is not None and automation.next_at is not None and due < automation.next_at:
            await AutomationTable.update(tx, msgspec.structs.replace(automation, next_at=due))
