"""Choice of the running sandbox a new conversation joins, by the grouping strategy. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from agentsvc.sandboxes import Sandbox
from agentsvc.settings import GroupingStrategy

MATES_MAX: Final = 20
"""The most conversations in a sandbox; a full one is not joined."""


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """The number of conversations in a sandbox, and the time of the last activity in one."""

    count: int
    used_at: datetime


def choose_sandbox(
    strategy: GroupingStrategy, running: Sequence[Sandbox], occupancy: Mapping[str, Occupancy]
) -> Sandbox | None:
    """Return the sandbox to join, or None to create a new one: by strategy, or if all are full.

    A sandbox without conversations counts as last used when it was created.
    """

    def count(sandbox: Sandbox) -> int:
        found = occupancy.get(sandbox.id)
        return found.count if found else 0

    def used_at(sandbox: Sandbox) -> datetime:
        found = occupancy.get(sandbox.id)
        return found.used_at if found else sandbox.created_at

    free = sorted(
        (sandbox for sandbox in running if count(sandbox) < MATES_MAX),
        key=lambda sandbox: (sandbox.created_at, sandbox.id),
    )
    if not free:
        return None
    match strategy:
        case GroupingStrategy.NO_GROUPING:
            return None
        case GroupingStrategy.GROUP_BY_NEWEST:
            return free[-1]
        case GroupingStrategy.LEAST_RECENTLY_USED:
            return min(free, key=used_at)
        case GroupingStrategy.FEWEST_CONVERSATIONS:
            return min(free, key=count)
        case GroupingStrategy.ADD_TO_ANY:
            return free[0]
