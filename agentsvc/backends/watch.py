"""What is looked at while a sandbox runs: kills for want of memory, and the disk it takes.

Used by what holds a process sandbox, with the standard library alone.
"""

import contextlib
import os
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

PAUSE_SECONDS: Final = 1.0
"""How often the holder looks; a kill and an end less than `_TOGETHER_SECONDS` apart are one."""

OUT_OF_MEMORY: Final = "out_of_memory"
DISK_FULL: Final = "disk_full"

_TOGETHER_SECONDS: Final = 5.0
_KILLED: Final = 137
_WALK_PAUSE_SECONDS: Final = 3.0
_WALK_SHARE: Final = 20
_ENTRY_BYTES_MIN: Final = 512
_BLOCK_BYTES: Final = 512
_GROWTH_BYTES: Final = 16 * 1024 * 1024
_EXPENDABLE: Final = "300"
_SCORE: Final = Path("/proc/self/oom_score_adj")

type Json = dict[str, Any]


class Watch:
    """Looks after one sandbox's limits; `kills` is how many processes wanted too much memory."""

    def __init__(self, orders: Json) -> None:
        self.kills = 0
        self.is_disk_full = False
        self._counter = str(orders.get("kills", ""))
        self._disk_bytes: int | None = orders.get("disk_bytes")
        self._directories: list[str] = orders.get("directories", [])
        self._before = read_kills(self._counter)
        self._killed_at = -_TOGETHER_SECONDS
        self._looked_at = -PAUSE_SECONDS
        self._walker: int | None = None

    @property
    def pause_milliseconds(self) -> int | None:
        """How long the holder may wait between two looks; None where there is nothing to see."""
        return int(PAUSE_SECONDS * 1000) if self._counter or self._disk_bytes else None

    def look(self) -> bool:
        """Look, unless that was only just done, and say whether there is something new."""
        if time.monotonic() - self._looked_at < PAUSE_SECONDS:
            return False
        return self._look()

    def _look(self) -> bool:
        self._looked_at = time.monotonic()
        before = (self.kills, self.is_disk_full)
        kills = read_kills(self._counter) - self._before
        if kills > self.kills:
            self.kills, self._killed_at = kills, time.monotonic()
        if self._disk_bytes is not None and not self.is_disk_full:
            self._look_at_walker(self._disk_bytes)
        return (self.kills, self.is_disk_full) != before

    def cause_of(self, exit_code: int | None) -> str:
        """Return why a command that has just ended did so, if it is a matter of limits."""
        self._look()
        if self.is_disk_full:
            return DISK_FULL
        is_recent = time.monotonic() - self._killed_at < _TOGETHER_SECONDS
        return OUT_OF_MEMORY if exit_code == _KILLED and is_recent else ""

    def _look_at_walker(self, limit: int) -> None:
        if self._walker is None:
            self._walker = self._start_walker(limit)
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._walker, 1)
            # It ends without a word when somebody ends it; then there is another one.
            os.close(self._walker)
            self._walker = None
            self.is_disk_full = said == b"!"

    def _start_walker(self, limit: int) -> int:
        ours, theirs = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(theirs)
            return ours
        if pid == 0:
            try:
                os.closerange(3, theirs)
                os.closerange(theirs + 1, 1024)
                os.nice(10)
                _walk_until_over(self._directories, limit)
                os.write(theirs, b"!")
            finally:
                os._exit(0)
        os.close(theirs)
        os.set_blocking(ours, False)
        return ours


def hold(orders: Json) -> None:
    """Join the groups that limit this process and all it starts; raises OSError if one fails."""
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
    """Have what is started meanwhile ended for want of memory before what holds it."""
    before = ""
    with contextlib.suppress(OSError):
        before = _SCORE.read_text()
    be_expendable()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _SCORE.write_text(before)


def be_expendable() -> None:
    """Have this process and all it starts ended for want of memory before what holds it."""
    with contextlib.suppress(OSError):
        _SCORE.write_text(_EXPENDABLE)


def read_kills(path: str) -> int:
    """Return how many processes of a group were killed for want of memory; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines() if path else ():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def size_of(directories: Iterable[str], most: int) -> int:
    """Return what files take on the disk, or some number above `most` as soon as it is more."""
    total = 0
    seen: set[tuple[int, int]] = set()
    waiting = list(directories)
    while waiting and total <= most:
        try:
            entries = os.scandir(waiting.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                total += _size_of_entry(entry, seen, waiting)
                if total > most:
                    break
    return total


def _size_of_entry(entry: os.DirEntry[str], seen: set[tuple[int, int]], waiting: list[str]) -> int:
    try:
        info = entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            waiting.append(entry.path)
    except OSError:
        return 0
    if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
        if (info.st_dev, info.st_ino) in seen:
            return 0
        seen.add((info.st_dev, info.st_ino))
    return max(info.st_blocks * _BLOCK_BYTES, _ENTRY_BYTES_MIN)


def _walk_until_over(directories: list[str], limit: int) -> None:
    parent = os.getppid()
    most = limit
    if size_of(directories, limit) > limit:
        # One that is started again with too much is not ended before it can remove some.
        most = size_of(directories, 2**63) + _GROWTH_BYTES
    while os.getppid() == parent:
        started = time.monotonic()
        if size_of(directories, most) > most:
            return
        took = time.monotonic() - started
        time.sleep(max(_WALK_PAUSE_SECONDS, took * _WALK_SHARE))
    os._exit(0)
