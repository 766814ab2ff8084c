"""Small files: those that are read very often, those that are written anew, and those that a child gets.

With the standard library alone.
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
"""Of files for a child, whose lowest numbers are for others."""


def read_whole(path: str, limit: int = sys.maxsize) -> bytes:
    """Return what is in a file, but not much more than a limit; raises OSError.

    It is a third of the work of a file object, which asks the kernel more than what it is read for.
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


def write_anew(path: Path, data: bytes) -> None:
    """Put a file, which only its owner may read, in the place of what there is, all at once."""
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    try:
        new.touch(mode=0o600)
        new.write_bytes(data)
        new.replace(path)
    finally:
        # On a full disk it is tried again and again, each time under another name.
        new.unlink(missing_ok=True)


def read_field(path: str, name: str) -> int | None:
    """Return the number behind a name that begins a line, None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_whole(path).decode().splitlines():
            head, _, rest = line.partition(" ")
            if head == name:
                return int(rest.split()[0])
    return None


def mounts_of(pid: int | str) -> list[list[str]]:
    """Return the fields of each mount that a process sees, as `mountinfo` has them; raises OSError.

    Names of directories may hold anything but blanks and ends of lines, which the kernel escapes.
    """
    text = read_whole(f"/proc/{pid}/mountinfo").decode(errors="surrogateescape")
    return [line.split(" ") for line in text.removesuffix("\n").split("\n")]


def stat_of(pid: int | str) -> list[bytes]:
    """Return what the kernel says of a process in `stat`, from its state on; raises OSError.

    What comes before, its name, may hold anything.
    """
    return read_whole(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def resident_bytes(pid: int | Literal["self"]) -> int:
    """Return how much memory a process has that is not swapped out; 0 for one that has ended."""
    with contextlib.suppress(OSError, ValueError):
        return int(read_whole(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


class ChildFiles:
    """Open files for a child, closed at the end."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._made.values():
            os.close(number)

    def add(self, name: str, data: bytes) -> int:
        """Make one in memory and return its number."""
        number = os.memfd_create(name)
        os.write(number, data)
        os.lseek(number, 0, os.SEEK_SET)
        return self.put(name, number)

    def put(self, name: str, number: int) -> int:
        """Take over what is open already, under a number that is not one of the lowest; return that."""
        try:
            self._made[name] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _NUMBER_MIN)
        finally:
            os.close(number)
        return self._made[name]

    def add_arguments(self, arguments: Iterable[str]) -> int:
        """Make one of a program's arguments, in which `@NAME` is replaced by the number of that file."""
        told = (str(self._made[one[1:]]) if one[:1] == "@" else one for one in arguments)
        return self.add("arguments", b"".join(one.encode() + b"\0" for one in told))

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all."""
        return tuple(self._made.values())
