"""Lowers the CPU weight of running sandboxes while others start.

Where nobody else wants them, they have them all. It is the agent server's session that is weighed, or
the sandbox's control group where that has a weight; what a command's own session gets is left alone.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .files import write_anew
from .meter import groups_of, processes_of
from .sandbox_directory import State

_LEAST: Final = 19
"""The niceness of those that give way; it is a sixtieth of the weight of others."""

_FILES: Final = {"cpu.weight.nice": ("0", str(_LEAST)), "cpu.shares": ("1024", "15")}
"""What to write to a control group, of version 2 or 1, for all and for those that give way."""

_AGAIN_SECONDS: Final = 0.11
"""How long the kernel keeps everybody but root from weighing another session."""

type FindState = Callable[[str], State | None]
"""Returns what is known of a sandbox by its id, if it runs."""


class Priorities:
    """Knows which sandboxes give way, also after the server was killed. All methods block."""

    def __init__(self, file: Path, find: FindState) -> None:
        self._file = file
        self._find = find
        self._lock = threading.Lock()

    def settle(self, wanted: frozenset[str]) -> None:
        """Let these sandboxes give way and no others; those that are gone are fine."""
        with self._lock:
            noted = self._read()
            if noted == wanted:
                return
            # A server that is killed meanwhile finds all that may have less.
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
            write_anew(self._file, "\n".join(sorted(noted)).encode())
        else:
            self._file.unlink(missing_ok=True)


def weigh(state: State, *, gives_way: bool) -> None:
    """Let a sandbox have less where others want the processors, or as much as they."""
    for group in groups_of(state):
        for name, values in _FILES.items():
            if (group / name).exists():
                with contextlib.suppress(OSError):
                    (group / name).write_text(values[gives_way])
    # Of all that runs there it is the agent server that has many threads.
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
        time.sleep(_AGAIN_SECONDS)
        file.write_text(text)
