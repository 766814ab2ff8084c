"""Available memory of this machine and of the server's control group. Linux only; blocks."""

import contextlib
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return the available memory in bytes, or None if it is unknown."""
    found = [_of_machine(root / "proc/meminfo"), *_of_groups(root)]
    return min((one for one in found if one is not None), default=None)


def _of_machine(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_groups(root: Path) -> list[int | None]:
    """Return the available memory of the server's control group and of its ancestors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int | None] = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            group = top / path.lstrip("/")
            groups = [one for one in (group, *group.parents) if one.is_relative_to(top)]
            names = _FILES[controllers]
            found += [_of_group(one, *names) for one in groups]
    return found


_FILES: Final = {
    "": ("memory.max", "memory.current"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def _of_group(group: Path, limit: str, usage: str) -> int | None:
    """Return the rest of a group's limit; inactive page cache does not count as used."""
    try:
        most = (group / limit).read_text().strip()
        if most == "max":
            return None
        used = int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        given_up = int(statistics.get("total_inactive_file", statistics["inactive_file"]))
        return max(0, int(most) - max(0, used - given_up))
    except (OSError, ValueError, KeyError):
        return None
