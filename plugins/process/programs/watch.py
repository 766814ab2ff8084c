"""Watches a running sandbox for out-of-memory kills and disk usage.

Used by the shim, with the standard library alone.
"""

import contextlib
import itertools
import os
import resource
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ..files import read_field

PAUSE_SECONDS: Final = 2.0
"""Interval of the checks; an OOM kill and an exit less than `_TOGETHER_SECONDS` apart belong
together."""

OUT_OF_MEMORY: Final = "out_of_memory"
DISK_FULL: Final = "disk_full"

_TOGETHER_SECONDS: Final = 5.0
_KILLED: Final = 137
_COUNT_SHARE: Final = 20
"""Counting takes at most one part in this many of the time."""
_ANYWAY_SECONDS: Final = 300.0
_ANSWER_MAX: Final = 128
_ENTRY_BYTES_MIN: Final = 4096
"""The size of an entry at the least: a file system also limits the number of files."""
_LONGEST_PATH: Final = 2048
_MAX_HELD: Final = 200
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES: Final = 512
_UNBOUNDED: Final = 2**63
_GROWTH_BYTES: Final = 16 * 1024 * 1024
_EXPENDABLE: Final = "300"
_SCORE: Final = Path("/proc/self/oom_score_adj")

type Json = dict[str, Any]


class LimitWatch:
    """Watches the limits of one sandbox; `kills` is the number of its OOM kills.

    `processes` returns the pids of all processes in it.
    """

    def __init__(self, orders: Json, processes: Callable[[], Iterable[int]]) -> None:
        self.kills = 0
        self.is_disk_full = False
        self._counter = str(orders.get("kills", ""))
        limit: int | None = orders.get("disk_bytes")
        found, seen = orders.get("directories", []), orders.get("seen", [])
        self._disk = Disk(found, limit, processes, seen) if limit else None
        self._before = read_kills(self._counter)
        self._killed_at = -_TOGETHER_SECONDS

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit to watch."""
        return bool(self._counter or self._disk)

    @property
    def disk_bytes(self) -> int | None:
        """The size of its files at the last count; None without a disk limit."""
        return self._disk.size if self._disk else None

    def check(self) -> bool:
        """Check the limits; return whether anything has changed."""
        before = (self.kills, self.is_disk_full, self.disk_bytes)
        kills = read_kills(self._counter) - self._before
        if kills > self.kills:
            self.kills, self._killed_at = kills, time.monotonic()
        if self._disk is not None and not self.is_disk_full:
            self.is_disk_full = self._disk.is_over()
        return (self.kills, self.is_disk_full, self.disk_bytes) != before

    def cause_of(self, exit_code: int | None) -> str:
        """Return the cause if a limit ended a command which has just exited, or an empty string."""
        self.check()
        if self.is_disk_full:
            return DISK_FULL
        is_recent = time.monotonic() - self._killed_at < _TOGETHER_SECONDS
        return OUT_OF_MEMORY if exit_code == _KILLED and is_recent else ""


class Disk:
    """Checks whether the files of a sandbox exceed the disk limit.

    What it writes reduces the free space and the free inodes of the file system. So its files are
    counted only when these have dropped so far that it may exceed the limit, and at long intervals
    in case others have freed as much meanwhile. An idle sandbox costs next to nothing.
    """

    def __init__(
        self,
        directories: list[str],
        limit: int,
        processes: Callable[[], Iterable[int]],
        seen: Iterable[str] = (),
    ) -> None:
        """`seen` are mount points of some of the directories, with files that do not count."""
        self._directories = directories
        self._processes = processes
        self._devices = dict(_devices(directories))
        self._written = self._devices.keys() | dict(_devices(seen)).keys()
        self._limit = self._max = limit
        self.size: int | None = None
        """The size at the last count."""
        self._free = 0
        self._began = 0.0
        self._next = 0.0
        self._answer: int | None = None

    def is_over(self) -> bool:
        """Return whether the last count exceeded the limit; start another count if it is due."""
        if self._answer is not None:
            self._take_answer(self._answer)
        if self._answer is None and self._is_due():
            self._count()
        return self.size is not None and self.size > self._max

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        if self.size is None or now - self._began > _ANYWAY_SECONDS:
            return True
        return self._free - self._free_now() > (self._max - self.size) // 2

    def _free_now(self) -> int:
        found = 0
        for path in self._devices.values():
            with contextlib.suppress(OSError):
                about = os.statvfs(path)
                found += about.f_bfree * about.f_frsize + about.f_ffree * _ENTRY_BYTES_MIN
        return found

    def _count(self) -> None:
        """Count in a forked process, or here if no process can be forked."""
        self._began, self._free = time.monotonic(), self._free_now()
        ours, theirs = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid <= 0:
            try:
                if pid == 0:
                    os.closerange(3, theirs)
                    os.closerange(theirs + 1, 1024)
                    os.nice(10)
                size = self._measure()
                took = time.monotonic() - self._began
                os.write(theirs, f"{size} {took}".encode())
            finally:
                if pid == 0:
                    os._exit(0)
        os.close(theirs)
        os.set_blocking(ours, False)
        self._answer = ours

    def _measure(self) -> int:
        unnamed = size_of_unnamed(self._processes(), self._written)
        # A restarted sandbox that exceeds the limit is counted completely.
        bound = _UNBOUNDED if self.size is None else self._max
        return unnamed + size_of(self._directories, bound)

    def _take_answer(self, answer: int) -> None:
        try:
            said = os.read(answer, _ANSWER_MAX)
        except BlockingIOError:
            return
        os.close(answer)
        self._answer = None
        # Without an answer it was killed; the next check starts another count.
        if not said:
            return
        size, took = said.split()
        self._next = self._began + float(took) * _COUNT_SHARE
        is_first, self.size = self.size is None, int(size)
        if is_first and self._limit < self.size <= _UNBOUNDED:
            # Give it a chance to remove files before it is ended.
            self._max = self.size + _GROWTH_BYTES


def _devices(directories: Iterable[str]) -> Iterator[tuple[int, str]]:
    for path in directories:
        with contextlib.suppress(OSError):
            yield Path(path).stat().st_dev, path


def size_of_unnamed(processes: Iterable[int], devices: Container[int]) -> int:
    """Return the size of deleted files that processes still have open or mapped."""
    found: dict[tuple[int, int], int] = {}
    for pid, kind in itertools.product(processes, ("fd", "map_files")):
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/{kind}") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    if info.st_nlink == 0 and info.st_dev in devices:
                        found[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK_BYTES
    return sum(found.values())


def apply_limits(orders: Json) -> None:
    """Join the groups that limit this process and its children; raises OSError if one fails."""
    for group in orders.get("join", ()):
        Path(group, "cgroup.procs").write_text("0")
    if (usual := orders.get("usual_files")) is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    for name, value in orders.get("rlimits", {}).items():
        kind = getattr(resource, name)
        _, most = resource.getrlimit(kind)
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (bound, bound))


@contextlib.contextmanager
def expendable() -> Iterator[None]:
    """Make the OOM killer prefer processes that are started in this context."""
    before = ""
    with contextlib.suppress(OSError):
        before = _SCORE.read_text()
    be_expendable()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _SCORE.write_text(before)


def be_expendable(pid: int | None = None) -> None:
    """Make the OOM killer prefer a process, by default this one, and its children."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/oom_score_adj").write_text(_EXPENDABLE)


