"""Copies the files of a sandbox while it runs.

The sandbox may change its files meanwhile, also to trick the server into reading files outside of it. So
each entry is opened relative to its directory's descriptor, and no link is followed. Standard library
only, because it also runs inside sandboxes.
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
_MODE_BITS: Final = 0o777
_MAX_PASSES: Final = 4
_MAX_DEPTH: Final = 64
_CHUNK_BYTES: Final = 2**24
_TIMESTAMP_NS: Final = 20_000_000
"""The precision of file timestamps: how far they may lag behind the clock."""


_Within = tuple[int, int, int | None]
"""Descriptors of the source directory, the target, and the earlier copy if there is one."""


class Copy(NamedTuple):
    """A copy of directories, and the clock in nanoseconds at which it was begun."""

    path: Path
    begun: int


class FilesRefused(Exception):
    """The files cannot be copied or restored; the message says why."""


def copy_running(
    directories: Mapping[str, Path], into: Path, broken_off: Event, earlier: Copy | None = None
) -> Copy:
    """Copy directories, by their new names, to a new directory in `into`, as of one moment. Blocks.

    Files unchanged since an earlier copy are hard-linked from it. Passes are repeated until nothing
    changed since the last pass began, at most a few times: files that change all the time are copied
    as far as they have been written. Raises FilesRefused for directories nested too deeply, and
    InterruptedError when `broken_off` is set.
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
        if len(copies) == _MAX_PASSES or not _have_changed(directories.values(), copy.begun):
            return copy


def _have_changed(directories: Iterable[Path], begun: int) -> bool:
    """Return whether anything in directories may have changed since `begun`."""
    for directory in directories:
        for _, below, names, descriptor in os.fwalk(directory):
            if os.fstat(descriptor).st_ctime_ns >= begun - _TIMESTAMP_NS:
                return True
            for name in (*names, *below):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(name, dir_fd=descriptor).st_ctime_ns >= begun - _TIMESTAMP_NS:
                        return True
    return False


class _Pass:
    """One pass over directories; files unchanged since an earlier copy are hard-linked from it."""

    def __init__(self, target: Path, earlier: Copy | None, broken_off: Event) -> None:
        self._target = target
        self._earlier = earlier.path if earlier else None
        self._since = earlier.begun if earlier else 0
        self._broken_off = broken_off
        self._linked: dict[tuple[int, int], str] = {}
        """The path in the target of the first name of each file with several names."""

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
        if depth > _MAX_DEPTH:
            raise FilesRefused(f"Directories of the sandbox are more than {_MAX_DEPTH} levels deep")
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
                # Skip entries that were removed or replaced meanwhile, or that their owner cannot read.
                with contextlib.suppress(
                    FileNotFoundError, NotADirectoryError, PermissionError, _Replaced
                ):
                    self._copy_entry((source, target, earlier), entry, path, depth)
            info = os.fstat(source)
            os.fchmod(target, info.st_mode & _MODE_BITS)
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
                if exc.errno in (errno.ELOOP, errno.ENXIO):  # replaced by a link or a socket
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
            os.fchmod(new, info.st_mode & _MODE_BITS)
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
    """Return a descriptor that is closed together with the stack."""
    descriptor = os.open(path, flags, 0o600, dir_fd=within)
    opened.callback(os.close, descriptor)
    return descriptor


class _Replaced(Exception):
    """The entry was replaced by one of another kind after it was listed."""


def is_unchanged(info: os.stat_result, copy: os.stat_result, begun: int) -> bool:
    """Return whether an entry is unchanged since it was copied by a copy begun at `begun`."""
    # ctime cannot be set; the other fields reveal an entry that was moved here. If the clock was set back,
    # ctime proves nothing.
    is_older = info.st_ctime_ns < begun - _TIMESTAMP_NS and begun <= time.time_ns()
    return is_older and _metadata_of(info) == _metadata_of(copy)


def _metadata_of(info: os.stat_result) -> tuple[int, int, int, int]:
    kind = stat.S_IFMT(info.st_mode)
    return kind, info.st_mode & _MODE_BITS, info.st_size, info.st_mtime_ns


def _entries(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy a file's data without its holes; shares blocks if the file system supports that."""
    start = 0
    with contextlib.suppress(_NoMoreData):
        while start < size:
            start = _seek(source, start, os.SEEK_DATA)
            end = min(_seek(source, start, os.SEEK_HOLE), size)
            while start < end:
                start += _copy_part(source, target, start, min(end - start, _CHUNK_BYTES))
    os.ftruncate(target, size)


class _NoMoreData(Exception):
    """The rest of the file is a hole, or there is no rest."""


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
