"""Measures the resource usage of a process sandbox, from its control groups or its processes.

All functions block briefly; call them from a thread.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agentsvc.plugin import Usage

from . import cgroup
from .files import read_field, read_whole, resident_bytes
from .sandbox_directory import State
from .tree import Identity, Process, is_alive, look_up

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_WORKED_SECONDS: Final = 0.05
"""Processes are not measured again if the sandbox has used less CPU time than this since."""
_MANY_SECONDS: Final = 0.5
_OTHER_BYTES: Final = 2**20


class Meter:
    """Measures one sandbox, and caches the results so that an idle sandbox costs little."""

    def __init__(self) -> None:
        self._memories = MemorySamples()
        self._last: tuple[Identity, Usage] | None = None

    def measure(self, state: State) -> Usage | None:
        """Return the sandbox's present usage, or None if it does not run."""
        if not is_alive(state.shim):
            return None
        groups = groups_of(state)
        cpu = next(filter(None, map(_group_cpu, groups)), None)
        memory = next(filter(None, map(_group_memory, groups)), None)
        if cpu is not None and self._last is not None and self._last[0] == state.shim:
            last = self._last[1]
            if cpu - (last.cpu_seconds or 0) < _WORKED_SECONDS:
                return msgspec.structs.replace(
                    last, memory_bytes=memory or last.memory_bytes, disk_bytes=state.disk_bytes
                )
        spent = {one.identity: one.cpu_ticks / _TICKS for one in processes_of(state)}
        usage = Usage(
            cpu_seconds=sum(spent.values()) if cpu is None else cpu,
            memory_bytes=self._memories.measure(spent) if memory is None else memory,
            processes=len(spent),
            disk_bytes=state.disk_bytes,
        )
        self._last = state.shim, usage
        return usage


class MemorySamples:
    """Memory of a sandbox's processes, for sandboxes without a memory control group.

    The kernel walks all pages of a process to compute it. So the value is cached as long as the
    process has about the same resident size, and has used little CPU time since.
    """

    def __init__(self) -> None:
        self._known: dict[Identity, _Memory] = {}

    def measure(self, spent: Mapping[Identity, float]) -> int:
        """Return the total memory in bytes of processes, given the CPU seconds of each."""
        found: dict[Identity, _Memory] = {}
        for process, seconds in spent.items():
            resident = resident_bytes(process[0])
            known = self._known.get(process)
            if known is None or known.is_stale(seconds, resident):
                known = _Memory(seconds, resident, _memory_of(process[0], resident))
            found[process] = known
        self._known = found
        return sum(one.size for one in found.values())


class _Memory(NamedTuple):
    """A memory sample of one process; sizes in bytes."""

    seconds: float
    resident: int
    size: int

    def is_stale(self, seconds: float, resident: int) -> bool:
        has_other = abs(resident - self.resident) >= _OTHER_BYTES
        return has_other or seconds - self.seconds >= _MANY_SECONDS


def groups_of(state: State) -> list[Path]:
    """Return the control groups that hold or limit a sandbox."""
    return [Path(path) for path in dict.fromkeys((state.cgroup, *state.joined)) if path]


def processes_of(state: State) -> Iterator[Process]:
    """Yield every process of a sandbox, its shim first."""
    found = [state.shim[0]]
    if state.cgroup:
        found += cgroup.pids(Path(state.cgroup))
    seen: set[int] = set()
    for pid in found:
        if pid not in seen and (process := look_up(pid)) is not None:
            seen.add(pid)
            found += _children(pid)
            yield process


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # names are enough
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError):
            yield from map(int, read_whole(f"/proc/{pid}/task/{thread}/children").split())


def _group_cpu(group: Path) -> float | None:
    spent = read_field(f"{group}/cpu.stat", "usage_usec")
    if spent is not None:
        return spent / 1e6
    spent = _number(f"{group}/cpuacct.usage")
    return None if spent is None else spent / 1e9


def _group_memory(group: Path) -> int | None:
    # Page cache that the kernel can drop at once does not count.
    for total, cached in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        used = _number(f"{group}/{total}")
        if used is not None:
            return max(0, used - (read_field(f"{group}/memory.stat", cached) or 0))
    return None


def _memory_of(pid: int, resident: int) -> int:
    # PSS counts shared pages in proportion, so that the sum over all processes is exact.
    shared = read_field(f"/proc/{pid}/smaps_rollup", "Pss:")
    return resident if shared is None else shared * 1024


def _number(path: str) -> int | None:
    try:
        return int(read_whole(path))
    except (OSError, ValueError):
        return None
