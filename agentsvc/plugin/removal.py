"""Removes directories, whatever a sandbox did to them. Standard library only."""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_directory(path: Path) -> None:
    """Remove a directory tree, even if a sandbox removed its own permissions on it. Idempotent.

    A sandbox can nest directories deeper than a path may be long and than Python can recurse, so
    each is moved to the top before it is emptied. No process of the sandbox may be running.
    """
    with contextlib.suppress(FileNotFoundError):
        top = _open_directory(str(path))
        try:
            _empty(top)
        finally:
            os.close(top)
        path.rmdir()


def _empty(top: int) -> None:
    prefix = secrets.token_hex(8)
    numbers = itertools.count()
    waiting = [name for name, is_directory in list(_entries(top)) if is_directory]
    while waiting:
        name = waiting.pop()
        directory = _open_directory(name, top)
        try:
            for inner, is_directory in _entries(directory):
                if is_directory:
                    # Moving a directory requires write permission on it.
                    os.close(_open_directory(inner, directory))
                    waiting.append(f"{prefix}-{next(numbers)}")
                    os.rename(inner, waiting[-1], src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=top)
    # Remove files of the top last: they say whose directory it is, so an aborted removal can be resumed.
    for name, _ in _entries(top):
        os.unlink(name, dir_fd=top)


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    """Yield the names in a directory, and whether each is a directory itself."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name, entry.is_dir(follow_symlinks=False)


def _open_directory(name: str, within: int | None = None) -> int:
    """Grant the owner all permissions on a directory and open it; follows no link."""
    descriptor = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=within)
    try:
        own = Path(f"/proc/self/fd/{descriptor}")
        own.chmod(0o700)
        return os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
