"""The admission queue: sandboxes beyond the limits wait for their turn, also across restarts.

`capacity` decides what fits and whose turn it is; this module reads and stores the state for it, in
the transaction that sets a sandbox's target to running.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from agentsvc.accounts import check_running, find_running
from agentsvc.base import OrderRejected, SandboxLimitReached, Supervisor, now
from agentsvc.config import CapacityConfig, SandboxesConfig
from agentsvc.domain import WhenFull
from agentsvc.sandboxes.admission import capacity
from agentsvc.sandboxes.admission.capacity import (
    AdmittedSandbox,
    CapacityLimits,
    ServerLimits,
    held_of,
)
from agentsvc.sandboxes.last_used import ActivityTracker
from agentsvc.sandboxes.state import Sandbox
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.storage import Queryable, Transaction

log = logging.getLogger(__name__)

_TASK: Final = "sandbox admission"

type LetIn = Callable[[Transaction, str], Awaitable[None]]


class AdmissionQueue(msgspec.Struct, kw_only=True, eq=False):
    """Admits sandboxes within the limits and queues the others."""

    stores: SandboxStores
    supervisor: Supervisor
    config: SandboxesConfig
    limits: ServerLimits
    usage: ActivityTracker
    let_in: LetIn
    _may_wait: bool = True
    """Whether sandboxes may be waiting; true at startup, until the queue was found empty."""
    _has_changed: bool = False
    _on_wanted: list[Callable[[], None]] = []

    def __post_init__(self) -> None:
        """Run admission after each change of a sandbox."""
        self.stores.changes.listen(lambda _before, _after: self.admit_soon())

    @property
    def is_limited(self) -> bool:
        """Whether the server or any backend is limited, or all users are."""
        rooms = (self.limits.server, self.limits.user, *self.limits.backends.values())
        return any(room != CapacityLimits() for room in rooms)

    async def is_limited_for(self, reader: Queryable, user_id: str) -> bool:
        """Return whether any limit or quota applies to a user."""
        return self.is_limited or await find_running(reader, user_id) is not None

    def on_wanted(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever a sandbox starts to wait for an idle one to be paused."""
        self._on_wanted.append(listener)

    async def has_room(self, reader: Queryable, wanted: AdmittedSandbox) -> bool:
        """Return whether a sandbox fits regardless of its user, and no sandbox waits."""
        if not self.is_limited:
            return True
        held = [one for one in await self.stores.uses.held(reader) if one.id != wanted.id]
        limits = msgspec.structs.replace(self.limits, user=CapacityLimits())
        return limits.blocks(held, wanted) is None and not await self.stores.uses.waiting(reader)

    async def enter(self, tx: Transaction, sandbox: Sandbox, when_full: WhenFull | None) -> bool:
        """Return whether a stored sandbox may run now; otherwise queue it.

        Raises SandboxLimitReached if it may not wait, OrderRejected if it would never fit, and
        QuotaExceeded if its user's quota is used up. The caller must then roll back its transaction.
        """
        most = await find_running(tx, sandbox.user_id)
        if most is None and not self.is_limited:
            return True
        wanted = held_of(sandbox)
        held = [one for one in await self.stores.uses.held(tx) if one.id != sandbox.id]
        waiting = [one for one in await self.stores.uses.waiting(tx) if one.id != sandbox.id]
        check_running(most, sum(one.user_id == wanted.user_id for one in (*held, *waiting)))
        if wanted in capacity.admit(self.limits, held, [*waiting, wanted]):
            await self.stores.uses.clear_queued(tx, sandbox.id)
            return True
        if not self.limits.can_ever_hold(wanted):
            raise OrderRejected(
                "A sandbox of this spec exceeds the capacity on its own: see `max_memory_bytes`"
                " in the server's config"
            )
        await self._wait(tx, wanted, held, waiting, when_full or self.config.when_full)
        return False

    async def _wait(
        self,
        tx: Transaction,
        wanted: AdmittedSandbox,
        held: Sequence[AdmittedSandbox],
        waiting: Sequence[AdmittedSandbox],
        when_full: WhenFull,
    ) -> None:
        cause = self.limits.wait_reason(held, wanted)
        if when_full is WhenFull.REJECT:
            raise SandboxLimitReached(f"No further sandbox may run now: {cause}")
        if when_full is WhenFull.PAUSE_IDLE and not await self.find_idle(wanted, tx):
            raise SandboxLimitReached(
                f"No further sandbox may run now: {cause}, and none is idle that could be paused"
            )
        if len(waiting) >= self.config.max_queued:
            raise SandboxLimitReached(
                f"No further sandbox may run now: {cause}, and {len(waiting)} wait already"
            )
        makes_room = when_full is WhenFull.PAUSE_IDLE
        await self.stores.uses.set_queued(tx, wanted.id, wanted.since, may_pause_idle=makes_room)
        await self._store_positions(tx, held, [*waiting, wanted])
        self._may_wait = True
        log.info("sandbox waits for capacity", extra={"sandbox_id": wanted.id, "reason": cause})
        if makes_room:
            for listener in self._on_wanted:
                tx.after_commit(listener)

    async def count_of(self, user_id: str) -> int:
        """Return the number of a user's running and waiting sandboxes."""

        async def body(reader: Queryable) -> int:
            counted = (
                *await self.stores.uses.held(reader),
                *await self.stores.uses.waiting(reader),
            )
            return sum(one.user_id == user_id for one in counted)

        return await self.stores.db.read(body)

    async def find_idle(
        self, wanted: AdmittedSandbox, tx: Queryable | None = None
    ) -> list[AdmittedSandbox]:
        """Return the idle sandboxes whose pause would make room, longest idle first."""
        reader = tx or self.stores.db
        held = [one for one in await self.stores.uses.held(reader) if one.id != wanted.id]
        latest = now() - timedelta(seconds=self.config.min_idle_seconds)
        used = {
            one.id: self.usage.latest(one.id, one.active_at)
            for one in await self.stores.uses.unused(reader)
            if one.may_pause
        }
        idle = [
            msgspec.structs.replace(one, since=used[one.id])
            for one in held
            if one.id in used and used[one.id] <= latest
        ]
        return capacity.sandboxes_to_pause(self.limits, held, idle, wanted)

    async def find_awaiting_idle(self) -> list[AdmittedSandbox]:
        """Return the sandboxes that wait for an idle one to be paused, in order of admission."""
        if not self._may_wait:
            return []
        ids = await self.stores.uses.ids_wanting(self.stores.db)
        waiting = [one for one in await self.stores.uses.waiting(self.stores.db) if one.id in ids]
        return capacity.in_turn(waiting, await self.stores.uses.held(self.stores.db))

    async def find_wait(self, sandbox_id: str) -> tuple[int, str] | None:
        """Return a sandbox's position in the queue of its backend, and why it waits.

        None if it does not wait.
        """

        async def body(reader: Queryable) -> tuple[int, str] | None:
            waiting, held = (
                await self.stores.uses.waiting(reader),
                await self.stores.uses.held(reader),
            )
            place = _positions(waiting, held).get(sandbox_id)
            one = next((one for one in waiting if one.id == sandbox_id), None)
            return (place, self.limits.wait_reason(held, one)) if place and one else None

        return await self.stores.db.read(body) if self._may_wait else None

    def admit_soon(self) -> None:
        """Schedule admission of the waiting sandboxes that fit now."""
        if self._may_wait:
            self._has_changed = True
            self.supervisor.spawn(_TASK, self._run)

    async def _run(self) -> None:
        while self._has_changed:
            self._has_changed = False
            await self.stores.db.write(self._admit)

    async def _admit(self, tx: Transaction) -> None:
        waiting = await self.stores.uses.waiting(tx)
        if not waiting:
            self._may_wait = False
            return
        held = await self.stores.uses.held(tx)
        admitted = capacity.admit(self.limits, held, waiting)
        for one in admitted:
            await self.stores.uses.clear_queued(tx, one.id)
            await self.let_in(tx, one.id)
            log.info("sandbox admitted", extra={"sandbox_id": one.id})
        rest = [one for one in waiting if one not in admitted]
        await self._store_positions(tx, [*held, *admitted], rest)

    async def _store_positions(
        self, tx: Transaction, held: Sequence[AdmittedSandbox], waiting: Sequence[AdmittedSandbox]
    ) -> None:
        """Update the reason of each waiting sandbox whose position or cause has changed."""
        places = _positions(waiting, held)
        for one in waiting:
            sandbox_id, cause = one.id, self.limits.wait_reason(held, one)
            before = await self.stores.sandboxes.find(sandbox_id, tx)
            reason = f"waiting for capacity, position {places[sandbox_id]} in the queue: {cause}"
            if before is None or before.reason == reason:
                continue
            await self.stores.sandboxes.set_reason(tx, sandbox_id, reason)
            await self.stores.announce(tx, before)


def _positions(
    waiting: Sequence[AdmittedSandbox], held: Sequence[AdmittedSandbox]
) -> dict[str, int]:
    """Return the position of each waiting sandbox, counted from 1 for each backend."""
    places: dict[str, int] = {}
    last: dict[str, int] = {}
    for one in capacity.in_turn(waiting, held):
        last[one.backend] = places[one.id] = last.get(one.backend, 0) + 1
    return places


def limits_of(config: SandboxesConfig, rooms: Mapping[str, CapacityConfig]) -> ServerLimits:
    """Return the configured limits; 0 means no limit."""
    return ServerLimits(
        server=_room(config.max_running, config.max_memory_bytes),
        user=_room(config.max_running_per_user, 0),
        backends={
            name: _room(room.max_running, room.max_memory_bytes) for name, room in rooms.items()
        },
    )


def _room(sandboxes: int, memory_bytes: int) -> CapacityLimits:
    return CapacityLimits(sandboxes=sandboxes or math.inf, memory_bytes=memory_bytes or math.inf)
