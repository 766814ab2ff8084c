"""Limits how many conversations start on this machine at the same time; fair between users.

With more starts than processors, all would be ready late and none early. Slots are granted in the
order in which sandboxes are admitted. State is kept in memory only: after a restart, resumed starts
call `acquire` again, and `expect` keeps the oldest in front.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from agentsvc.base import now, wait_within
from agentsvc.sandboxes.admission.capacity import (
    AdmittedSandbox,
    CapacityLimits,
    Load,
    ServerLimits,
    admit,
    in_turn,
)

log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 0.25
"""Interval at which a waiting start reports its position; each change is stored."""

type OnPlace = Callable[[int], Awaitable[None]]


class StartLane(StrEnum):
    """What a start needs first; starts wait only for others of the same lane."""

    NEW = "new"
    """A sandbox that is created for it, or restarted."""
    RUNNING = "running"
    """Its sandbox runs already."""


class _Waiting(msgspec.Struct, kw_only=True):
    wanted: AdmittedSandbox
    is_over: asyncio.Event
    place: int = 0


class _Queue:
    """The slots of one lane, and the starts that wait for one."""

    def __init__(self, places: int) -> None:
        self._limits = ServerLimits(server=CapacityLimits(sandboxes=places))
        self.held: dict[str, AdmittedSandbox] = {}
        self.waiting: dict[str, _Waiting] = {}
        self._turns: dict[str, int] = {}
        """Ended turns of each present user, minus the smallest such number."""

    def join(self, waiting: _Waiting) -> None:
        """Add a waiting start; a new user begins with the smallest number of ended turns."""
        self._turns.setdefault(waiting.wanted.user_id, min(self._turns.values(), default=0))
        self.waiting[waiting.wanted.id] = waiting

    def drop(self, task_id: str) -> None:
        """Remove a start from the queue and release its slot."""
        waiting = self.waiting.pop(task_id, None)
        if waiting is not None:
            waiting.is_over.set()
        held = self.held.pop(task_id, None)
        if held is not None:
            self._turns[held.user_id] += 1
        present = {one.user_id for one in (*self.held.values(), *self._wanted())}
        least = min((had for user_id, had in self._turns.items() if user_id in present), default=0)
        self._turns = {user: had - least for user, had in self._turns.items() if user in present}

    def admit(self) -> list[str]:
        """Grant free slots and return the ids of their starts; set the others' positions."""
        # Ended turns have no load, but count in the order of admission.
        held = [*self.held.values(), *self._ended()]
        admitted = admit(self._limits, held, self._wanted())
        for one in admitted:
            self.held[one.id] = one
            self.waiting.pop(one.id).is_over.set()
        held = [*self.held.values(), *self._ended()]
        for place, one in enumerate(in_turn(self._wanted(), held), 1):
            self.waiting[one.id].place = place
        return [one.id for one in admitted]

    def _wanted(self) -> list[AdmittedSandbox]:
        return [one.wanted for one in self.waiting.values()]

    def _ended(self) -> list[AdmittedSandbox]:
        ended = Counter(self._turns).elements()
        return [
            AdmittedSandbox(id="", user_id=user, backend="", load=Load(), since=now())
            for user in ended
        ]


class StartSlots:
    """Grants starts a slot, and releases the slot of a start that takes too long."""

    def __init__(self, places: int, *, lapse_seconds: float) -> None:
        """Create the lanes with this many slots each; 0 derives it from the processors."""
        self._queues = {lane: _Queue(places or _default_size()) for lane in StartLane}
        self._lapse_seconds = lapse_seconds
        self._expected: set[str] = set()
        self._lapses: dict[str, asyncio.TimerHandle] = {}
        self._served: set[str] = set()
        self._unmade: dict[str, str] = {}
        """By start id, the sandbox whose creation is deferred until its turn."""

    def defer(self, start_id: str, sandbox_id: str) -> None:
        """Defer creating a sandbox until `allow`, or until the start is removed."""
        self._unmade[start_id] = sandbox_id

    def allow(self, sandbox_id: str) -> None:
        """Stop deferring a sandbox, whichever start it belongs to."""
        self._unmade = {key: held for key, held in self._unmade.items() if held != sandbox_id}

    def is_deferred(self, sandbox_id: str) -> bool:
        """Return whether creating a sandbox is deferred."""
        return sandbox_id in self._unmade.values()

    def expect(self, task_ids: Iterable[str]) -> None:
        """Grant no slot until each of these starts has called `acquire`, was removed, or timed out."""
        expected = set(task_ids)
        if expected:
            self._expected |= expected
            loop = asyncio.get_running_loop()
            loop.call_later(self._lapse_seconds, self._stop_expecting, expected)

    async def acquire(
        self, start_id: str, user_id: str, since: datetime, lane: StartLane | None, report: OnPlace
    ) -> bool:
        """Wait for a slot, reporting each position meanwhile; return whether there was a wait.

        Returns at once without a lane, or if the start has had a slot before. The start keeps the
        slot until `give_back`, `remove` or the lapse timeout. `remove` ends the wait without a slot.
        """
        place = Load(sandboxes=1)  # a slot, counted like a sandbox
        wanted = AdmittedSandbox(id=start_id, user_id=user_id, backend="", load=place, since=since)
        waiting = _Waiting(wanted=wanted, is_over=asyncio.Event())
        if lane is not None and not self.was_granted(start_id):
            self._queues[lane].join(waiting)
        else:
            waiting.is_over.set()
        self._stop_expecting({start_id})
        if waiting.is_over.is_set():
            return False
        while not waiting.is_over.is_set():
            if waiting.place:
                await report(waiting.place)
            await wait_within(waiting.is_over, _REPORT_SECONDS)
        return True

    @property
    def is_over(self) -> bool:
        """Whether no start has a slot, waits, or is expected."""
        return not self._expected and not any(
            queue.held or queue.waiting for queue in self._queues.values()
        )

    def was_granted(self, task_id: str) -> bool:
        """Return whether a start has or had a slot."""
        return task_id in self._lapses or task_id in self._served

    def give_back(self, task_id: str) -> None:
        """Release the slot of a start; `was_granted` stays true."""
        lapse = self._lapses.pop(task_id, None)
        if lapse is not None:
            lapse.cancel()
            self._served.add(task_id)
            self._drop(task_id)

    def remove(self, task_id: str) -> None:
        """Forget a start in any state; it may call `acquire` again later."""
        self.give_back(task_id)
        self._unmade.pop(task_id, None)
        self._served.discard(task_id)
        self._expected.discard(task_id)
        self._drop(task_id)

    def _drop(self, task_id: str) -> None:
        for queue in self._queues.values():
            queue.drop(task_id)
        self._grant()

    def _grant(self) -> None:
        """Grant free slots, unless starts are expected."""
        if self._expected:
            return
        loop = asyncio.get_running_loop()
        for queue in self._queues.values():
            for task_id in queue.admit():
                self._lapses[task_id] = loop.call_later(self._lapse_seconds, self._lapse, task_id)

    def _stop_expecting(self, task_ids: set[str]) -> None:
        self._expected -= task_ids
        self._grant()

    def _lapse(self, task_id: str) -> None:
        if any(queue.waiting for queue in self._queues.values()):
            log.info(
                "slow conversation start, its slot is given to others", extra={"task_id": task_id}
            )
        self.give_back(task_id)


def _default_size() -> int:
    # Twice the processors, because each start waits for I/O half of its time.
    has_affinity = hasattr(os, "sched_getaffinity")
    return 2 * (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
