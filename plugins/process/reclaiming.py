"""Pushes the memory of frozen processes out to swap, and says where it is.

By the control group where that counts memory, and else by asking the kernel for each process, which is
root's right. All functions block for a moment; call them from a thread.
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
_NO_MATTER: Final = (errno.EINVAL, errno.ENOMEM, errno.ESRCH)
"""What is said of memory that is locked or gone."""
_MAX_TRIES: Final = 8
_FIRST_WAIT_SECONDS: Final = 60.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of a sandbox is."""

    kept_bytes: int = 0
    swapped_bytes: int = 0

    @property
    def is_out(self) -> bool:
        """Whether most of it is in swap."""
        return self.swapped_bytes > self.kept_bytes


class Tries:
    """When memory that has stayed where it was is pushed again: some times, each after twice as long."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._tries: dict[str, tuple[int, float]] = {}

    def is_due(self, sandbox_id: str) -> bool:
        """Say whether it is to be tried now."""
        count, due_at = self._tries.get(sandbox_id, (0, 0.0))
        return count < _MAX_TRIES and self._clock() >= due_at

    def count(self, sandbox_id: str) -> None:
        """Note that it was tried."""
        count, _ = self._tries.get(sandbox_id, (0, 0.0))
        self._tries[sandbox_id] = (count + 1, self._clock() + _FIRST_WAIT_SECONDS * 2**count)

    def forget(self, sandbox_id: str) -> None:
        """Begin anew with a sandbox that has run since, or is gone."""
        self._tries.pop(sandbox_id, None)


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)


def why_not(unified: Path | None, controllers: frozenset[str]) -> str:
    """Say why memory can be pushed out nowhere now, or nothing where it can."""
    if not _bytes("/proc/meminfo", "SwapFree:"):
        return "this machine has no swap, or none that is free"
    by_group = unified is not None and "memory" in controllers
    if by_group or os.geteuid() == 0:
        return ""
    return "it takes control groups of version 2 that count memory, or root"


def counts_memory(group: Path) -> bool:
    """Say whether a group knows what its processes take, and can push it out."""
    return (group / "memory.reclaim").exists()


def push_out_some(group: Path) -> bool:
    """Push some memory of a group out; say whether there may be more."""
    try:
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.swap.max").write_text("max")
        (group / "memory.reclaim").write_text(str(_STEP_BYTES))
    except OSError as exc:
        # The kernel has looked at all there is, and found less than that.
        if exc.errno != errno.EAGAIN:
            raise
        return False
    finally:
        forbid_swap(group)
    return True


def forbid_swap(group: Path) -> None:
    """Let a group whose memory is limited have no more swap: it would count beside the limit."""
    with contextlib.suppress(FileNotFoundError):
        if (group / "memory.max").read_text().strip() != "max":
            (group / "memory.swap.max").write_text("0")


def push_out(process: Identity) -> None:
    """Push out what a process alone has of memory; fine if it has ended."""
    try:
        descriptor = os.pidfd_open(process[0])
    except ProcessLookupError:
        return
    try:
        if is_alive(process):
            for start, length in _private(process[0]):
                _advise(descriptor, start, length)
    finally:
        os.close(descriptor)


def memory_of_group(group: Path) -> Memory:
    """Return where the memory of a group is."""
    kept = int((group / "memory.current").read_text())
    swap = group / "memory.swap.current"
    return Memory(kept_bytes=kept, swapped_bytes=int(swap.read_text()) if swap.exists() else 0)


def memory_of(pids: Iterator[int]) -> Memory:
    """Return where the memory of processes is, without what they share with others and cannot push out."""
    kept = swapped = 0
    for pid in pids:
        rollup = f"/proc/{pid}/smaps_rollup"
        kept += _bytes(rollup, "Private_Dirty:")
        swapped += _bytes(rollup, "SwapPss:")
    return Memory(kept_bytes=kept, swapped_bytes=swapped)


def _private(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a process's memory that are neither shared nor from a file."""
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
        if number not in _NO_MATTER:
            raise OSError(number, os.strerror(number))


def _bytes(path: str, name: str) -> int:
    """Return a field of such a file in bytes, 0 where there is none."""
    return (read_field(path, name) or 0) * 1024
