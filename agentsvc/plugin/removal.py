"""Directories that are removed, whatever a sandbox did with them. Standard library only."""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_directory(path: Path) -> None:
    """Remove a directory and all in it, also where a sandbox took its own rights away.

    Fine if it is not there. A sandbox can make directories deeper than a path can be long and than
    Python can recurse, so each is moved to the top before it is emptied. No process of the sandbox
    may be left.
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
                    # Only who may write to a directory may move it elsewhere.
                    os.close(_open_directory(inner, directory))
                    waiting.append(f"{prefix}-{next(numbers)}")
                    os.rename(inner, waiting[-1], src_dir_fd=directory, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=top)
    # What says whose the directory is goes last, so that what was begun can be finished later.
    for name, _ in _entries(top):
        os.unlink(name, dir_fd=top)


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    """Yield the names in a directory, and which are directories themselves."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name, entry.is_dir(follow_symlinks=False)


def _open_directory(name: str, within: int | None = None) -> int:
    """Open a directory, and let its owner do everything with it; follows no link."""
    descriptor = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=within)
    try:
        own = Path(f"/proc/self/fd/{descriptor}")
        own.chmod(0o700)
        return os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
