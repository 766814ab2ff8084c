"""Finds traces of sandboxes on this machine, without asking their backend.

Searches for their random names in the arguments and environment of processes, in the names of temporary
files and control groups, and in mounts. Blocks; call it in a thread.
"""

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108  # looked at only
_GROUPS: Final = Path("/sys/fs/cgroup")
_MOUNTS: Final = Path("/proc/self/mounts")


def traces(names: Collection[str], state_dir: Path) -> list[str]:
    """Return every process, file, control group and mount that mentions one of the names."""
    marks = [name.encode() for name in names]
    return [
        *_processes(marks),
        *(f"file {path}" for path in _entries(state_dir) if _is_marked(path.name, names)),
        *(f"control group {path}" for path in _groups() if _is_marked(path.name, names)),
        *(f"mount {line}" for line in _mounts() if _is_marked(line, names)),
    ]


def _processes(marks: Collection[bytes]) -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        # Processes that exit meanwhile, and those of other users, cannot be read.
        with contextlib.suppress(OSError):
            content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if any(mark in content for mark in marks):
                command = (entry / "comm").read_text().strip()
                yield f"process {entry.name} ({command})"


def _entries(state_dir: Path) -> Iterator[Path]:
    yield from sorted(state_dir.rglob("*"))
    for directory in {*_TEMPORARY, tempfile.gettempdir()}:
        with contextlib.suppress(OSError):
            yield from Path(directory).iterdir()


def _groups() -> Iterator[Path]:
    for directory, below, _ in os.walk(_GROUPS):
        yield from (Path(directory, name) for name in below)


def _mounts() -> list[str]:
    return _MOUNTS.read_text(errors="replace").splitlines() if _MOUNTS.exists() else []


def _is_marked(text: str, names: Collection[str]) -> bool:
    return any(name in text for name in names)
