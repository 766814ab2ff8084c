"""Control groups: finds the writable hierarchy and sets limits through it.

A sandbox has one group of version 2 if the host has that hierarchy, to track, freeze and end its
processes, and one group of version 1 for each limit that a version 1 controller enforces. Both are
created below the server's own group, so that limits of the server apply to its sandboxes, too. All
functions block briefly; call them from a thread.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import new_id
from agentsvc.plugin import Limits

from .files import mounts_of

_PERIOD_MICROSECONDS: Final = 100_000
_QUOTA_MICROSECONDS_MIN: Final = 1_000
_DELEGATED: Final = ("trusted.delegate", "user.delegate")
"""Extended attributes by which systemd marks a group whose service may create subgroups."""

_OWN_LEAF: Final = "agentsvc-server"

CONTROLLERS: Final = {"cpus": "cpu", "memory_bytes": "memory", "pids": "pids"}
"""The controller for each field of Limits that a group can enforce."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A hierarchy as it is mounted here, and the server's own group in it."""

    controllers: frozenset[str]
    """Controllers of version 1; empty for version 2."""
    is_unified: bool
    own: Path


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The parent groups for sandboxes, and the limits that their controllers enforce."""

    unified: Path | None = None
    """The parent group of version 2."""
    controllers: frozenset[str] = frozenset()
    """The controllers that its subgroups have."""
    legacy: dict[str, Path] = {}
    """The parent group of version 1 for each controller."""

    def limits(self) -> frozenset[str]:
        """Return the fields of Limits that are enforced."""
        kept = self.controllers | self.legacy.keys()
        return frozenset(field for field, name in CONTROLLERS.items() if name in kept)

    def describe(self) -> str:
        """Describe in a line which hierarchies and controllers are used."""
        parts = [f"version 2 at {self.unified}"] if self.unified else []
        if self.controllers:
            parts[0] += f" with {', '.join(sorted(self.controllers))}"
        parts += [f"version 1 for {name}" for name in sorted(self.legacy)]
        return "; ".join(parts) or "not usable"

    def legacy_paths(self, name: str) -> list[Path]:
        """Return the paths of a sandbox's version 1 groups, whether or not they exist."""
        return [parent / name for parent in self.legacy.values()]

    def make(self, name: str, limits: Limits) -> "SandboxGroups":
        """Create the groups that enforce the limits; raises OSError if a limit is refused."""
        joined: dict[str, None] = {}
        kills = ""
        for field, controller in CONTROLLERS.items():
            value = getattr(limits, field)
            if value is None:
                continue
            if controller in self.controllers and self.unified is not None:
                group, counter, limit = self.unified / name, "memory.events", _limit_unified
            else:
                group, counter = self.legacy[controller] / name, "memory.oom_control"
                limit = _limit_legacy
            group.mkdir(exist_ok=True)
            limit(group, controller, value)
            joined[str(group)] = None
            if controller == "memory":
                kills = str(group / counter)
        return SandboxGroups(joined=tuple(joined), kills=kills)


class SandboxGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The control groups of one sandbox."""

    joined: tuple[str, ...]
    """The groups that its processes have to join."""
    kills: str
    """The file that counts processes killed by the OOM killer; empty without a memory limit."""


def find() -> Groups:
    """Detect the usable hierarchies; the result is empty if there are none."""
    try:
        mounts = list(_mounts())
    except OSError:
        return Groups()
    unified, controllers = None, frozenset[str]()
    legacy: dict[str, Path] = {}
    for mount in mounts:
        if mount.is_unified:
            unified, controllers = _try_unified(mount.own)
    for mount in mounts:
        for name in mount.controllers & set(CONTROLLERS.values()) - controllers:
            if _is_makeable(mount.own, _LEGACY_FILES[name]):
                legacy[name] = mount.own
    return Groups(unified=unified, controllers=controllers, legacy=legacy)


_LEGACY_FILES: Final = {
    "cpu": "cpu.cfs_quota_us",
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
}


def _limit_legacy(group: Path, controller: str, value: float) -> None:
    match controller:
        case "cpu":
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(_quota(value)))
        case "memory":
            _limit_legacy_memory(group, int(value))
        case _:
            (group / "pids.max").write_text(str(int(value)))


def _limit_legacy_memory(group: Path, value: int) -> None:
    # The limit of memory plus swap must never be below the limit of memory.
    both = group / "memory.memsw.limit_in_bytes"
    if both.exists():
        with contextlib.suppress(OSError):
            both.write_text("-1")
    (group / "memory.limit_in_bytes").write_text(str(value))
    if both.exists():
        both.write_text(str(value))


def _limit_unified(group: Path, controller: str, value: float) -> None:
    match controller:
        case "cpu":
            (group / "cpu.max").write_text(f"{_quota(value)} {_PERIOD_MICROSECONDS}")
        case "memory":
            (group / "memory.max").write_text(str(int(value)))
            if (group / "memory.swap.max").exists():
                (group / "memory.swap.max").write_text("0")
        case _:
            (group / "pids.max").write_text(str(int(value)))


def _quota(cpus: float) -> int:
    return max(int(cpus * _PERIOD_MICROSECONDS), _QUOTA_MICROSECONDS_MIN)


def _try_unified(own: Path) -> tuple[Path | None, frozenset[str]]:
    """Return the group for subgroups, and the controllers that those have."""
    for parent in _parents(own):
        if _is_makeable(parent, "cgroup.freeze"):
            return parent, _enable(parent, own)
    return None, frozenset()


def _parents(own: Path) -> list[Path]:
    # The service manager may have put the server into a leaf of the delegated group.
    return [own.parent, own] if _is_delegated(own.parent) else [own]


def _enable(parent: Path, own: Path) -> frozenset[str]:
    """Enable controllers for the subgroups of `parent`, and return those that are enabled."""
    try:
        offered = set((parent / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()
    wanted = sorted(offered & set(CONTROLLERS.values()))
    control = parent / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if _may_divide(parent, own):
            for name in wanted:
                control.write_text(f"+{name}")
    try:
        return frozenset(control.read_text().split()) & set(wanted)
    except OSError:
        return frozenset()


def _may_divide(parent: Path, own: Path) -> bool:
    """Return whether controllers may be enabled for subgroups; moves our processes to a leaf first.

    Only the root group may have both processes and limited subgroups. Below it, a group that is not
    delegated to us belongs to the manager of this machine.
    """
    if not (parent / "cgroup.type").exists():
        return True
    if not _is_delegated(parent):
        return False
    if parent == own:
        _move_to_leaf(own)
    return True


def _move_to_leaf(own: Path) -> None:
    leaf = own / _OWN_LEAF
    leaf.mkdir(exist_ok=True)
    for pid in (own / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)


def _is_delegated(group: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _is_makeable(parent: Path, file: str) -> bool:
    trial = parent / f"agentsvc-trial-{new_id()}"
    try:
        trial.mkdir()
        fits = os.access(trial / file, os.W_OK)
        trial.rmdir()
    except OSError:
        return False
    return fits


def _mounts() -> Iterator[Mount]:
    own = dict(_own_paths())
    for fields in mounts_of("self"):
        root, point = fields[3:5]
        kind, _, options = fields[fields.index("-", 6) + 1 :]
        if kind == "cgroup2":
            names = frozenset({""})
        elif kind == "cgroup":
            names = frozenset(options.split(",")) & own.keys()
        else:
            continue
        path = next((own[name] for name in names if name in own), None)
        below = _relative_path(path, root) if path is not None else None
        if below is not None:
            folder = Path(point.replace(r"\040", " ")) / below
            yield Mount(controllers=names - {""}, is_unified=kind == "cgroup2", own=folder)


def _own_paths() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _relative_path(path: str, root: str) -> str | None:
    # A container may see its own group mounted as if it were the root group.
    if "/.." in path:
        return None
    if root == "/":
        return path.lstrip("/")
    if path == root or path.startswith(f"{root}/"):
        return path[len(root) :].lstrip("/")
    return None
