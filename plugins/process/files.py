"""Small files: fast reads, atomic writes, and files that are passed to a child process.

Uses the standard library alone.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, Self

_AT_ONCE: Final = 65536
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_NUMBER_MIN: Final = 10
"""Lowest file descriptor for a child's files: lower ones are for other uses."""


def read_whole(path: str, limit: int = sys.maxsize) -> bytes:
    """Return a file's content, up to slightly more than a limit; raises OSError.

    It costs a third of a file object, which makes more system calls than the reads.
    """
    parts = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while limit > 0 and (part := os.read(descriptor, _AT_ONCE)):
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    try:
        new.touch(mode=0o600)
        new.write_bytes(data)
        new.replace(path)
    finally:
        # Writes to a full disk are retried, each time with a new temporary name.
        new.unlink(missing_ok=True)


def read_field(path: str, name: str) -> int | None:
    """Return the number after a name at the start of a line, or None if there is no such line."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_whole(path).decode().splitlines():
            head, _, rest = line.partition(" ")
            if head == name:
                return int(rest.split()[0])
    return None


def mounts_of(pid: int | str) -> list[list[str]]:
    """Return the fields of each mount that a process sees, as in `mountinfo`; raises OSError.

    Directory names may hold any characters but blanks and line ends, which the kernel escapes.
    """
    text = read_whole(f"/proc/{pid}/mountinfo").decode(errors="surrogateescape")
    return [line.split(" ") for line in text.removesuffix("\n").split("\n")]


def stat_of(pid: int | str) -> list[bytes]:
    """Return the fields of a process's `stat` from its state on; raises OSError.

    The field before, the command name, may hold any characters.
    """
    return read_whole(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def resident_bytes(pid: int | Literal["self"]) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_whole(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


class ChildFiles:
    """File descriptors that a child process inherits; closed at the end of the context."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._made.values():
            os.close(number)

    def add(self, name: str, data: bytes) -> int:
        """Create an in-memory file with this content and return its descriptor."""
        number = os.memfd_create(name)
        os.write(number, data)
        os.lseek(number, 0, os.SEEK_SET)
        return self.put(name, number)

    def put(self, name: str, number: int) -> int:
        """Move an open descriptor above the lowest numbers, take ownership of it, and return it."""
        try:
            self._made[name] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _NUMBER_MIN)
        finally:
            os.close(number)
        return self._made[name]

    def add_arguments(self, arguments: Iterable[str]) -> int:
        """Create a file of program arguments, with `@NAME` replaced by that file's descriptor."""
        expanded = (str(self._made[one[1:]]) if one[:1] == "@" else one for one in arguments)
        return self.add("arguments", b"".join(one.encode() + b"\0" for one in expanded))

    def numbers(self) -> tuple[int, ...]:
        """Return all descriptors."""
        return tuple(self._made.values())
