"""Reads files below a directory whose content is untrusted.

Symbolic links are not followed in any part of a path, only regular files are read, and never more
bytes than allowed.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import is_no_room

from .model import Unreadable

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would block.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE: Final = 1024 * 1024
_IRREGULAR: Final = "is a link or not a regular file"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a directory: its name, type, size and time of modification."""

    name: str
    is_directory: bool
    size: int
    written_ns: int


class Tree:
    """The files below one directory, by paths with slashes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self, path: str = "") -> list[Entry]:
        """Return a directory's subdirectories and regular files by name; none if it is missing.

        Links and special files are left out. Raises Unreadable if it cannot be listed.
        """
        try:
            with self._opened(path, _DIRECTORY) as descriptor, os.scandir(descriptor) as found:
                listed = [_entry(one) for one in found]
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise Unreadable(_why(exc)) from exc
        return sorted((one for one in listed if one is not None), key=lambda one: one.name)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """Return the content of a file; raises Unreadable, also if it is larger than allowed."""
        with self._file(path) as descriptor:
            return b"".join(_pieces(descriptor, max_bytes))

    def find(self, path: str, *, max_bytes: int) -> bytes | None:
        """Return the content of a file, or None if it does not exist; raises as `read`."""
        try:
            return self.read(path, max_bytes=max_bytes)
        except Unreadable as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return None
            raise

    def copy(self, path: str, to: Path, *, max_bytes: int) -> None:
        """Copy a file to another place; raises as `read`, and OSError if the disk is full."""
        with self._file(path) as descriptor, to.open("wb") as copy:
            for part in _pieces(descriptor, max_bytes):
                copy.write(part)

    @contextlib.contextmanager
    def _file(self, path: str) -> Iterator[int]:
        try:
            with self._opened(path, _FILE) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise Unreadable(_IRREGULAR)
                yield descriptor
        except OSError as exc:
            if is_no_room(exc):
                # Not a fault of the file: the import must stop instead of skipping it.
                raise
            raise Unreadable(_why(exc)) from exc

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        steps = [step for step in path.split("/") if step]
        if ".." in steps:
            raise Unreadable("is outside of the directory")
        with contextlib.ExitStack() as opened:
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            for number, step in enumerate(steps, 1):
                wanted = flags if number == len(steps) else _DIRECTORY
                descriptor = os.open(step, wanted, dir_fd=descriptor)
                opened.callback(os.close, descriptor)
            yield descriptor


def _pieces(descriptor: int, max_bytes: int) -> Iterator[bytes]:
    left = max_bytes
    while part := os.read(descriptor, min(left + 1, _PIECE)):
        left -= len(part)
        if left < 0:
            raise Unreadable(f"is larger than {max_bytes} bytes")
        yield part


def _entry(found: os.DirEntry[str]) -> Entry | None:
    try:
        seen = found.stat(follow_symlinks=False)
        found.name.encode()
    except (OSError, UnicodeEncodeError):
        return None
    is_directory = stat.S_ISDIR(seen.st_mode)
    if not is_directory and not stat.S_ISREG(seen.st_mode):
        return None
    return Entry(
        name=found.name,
        is_directory=is_directory,
        size=seen.st_size,
        written_ns=seen.st_mtime_ns,
    )


def _why(exc: OSError) -> str:
    if exc.errno in (errno.ELOOP, errno.ENXIO):  # it is a link or a socket
        return _IRREGULAR
    return f"cannot be read: {exc.strerror or type(exc).__name__}"
