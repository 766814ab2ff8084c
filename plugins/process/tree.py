"""All processes of one sandbox: finds, stops, continues and ends them together.

A sandbox's processes are those in its control group, those with its mark in their environment, and
all descendants of these. None of the three finds all: a process may change its group, session,
parent or environment. All functions block briefly; call them from a thread.
"""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Collection, Container
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import monotonic

from . import cgroup
from .files import read_whole, stat_of

MARK: Final = "AGENTSVC_SANDBOX"
"""The environment variable that names the sandbox of a process."""

_ENVIRON_MAX: Final = 6 * 1024 * 1024
"""The kernel starts no process with a larger environment; a process may later declare all of its
memory to be it."""
_POLL_SECONDS = 0.001
_FREEZE_SECONDS = 0.5
_ENDED = ("Z", "X")
_STOPPED = ("T", "t")

type Identity = tuple[int, int]
"""A pid and the start time of the process; the pid alone may be reused."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the process table."""

    pid: int
    parent: int
    job: int
    """Its process group."""
    session: int
    state: str
    cpu_ticks: int
    """CPU time of the process and of the children it has waited for."""
    start: int

    @property
    def identity(self) -> Identity:
        """Identity that tells the process from a later one with its pid."""
        return self.pid, self.start


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """The properties by which the processes of one sandbox are found."""

    mark: str
    root: Identity | None = None
    group: Path | None = None
    users: Container[int] | None = None
    """The user ids its processes may have besides the server's; None if unknown."""

    def members(self) -> list[Process]:
        """Return all living processes, parents before their children."""
        table = snapshot()
        seeds = {pid for pid in table if self.mark in marks(pid) and self._may_own(pid)}
        if self.group is not None:
            seeds.update(cgroup.pids(self.group))
        if self.root is not None and (root := table.get(self.root[0])) is not None:
            seeds.update([root.pid] if root.identity == self.root else [])
        return _with_descendants(table, seeds - {os.getpid()})

    def descendants(self) -> list[Process]:
        """Return the root and its descendants, ignoring marks and control groups."""
        table = snapshot()
        root = table.get(self.root[0]) if self.root is not None else None
        return _with_descendants(table, [root.pid] if root and root.identity == self.root else [])

    def stop(self, time_limit: float) -> None:
        """Stop every member and wait until each is stopped; raises TimeoutError if one does not.

        Works from the top down, one process after the other, so that no shell sees its job stop and
        reacts to it; repeats until no new process appears.
        """
        deadline = monotonic() + time_limit
        if self.group is not None:
            cgroup.freeze(self.group, time_limit)
        while True:
            members = self._outside_group()
            for process in members:
                if process.state not in _STOPPED:
                    send(process, signal.SIGSTOP)
                    _wait_stopped(process, deadline)
            if all(process.state in _STOPPED for process in members):
                _signal_groups(members, signal.SIGSTOP)
                return

    def resume(self, keep: Collection[Identity]) -> None:
        """Continue every member, children first, except those to keep stopped."""
        for process in reversed(self._outside_group()):
            if process.identity not in keep:
                send(process, signal.SIGCONT)
        if self.group is not None:
            cgroup.thaw(self.group)

    def stopped(self) -> list[Identity]:
        """Return the members that are stopped by a signal."""
        return [item.identity for item in self._outside_group() if item.state in _STOPPED]

    def others(self) -> list[Process]:
        """Return the members without the root."""
        return [item for item in self.members() if item.identity != self.root]

    def terminate(self) -> bool:
        """Send SIGTERM to every member but the root; return whether there was one."""
        others = self.others()
        for process in others:
            send(process, signal.SIGTERM)
        return bool(others)

    def kill(self) -> bool:
        """Kill every member but the root; return whether any process was left.

        The root ends by itself when it has reaped all others, and not before: as long as it lives,
        there may be a process that changes its pid too fast to be found.
        """
        if self.group is not None:
            with contextlib.suppress(OSError):  # includes TimeoutError
                cgroup.freeze(self.group, _FREEZE_SECONDS)
        members = self.members()
        others = [item for item in members if item.identity != self.root]
        _signal_groups([item for item in others if item.job != self._root_pid()], signal.SIGKILL)
        for process in others:
            send(process, signal.SIGKILL)
        if self.group is not None:
            with contextlib.suppress(OSError):
                cgroup.thaw(self.group)
        if self.root is not None:
            send_to(self.root, signal.SIGCONT)
        return bool(members)

    def _may_own(self, pid: int) -> bool:
        return self.users is None or may_own(pid, self.users)

    def _root_pid(self) -> int:
        return self.root[0] if self.root is not None and is_alive(self.root) else 0

    def _outside_group(self) -> list[Process]:
        # Processes in the freezer need no signal, and would be disturbed by one.
        inside = set(cgroup.pids(self.group)) if self.group is not None else set()
        return [item for item in self.members() if item.pid not in inside]


