"""What a process sandbox uses: from its control groups, else from its processes.

All functions block for a moment; call them from a thread.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agentsvc.backend import Usage
from agentsvc.backends import cgroup
from agentsvc.backends.places import State
from agentsvc.backends.tree import Identity, Process, is_alive, look_up

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_CPU_FIELDS: Final = slice(11, 15)
"""Of `stat`, behind the name: its own time and that of the children it has waited for."""


_WORKED_SECONDS: Final = 0.1


class Memories:
    """What the processes of a sandbox take, where nothing else counts it.

    The kernel looks at each of their pages to tell, so of those that have hardly worked since they
    were asked about, what was told is remembered.
    """

    def __init__(self) -> None:
        self._known: dict[Identity, tuple[float, int]] = {}

    def take(self, spent: Mapping[Identity, float]) -> int:
        """Return how many bytes processes take together, of which this is the time they have worked."""
        found: dict[Identity, tuple[float, int]] = {}
        for process, seconds in spent.items():
            known = self._known.get(process)
            if known is None or seconds - known[0] >= _WORKED_SECONDS:
                known = seconds, _memory_of(process[0])
            found[process] = known
        self._known = found
        return sum(size for _, size in found.values())


def usage_of(state: State, memories: Memories) -> Usage | None:
    """Return what the sandbox uses now; None where it does not run."""
    if not is_alive(state.shim):
        return None
    groups = groups_of(state)
    spent = {one.identity: _cpu_of(one.pid) for one in processes_of(state)}
    cpu = next(filter(None, map(_group_cpu, groups)), None)
    memory = next(filter(None, map(_group_memory, groups)), None)
    return Usage(
        cpu_seconds=sum(spent.values()) if cpu is None else cpu,
        memory_bytes=memories.take(spent) if memory is None else memory,
        processes=len(spent),
    )


def groups_of(state: State) -> list[Path]:
    """Return the control groups that hold a sandbox or limit it."""
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
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, file.read_text().split())


def _group_cpu(group: Path) -> float | None:
    spent = _field(group / "cpu.stat", "usage_usec")
    if spent is not None:
        return spent / 1e6
    spent = _number(group / "cpuacct.usage")
    return None if spent is None else spent / 1e9


def _group_memory(group: Path) -> int | None:
    # What the kernel would give up at once is no use of memory.
    for total, cached in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        used = _number(group / total)
        if used is not None:
            return max(0, used - (_field(group / "memory.stat", cached) or 0))
    return None


def _cpu_of(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[_CPU_FIELDS])) / _TICKS
    return 0.0


def _memory_of(pid: int) -> int:
    # What several processes share counts in parts, so that the sum is what there is.
    shared = _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    if shared is not None:
        return shared * 1024
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _field(file: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return _find(file.read_text().splitlines(), name)
    return None


def _find(lines: Iterable[str], name: str) -> int | None:
    for line in lines:
        head, _, rest = line.partition(" ")
        if head == name:
            return int(rest.split()[0])
    return None
