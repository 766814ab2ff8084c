"""Lowers the CPU weight of running sandboxes while others start.

They still get all CPU time that nobody else wants. The weight is that of the agent server's
session, or of the sandbox's control group if it has one; sessions of other commands keep theirs.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .files import replace_file
from .meter import groups_of, processes_of
from .sandbox_directory import State

_LEAST: Final = 19
"""The niceness of deprioritized sandboxes; a sixtieth of the default weight."""

_FILES: Final = {"cpu.weight.nice": ("0", str(_LEAST)), "cpu.shares": ("1024", "15")}
"""Files of control groups, version 2 or 1, with the default and the lowered value."""

_RETRY_SECONDS: Final = 0.11
"""How long the kernel makes unprivileged processes wait between two changes of a session's
weight."""

type FindState = Callable[[str], State | None]
"""Returns the state of a sandbox by its id, or None unless it runs."""


class Priorities:
    """The sandboxes whose priority is lowered, recorded on disk. All methods block."""

    def __init__(self, file: Path, find: FindState) -> None:
        self._file = file
        self._find = find
        self._lock = threading.Lock()

    def settle(self, wanted: frozenset[str]) -> None:
        """Lower the priority of these sandboxes and restore all others; ignore missing ones."""
        with self._lock:
            noted = self._read()
            if noted == wanted:
                return
            # If the server is killed meanwhile, the next one finds all that may be lowered.
            self._write(noted | wanted)
            for sandbox_id in noted ^ wanted:
                state = self._find(sandbox_id)
                if state is not None:
                    weigh(state, gives_way=sandbox_id in wanted)
            self._write(wanted)

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(self._file.read_text().split())
        except FileNotFoundError:
            return frozenset()

    def _write(self, noted: frozenset[str]) -> None:
        if noted:
            replace_file(self._file, "\n".join(sorted(noted)).encode())
        else:
            self._file.unlink(missing_ok=True)


def weigh(state: State, *, gives_way: bool) -> None:
    """Lower or restore the CPU weight of a sandbox."""
    for group in groups_of(state):
        for name, values in _FILES.items():
            if (group / name).exists():
                with contextlib.suppress(OSError):
                    (group / name).write_text(values[gives_way])
    # The agent server is the process with the most threads.
    pid = max((one.pid for one in processes_of(state)), key=_threads, default=0)
    with contextlib.suppress(OSError):
        _write(Path(f"/proc/{pid}/autogroup"), str(_LEAST if gives_way else 0))


def _threads(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  # how many is enough
    return 0


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except BlockingIOError:
        time.sleep(_RETRY_SECONDS)
        file.write_text(text)
