"""Control groups (version 2) to track, freeze and end the processes of a sandbox.

Only files that need no controller are used, so this works beside version 1, too; `groups` finds
where groups can be created and sets limits. All functions block briefly; call them from a thread.
"""

import contextlib
import errno
import os
import time
from pathlib import Path

from agentsvc.base import monotonic

from .files import read_whole

_POLL_SECONDS = 0.002
_LEAVE_SECONDS = 2.0


def pids(group: Path) -> list[int]:
    """Return the pids in a group and its descendants; empty if the group does not exist."""
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found += map(int, read_whole(f"{folder}/cgroup.procs").split())
    return found


def is_frozen(group: Path) -> bool:
    """Return whether the kernel reports that every process in the group is frozen."""
    try:
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    except OSError:
        return False


def freeze(group: Path, time_limit: float) -> None:
    """Freeze the group; raises TimeoutError if it is not frozen in time."""
    (group / "cgroup.freeze").write_text("1")
    deadline = monotonic() + time_limit
    while not is_frozen(group):
        if monotonic() > deadline:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)


def thaw(group: Path) -> None:
    """Unfreeze the group."""
    (group / "cgroup.freeze").write_text("0")


def remove(group: Path) -> None:
    """Remove an empty group and its descendants; does nothing if the group does not exist.

    Raises TimeoutError if a process stays in it.
    """
    deadline = monotonic() + _LEAVE_SECONDS
    for inner in sorted(group.glob("**/"), reverse=True):
        while not _is_removed(inner):
            if monotonic() > deadline:
                raise TimeoutError(f"{inner} is still in use")
            time.sleep(_POLL_SECONDS)


def _is_removed(group: Path) -> bool:
    # A process whose exit is already visible may not have left its group yet.
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            return False
        raise
    return True
