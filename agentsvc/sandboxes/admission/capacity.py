"""Capacity: which sandboxes may run, which wait, and which are paused to make room. No I/O.

The limits of the server, of a backend and of a user are each a `CapacityLimits`; what runs is a
`Load`. Placement of sandboxes uses `roomiest`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from agentsvc.base import now
from agentsvc.sandboxes.admission.warm_pool_table import WarmSandbox
from agentsvc.sandboxes.state import Sandbox


class CapacityLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum that may run at the same time."""

    sandboxes: float = math.inf
    memory_bytes: float = math.inf


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Running and starting sandboxes; memory is the sum of their memory limits."""

    sandboxes: int = 0
    memory_bytes: int = 0


class AdmittedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that counts against capacity, or waits in the queue."""

    id: str
    user_id: str
    backend: str
    load: Load
    since: datetime
    """When it was last used, or since when it has been waiting."""
    is_leaving: bool = False
    """Whether its target is to rest or be deleted, but it still runs."""


def held_of(sandbox: Sandbox | WarmSandbox) -> AdmittedSandbox:
    """Return the capacity entry of a sandbox as of now; a warm pool sandbox has no user."""
    return AdmittedSandbox(
        id=sandbox.id,
        user_id=sandbox.user_id if isinstance(sandbox, Sandbox) else "",
        backend=sandbox.backend,
        load=Load(sandboxes=1, memory_bytes=sandbox.spec.limits.memory_bytes or 0),
        since=now(),
    )


def total(loads: Iterable[Load]) -> Load:
    """Return the sum of loads."""
    sandboxes = memory_bytes = 0
    for load in loads:
        sandboxes += load.sandboxes
        memory_bytes += load.memory_bytes
    return Load(sandboxes=sandboxes, memory_bytes=memory_bytes)


def fits(room: CapacityLimits, load: Load, wanted: Load) -> bool:
    """Return whether the wanted load fits into the limits beside the present load."""
    after = total((load, wanted))
    return after.sandboxes <= room.sandboxes and after.memory_bytes <= room.memory_bytes


def roomiest(places: Mapping[str, tuple[CapacityLimits, Load]], wanted: Load) -> list[str]:
    """Return the names of the places where the load fits, the one with most room left first.

    A place without a limit ranks before any with one; of several such, the one with fewest
    sandboxes comes first.
    """

    def rank(name: str) -> tuple[float, float, int, str]:
        room, load = places[name]
        sandboxes = load.sandboxes - room.sandboxes
        return sandboxes, load.memory_bytes - room.memory_bytes, load.sandboxes, name

    fitting = [name for name, (room, load) in places.items() if fits(room, load, wanted)]
    return sorted(fitting, key=rank)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the server, of each backend and of each user."""

    server: CapacityLimits = CapacityLimits()
    user: CapacityLimits = CapacityLimits()
    backends: Mapping[str, CapacityLimits] = {}

    def blocks(self, held: Collection[AdmittedSandbox], wanted: AdmittedSandbox) -> str | None:
        """Return a text that names the exceeded limit, or None if the sandbox fits."""
        of_user = total(one.load for one in held if one.user_id == wanted.user_id)
        if not fits(self.user, of_user, wanted.load):
            return "your limit of running sandboxes is reached"
        of_backend = total(one.load for one in held if one.backend == wanted.backend)
        if not fits(self.backends.get(wanted.backend, CapacityLimits()), of_backend, wanted.load):
            return f"the limit of the backend `{wanted.backend}` is reached"
        if not fits(self.server, total(one.load for one in held), wanted.load):
            return "the server's limit of running sandboxes is reached"
        return None

    def wait_reason(self, held: Collection[AdmittedSandbox], waiting: AdmittedSandbox) -> str:
        """Return a text that tells why a queued sandbox does not run yet."""
        return self.blocks(held, waiting) or "other sandboxes are ahead in the queue"

    def can_ever_hold(self, wanted: AdmittedSandbox) -> bool:
        """Return whether the sandbox would fit if no other ran."""
        return self.blocks((), wanted) is None


def in_turn(
    waiting: Sequence[AdmittedSandbox], held: Iterable[AdmittedSandbox]
) -> list[AdmittedSandbox]:
    """Return waiting sandboxes in the order of their admission, fair between users.

    The sandbox whose user has fewest running, counting that user's earlier ones in the queue, comes
    first; ties go to the one that has waited longest.
    """
    running = Counter(one.user_id for one in held)
    ranked: list[tuple[int, datetime, str, AdmittedSandbox]] = []
    for one in sorted(waiting, key=lambda one: (one.since, one.id)):
        ranked.append((running[one.user_id], one.since, one.id, one))
        running[one.user_id] += 1
    return [one for *_, one in sorted(ranked, key=lambda item: item[:3])]


def admit(
    limits: ServerLimits, held: Collection[AdmittedSandbox], waiting: Sequence[AdmittedSandbox]
) -> list[AdmittedSandbox]:
    """Return the waiting sandboxes that may run now, in order.

    The first sandbox for a backend blocks that backend until it fits: a smaller one does not
    overtake it. A sandbox whose user is at the user limit blocks no other.
    """
    present, admitted = list(held), list[AdmittedSandbox]()
    closed: set[str] = set()
    for one in in_turn(waiting, held):
        of_user = total(other.load for other in present if other.user_id == one.user_id)
        if one.backend in closed or not fits(limits.user, of_user, one.load):
            continue
        if limits.blocks(present, one) is not None:
            closed.add(one.backend)
            continue
        present.append(one)
        admitted.append(one)
    return admitted


def sandboxes_to_pause(
    limits: ServerLimits,
    held: Collection[AdmittedSandbox],
    idle: Collection[AdmittedSandbox],
    wanted: AdmittedSandbox,
) -> list[AdmittedSandbox]:
    """Return the idle sandboxes whose pause would make room, longest idle first.

    Empty if enough are leaving already. The user's own sandboxes always qualify; those of another
    user only if that user has more running than the user who needs room.
    """
    if limits.blocks([one for one in held if not one.is_leaving], wanted) is None:
        return []
    running = Counter(one.user_id for one in held)
    found = []
    for one in sorted(idle, key=lambda one: (one.since, one.id)):
        is_own = one.user_id == wanted.user_id
        if not is_own and running[one.user_id] <= running[wanted.user_id]:
            continue
        if _relieves(limits, held, one, wanted):
            found.append(one)
    return found


def _relieves(
    limits: ServerLimits,
    held: Collection[AdmittedSandbox],
    one: AdmittedSandbox,
    wanted: AdmittedSandbox,
) -> bool:
    """Return whether this sandbox counts against the limit that blocks the wanted one."""
    mine = [other for other in held if other.user_id == wanted.user_id]
    if not fits(limits.user, total(other.load for other in mine), wanted.load):
        return one.user_id == wanted.user_id
    there = [other for other in held if other.backend == wanted.backend]
    room = limits.backends.get(wanted.backend, CapacityLimits())
    if not fits(room, total(other.load for other in there), wanted.load):
        return one.backend == wanted.backend
    return True
