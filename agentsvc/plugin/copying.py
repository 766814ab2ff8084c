"""Copying the files of a sandbox while it runs.

Who is inside may change anything meanwhile, also to have the server read what is not theirs. So each
thing is opened below the directory it was found in, and no link is followed. Standard library only, so
that it can be run inside of a sandbox, too.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from agentsvc.plugin.removal import remove_directory

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_RIGHTS: Final = 0o777
_PASSES: Final = 4
_DEEPEST: Final = 64
_AT_ONCE: Final = 2**24
_CLOCK_NS: Final = 20_000_000
"""How far the times of files may be behind the clock."""


_Within = tuple[int, int, int | None]
"""A directory, that of its copy, and that of an earlier copy if there is one."""


class Copy(NamedTuple):
    """A copy of directories, and when it was begun, by the clock in nanoseconds."""

    path: Path
    begun: int


class FilesRefused(Exception):
    """Files are of a kind, or so many, that they are not copied."""


def copy_running(
    directories: Mapping[str, Path], into: Path, broken_off: Event, earlier: Copy | None = None
) -> Copy:
    """Copy directories, by the names they are to have, as they are at one moment into a new one. Blocks.

    What has not changed since an earlier copy is shared with that. It is gone through again until
    nothing has changed since that was begun, and a few times at most: what changes all the time is
    copied as far as it has come. Raises FilesRefused for directories that are too deep, and
    InterruptedError when it is broken off.
    """
    copies: list[Copy] = []
    while True:
        copy = Copy(into / str(len(copies)), time.time_ns())
        copy.path.mkdir(mode=0o700)
        one = _Pass(copy.path, earlier, broken_off)
        for name, directory in directories.items():
            one.copy(directory, name)
        if copies:
            remove_directory(copies[-1].path)
        copies.append(copy)
        earlier = copy
        if len(copies) == _PASSES or not _have_changed(directories.values(), copy.begun):
            return copy


def _have_changed(directories: Iterable[Path], begun: int) -> bool:
    """Say whether anything in directories is not what it was at that time."""
    for directory in directories:
        for _, below, names, descriptor in os.fwalk(directory):
            if os.fstat(descriptor).st_ctime_ns >= begun - _CLOCK_NS:
                return True
            for name in (*names, *below):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(name, dir_fd=descriptor).st_ctime_ns >= begun - _CLOCK_NS:
                        return True
    return False


class _Pass:
    """Going through directories once; what has not changed since an earlier time is linked."""

    def __init__(self, target: Path, earlier: Copy | None, broken_off: Event) -> None:
        self._target = target
        self._earlier = earlier.path if earlier else None
        self._since = earlier.begun if earlier else 0
        self._broken_off = broken_off
        self._linked: dict[tuple[int, int], str] = {}
        """Where the first of several names of a file is in the target."""

    def copy(self, source: Path, name: str) -> None:
        """Copy one directory into the target, under a name."""
        with contextlib.ExitStack() as opened:
            earlier = _open(opened, self._earlier, _DIRECTORY) if self._earlier else None
            self._root = _open(opened, self._target, _DIRECTORY)
            parent = _open(opened, source.parent, _DIRECTORY)
            self._copy_directory((parent, self._root, earlier), source.name, name, "", 0)

    def _copy_directory(
        self, within: _Within, source_name: str, name: str, above: str, depth: int
    ) -> None:
        if depth > _DEEPEST:
            raise FilesRefused(f"Directories of the sandbox are more than {_DEEPEST} levels deep")
        parent, new_parent, old_parent = within
        with contextlib.ExitStack() as opened:
            source = _open(opened, source_name, _DIRECTORY, parent)
            os.mkdir(name, 0o700, dir_fd=new_parent)
            target = _open(opened, name, _DIRECTORY, new_parent)
            earlier = None
            if old_parent is not None:
                with contextlib.suppress(OSError):
                    earlier = _open(opened, name, _DIRECTORY, old_parent)
            path = f"{above}{name}/"
            for entry in _entries(source):
                if self._broken_off.is_set():
                    raise InterruptedError
                # What is gone now, was replaced, or cannot be read by its owner is left out.
                with contextlib.suppress(
                    FileNotFoundError, NotADirectoryError, PermissionError, _Replaced
                ):
                    self._copy_entry((source, target, earlier), entry, path, depth)
            info = os.fstat(source)
            os.fchmod(target, info.st_mode & _RIGHTS)
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _copy_entry(self, within: _Within, name: str, path: str, depth: int) -> None:
        source, target, earlier = within
        info = os.lstat(name, dir_fd=source)
        if stat.S_ISDIR(info.st_mode):
            self._copy_directory(within, name, name, path, depth + 1)
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif earlier is not None and self._is_unchanged(info, name, earlier):
            os.link(name, name, src_dir_fd=earlier, dst_dir_fd=target, follow_symlinks=False)
        elif stat.S_ISREG(info.st_mode):
            self._copy_file(source, target, name, path)

    def _copy_file(self, source: int, target: int, name: str, path: str) -> None:
        with contextlib.ExitStack() as opened:
            try:
                file = _open(opened, name, _FILE, source)
            except OSError as exc:
                if exc.errno in (errno.ELOOP, errno.ENXIO):  # it is a link or a socket now
                    raise _Replaced from exc
                raise
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                raise _Replaced
            if info.st_nlink > 1:
                first = self._linked.setdefault((info.st_dev, info.st_ino), f"{path}{name}")
                with contextlib.suppress(OSError):  # it is this one, or its path is too long
                    os.link(first, name, src_dir_fd=self._root, dst_dir_fd=target)
                    return
            new = _open(opened, name, _NEW_FILE, target)
            _copy_data(file, new, info.st_size)
            os.fchmod(new, info.st_mode & _RIGHTS)
            os.utime(new, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _is_unchanged(self, info: os.stat_result, name: str, earlier: int) -> bool:
        try:
            old = os.lstat(name, dir_fd=earlier)
        except FileNotFoundError:
            return False
        return is_unchanged(info, old, self._since)


def _open(
    opened: contextlib.ExitStack, path: Path | str, flags: int, within: int | None = None
) -> int:
    """Return a descriptor, which is closed together with all that are opened."""
    descriptor = os.open(path, flags, 0o600, dir_fd=within)
    opened.callback(os.close, descriptor)
    return descriptor


class _Replaced(Exception):
    """Something is not any more what it was when it was found."""


def is_unchanged(info: os.stat_result, copy: os.stat_result, begun: int) -> bool:
    """Say whether something is what it was when it was copied by a copy that was begun then."""
    # Nobody can set the first of these, and the others tell what has changed places. Where the clock
    # was set back it says nothing.
    is_older = info.st_ctime_ns < begun - _CLOCK_NS and begun <= time.time_ns()
    return is_older and _metadata_of(info) == _metadata_of(copy)


def _metadata_of(info: os.stat_result) -> tuple[int, int, int, int]:
    kind = stat.S_IFMT(info.st_mode)
    return kind, info.st_mode & _RIGHTS, info.st_size, info.st_mtime_ns


def _entries(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy what there is of a file, by sharing its blocks where the file system can; no holes."""
    start = 0
    with contextlib.suppress(_NoMoreData):
        while start < size:
            start = _seek(source, start, os.SEEK_DATA)
            end = min(_seek(source, start, os.SEEK_HOLE), size)
            while start < end:
                start += _copy_part(source, target, start, min(end - start, _AT_ONCE))
    os.ftruncate(target, size)


class _NoMoreData(Exception):
    """The file ends here, or is a hole from here on."""


def _seek(file: int, position: int, whence: int) -> int:
    try:
        return os.lseek(file, position, whence)
    except OSError as exc:
        raise _NoMoreData from exc


def _copy_part(source: int, target: int, at: int, size: int) -> int:
    try:
        copied = os.copy_file_range(source, target, size, at, at)
    except OSError:  # not every file system can
        copied = os.pwrite(target, os.pread(source, size, at), at)
    if copied == 0:
        raise _NoMoreData
    return copied