def look_up(pid: int) -> Process | None:
    """Return the process with that pid, or None if there is none."""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        job=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=sum(map(int, fields[11:15])),
        start=int(fields[19]),
    )


def is_alive(identity: Identity) -> bool:
    """Return whether exactly this process is alive; a zombie is not."""
    process = look_up(identity[0])
    return process is not None and process.identity == identity and process.state not in _ENDED


def is_stopped(identity: Identity) -> bool:
    """Return whether exactly this process is stopped by a signal."""
    process = look_up(identity[0])
    return process is not None and process.identity == identity and process.state in _STOPPED


def snapshot() -> dict[int, Process]:
    """Return the process table."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # names are enough
    return {pid: process for pid in pids if (process := look_up(pid)) is not None}


def marks(pid: int) -> tuple[str, ...]:
    """Return the mark in a process's environment, if any."""
    try:
        environ = b"\0" + read_whole(f"/proc/{pid}/environ", _ENVIRON_MAX)
    except OSError:
        return ()
    _, head, rest = environ.partition(f"\0{MARK}=".encode())
    return (rest.partition(b"\0")[0].decode(errors="replace"),) if head else ()


def may_own(pid: int, users: Container[int]) -> bool:
    """Return whether a process belongs to the server's user or to one of `users`.

    Anyone who can read the process table can copy a mark from it.
    """
    user = _user_of(pid)
    return user is not None and (user == os.geteuid() or user in users)


def _user_of(pid: int) -> int | None:
    # Not the owner of its files in `/proc`: a process can make root the owner of these.
    with contextlib.suppress(OSError):
        return int(read_whole(f"/proc/{pid}/status").partition(b"\nUid:")[2].split()[0])
    return None


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to exactly this process; does nothing if it has ended."""
    send_to(process.identity, number)


def send_to(identity: Identity, number: signal.Signals) -> None:
    """Send a signal to the process of that identity; does nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(identity[0])
        try:
            if is_alive(identity):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _signal_groups(members: Collection[Process], number: signal.Signals) -> None:
    # The kernel signals all of a process group at once, even a process that is just being forked.
    # Our own session is skipped, whatever marks its processes may carry.
    own = os.getsid(0)
    for process in members:
        if process.session not in (0, own) and is_alive(process.identity):
            with contextlib.suppress(OSError):
                os.killpg(process.job, number)


def reap(identity: Identity) -> None:
    """Reap exactly this process if it is our own ended child; otherwise do nothing."""
    process = look_up(identity[0])
    if process is not None and process.identity == identity:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(identity[0], os.WNOHANG)


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine; pids are only comparable within one boot.

    Returns "" on a machine without one. Raises OSError if it cannot be read now, and retries at the
    next call.
    """
    try:
        return read_whole("/proc/sys/kernel/random/boot_id").decode().strip()
    except (FileNotFoundError, PermissionError):
        return ""


def _with_descendants(table: dict[int, Process], seeds: Collection[int]) -> list[Process]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = _reachable(seeds, children)
    tops = [pid for pid in found if pid in table and table[pid].parent not in found]
    ordered = [table[pid] for pid in _reachable(tops, children)]
    return [item for item in ordered if item.state not in _ENDED and item.pid != os.getpid()]


def _reachable(starts: Collection[int], children: dict[int, list[int]]) -> list[int]:
    # Breadth first: each process comes after its parent.
    found = dict.fromkeys(starts)
    queue = list(found)
    for pid in queue:
        new = [child for child in children.get(pid, ()) if child not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return queue


def _wait_stopped(process: Process, deadline: float) -> None:
    while is_alive(process.identity) and not is_stopped(process.identity):
        if monotonic() > deadline:
            raise TimeoutError
        time.sleep(_POLL_SECONDS)
