"""Pushes the memory of frozen processes out to swap, and reports where it is.

Uses the control group if it accounts memory; otherwise a system call for each process, which only
root may make. All functions block briefly; call them from a thread.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import monotonic

from .files import read_field, read_whole
from .tree import Identity, is_alive

_PROCESS_MADVISE: Final = 440
_MADV_PAGEOUT: Final = 21
_STEP_BYTES: Final = 64 * 1024 * 1024
_IGNORED_ERRORS: Final = (errno.EINVAL, errno.ENOMEM, errno.ESRCH)
"""Errors for memory that is locked or gone; ignored."""
_MAX_ATTEMPTS: Final = 8
_FIRST_WAIT_SECONDS: Final = 60.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a sandbox's memory is resident and how much is swapped out."""

    kept_bytes: int = 0
    swapped_bytes: int = 0

    @property
    def is_out(self) -> bool:
        """Whether most memory is in swap."""
        return self.swapped_bytes > self.kept_bytes


class Tries:
    """Retries of reclaiming memory that did not leave: a limited number, with doubling delays."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._attempts: dict[str, tuple[int, float]] = {}

    def is_due(self, sandbox_id: str) -> bool:
        """Return whether an attempt is due now."""
        count, due_at = self._attempts.get(sandbox_id, (0, 0.0))
        return count < _MAX_ATTEMPTS and self._clock() >= due_at

    def count(self, sandbox_id: str) -> None:
        """Record an attempt."""
        count, _ = self._attempts.get(sandbox_id, (0, 0.0))
        self._attempts[sandbox_id] = (count + 1, self._clock() + _FIRST_WAIT_SECONDS * 2**count)

    def forget(self, sandbox_id: str) -> None:
        """Reset a sandbox that has run since, or is gone."""
        self._attempts.pop(sandbox_id, None)


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)


def why_not(unified: Path | None, controllers: frozenset[str]) -> str:
    """Return why memory cannot be pushed out now, or an empty string."""
    if not _bytes("/proc/meminfo", "SwapFree:"):
        return "this machine has no swap, or none that is free"
    by_group = unified is not None and "memory" in controllers
    if by_group or os.geteuid() == 0:
        return ""
    return "this needs root, or control groups of version 2 with the memory controller"


def counts_memory(group: Path) -> bool:
    """Return whether a group accounts memory and can reclaim it."""
    return (group / "memory.reclaim").exists()


def push_out_some(group: Path) -> bool:
    """Reclaim some memory of a group; return whether there may be more."""
    try:
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.swap.max").write_text("max")
        (group / "memory.reclaim").write_text(str(_STEP_BYTES))
    except OSError as exc:
        # The kernel scanned the whole group and found less than that.
        if exc.errno != errno.EAGAIN:
            raise
        return False
    finally:
        forbid_swap(group)
    return True


def forbid_swap(group: Path) -> None:
    """Forbid swap to a group with a memory limit: swap would be used beyond the limit."""
    with contextlib.suppress(FileNotFoundError):
        if (group / "memory.max").read_text().strip() != "max":
            (group / "memory.swap.max").write_text("0")


def push_out(process: Identity) -> None:
    """Push a process's private memory out; does nothing if it has ended."""
    try:
        descriptor = os.pidfd_open(process[0])
    except ProcessLookupError:
        return
    try:
        if is_alive(process):
            for start, length in _private_ranges(process[0]):
                _advise(descriptor, start, length)
    finally:
        os.close(descriptor)


def memory_of_group(group: Path) -> Memory:
    """Return where the memory of a group is."""
    kept = int((group / "memory.current").read_text())
    swap = group / "memory.swap.current"
    return Memory(kept_bytes=kept, swapped_bytes=int(swap.read_text()) if swap.exists() else 0)


def memory_of(pids: Iterator[int]) -> Memory:
    """Return where the private memory of processes is; shared memory cannot be pushed out."""
    kept = swapped = 0
    for pid in pids:
        rollup = f"/proc/{pid}/smaps_rollup"
        kept += _bytes(rollup, "Private_Dirty:")
        swapped += _bytes(rollup, "SwapPss:")
    return Memory(kept_bytes=kept, swapped_bytes=swapped)


def _private_ranges(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the address ranges that are private and anonymous."""
    with contextlib.suppress(OSError):
        for line in read_whole(f"/proc/{pid}/maps").splitlines():
            addresses, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
            is_kernels = bool(name) and name[0].startswith(b"[v")
            if rights.endswith(b"p") and inode == b"0" and not is_kernels:
                start, end = (int(one, 16) for one in addresses.split(b"-"))
                yield start, end - start


def _advise(descriptor: int, start: int, length: int) -> None:
    part = _Range(start, length)
    if _libc.syscall(_PROCESS_MADVISE, descriptor, ctypes.byref(part), 1, _MADV_PAGEOUT, 0) < 0:
        number = ctypes.get_errno()
        if number not in _IGNORED_ERRORS:
            raise OSError(number, os.strerror(number))


def _bytes(path: str, name: str) -> int:
    """Return a field in kB of such a file in bytes, or 0 if it is missing."""
    return (read_field(path, name) or 0) * 1024