def read_kills(path: str) -> int:
    """Return the number of OOM kills in a group; 0 if unknown."""
    return (read_field(path, "oom_kill") or 0) if path else 0


def size_of(directories: Iterable[str], most: int) -> int:
    """Return the disk usage of files, or some number above `most` if it is more.

    Files count at any depth: if a path gets too long, a directory on the way is kept open and the
    walk continues from there. A tree that is too deep even for that counts as too large.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    held = [(os.open("/", _DIRECTORY), [os.fsencode(one) for one in directories])]
    try:
        while held and total <= most:
            base, waiting = held[-1]
            if not waiting:
                os.close(base)
                held.pop()
                continue
            path = waiting.pop()
            with contextlib.suppress(OSError):
                inner = os.open(path, _DIRECTORY, dir_fd=base)
                if len(path) > _LONGEST_PATH:
                    held.append((inner, [b"."]))
                    total = most + 1 if len(held) > _MAX_HELD else total
                    continue
                try:
                    total += _size_in(inner, path, seen, waiting, most - total)
                finally:
                    os.close(inner)
    finally:
        for base, _ in held:
            os.close(base)
    return total


def _size_in(
    directory: int, path: bytes, seen: set[tuple[int, int]], waiting: list[bytes], most: int
) -> int:
    """Return the size of a directory's entries, and queue its subdirectories."""
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            total += _size_of_entry(entry, path, seen, waiting)
            if total > most:
                break
    return total


def _size_of_entry(
    entry: os.DirEntry[str], path: bytes, seen: set[tuple[int, int]], waiting: list[bytes]
) -> int:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    if entry.is_dir(follow_symlinks=False):
        waiting.append(b"%s/%s" % (path, os.fsencode(entry.name)))
    elif info.st_nlink > 1:
        if (info.st_dev, info.st_ino) in seen:
            return 0
        seen.add((info.st_dev, info.st_ino))
    return max(info.st_blocks * _BLOCK_BYTES, _ENTRY_BYTES_MIN)
