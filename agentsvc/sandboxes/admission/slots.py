"""Limits how many conversations start on this machine at the same time; fair between users.

More at once than there are processors would all be ready late, and none early. Whose turn it is
follows the rule of room for sandboxes: in order, fair between users. All is kept in memory only:
after a restart those that go on ask again, and `expect` keeps the oldest in front.
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
"""Time between two looks of one that waits at its place; each change of it is stored."""

type OnPlace = Callable[[int], Awaitable[None]]


class StartLane(StrEnum):
    """What a start needs first. Those of one lane wait for each other only."""

    NEW = "new"
    """A sandbox that is made for it, or starts again."""
    RUNNING = "running"
    """Nothing: its sandbox runs."""


class _Waiting(msgspec.Struct, kw_only=True):
    wanted: AdmittedSandbox
    is_over: asyncio.Event
    place: int = 0


class _Queue:
    """The places of one lane, and who waits for one."""

    def __init__(self, places: int) -> None:
        self._limits = ServerLimits(server=CapacityLimits(sandboxes=places))
        self.held: dict[str, AdmittedSandbox] = {}
        self.waiting: dict[str, _Waiting] = {}
        self._turns: dict[str, int] = {}
        """How many turns that ended each user had who has a place or waits, less what all had."""

    def join(self, waiting: _Waiting) -> None:
        """Let one wait; a user who comes to it has had as many turns as who had fewest."""
        self._turns.setdefault(waiting.wanted.user_id, min(self._turns.values(), default=0))
        self.waiting[waiting.wanted.id] = waiting

    def drop(self, task_id: str) -> None:
        """Let one neither wait nor have a place."""
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
        """Give the free places away, and return to whom; the others have a place in the queue."""
        # Turns that ended take no room, and count when it is said who is next.
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
    """Gives starts a place to work, and takes it back from those that take long."""

    def __init__(self, places: int, *, lapse_seconds: float) -> None:
        """Have so many places in each lane; 0 is as many as fit the processors."""
        self._queues = {lane: _Queue(places or _default_size()) for lane in StartLane}
        self._lapse_seconds = lapse_seconds
        self._expected: set[str] = set()
        self._lapses: dict[str, asyncio.TimerHandle] = {}
        self._served: set[str] = set()
        self._unmade: dict[str, str] = {}
        """By start, the sandbox that is not made before its turn."""

    def defer(self, start_id: str, sandbox_id: str) -> None:
        """Have a sandbox not be made until `release`, or until the start leaves."""
        self._unmade[start_id] = sandbox_id

    def allow(self, sandbox_id: str) -> None:
        """Let a sandbox be made, whoever waits for it."""
        self._unmade = {key: held for key, held in self._unmade.items() if held != sandbox_id}

    def is_deferred(self, sandbox_id: str) -> bool:
        """Whether a sandbox is not to be made now."""
        return sandbox_id in self._unmade.values()

    def expect(self, task_ids: Iterable[str]) -> None:
        """Give nobody a turn until each of these has asked for one, left, or taken too long."""
        expected = set(task_ids)
        if expected:
            self._expected |= expected
            loop = asyncio.get_running_loop()
            loop.call_later(self._lapse_seconds, self._stop_expecting, expected)

    async def acquire(
        self, start_id: str, user_id: str, since: datetime, lane: StartLane | None, report: OnPlace
    ) -> bool:
        """Wait for a turn, told each place meanwhile; says whether there was a wait.

        Without a lane none is needed, and whoever has had one goes on at once. It is theirs until
        `give_back`, `remove`, or it lapses. Who is made to leave meanwhile goes on and has none.
        """
        place = Load(sandboxes=1)  # one, as a sandbox would take
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
        """Whether nobody works, waits, or is expected."""
        return not self._expected and not any(
            queue.held or queue.waiting for queue in self._queues.values()
        )

    def was_granted(self, task_id: str) -> bool:
        """Say whether it is, or was, a start's turn."""
        return task_id in self._lapses or task_id in self._served

    def give_back(self, task_id: str) -> None:
        """Let others work in place of a start that needs this machine no more for now."""
        lapse = self._lapses.pop(task_id, None)
        if lapse is not None:
            lapse.cancel()
            self._served.add(task_id)
            self._drop(task_id)

    def remove(self, task_id: str) -> None:
        """Forget a start, whether it waits, works, or is done; later it may ask again."""
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
        """Give turns to whoever there is a place for."""
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
    # Twice the processors, since each start waits for something half of its time.
    has_affinity = hasattr(os, "sched_getaffinity")
    return 2 * (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
