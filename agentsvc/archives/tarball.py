"""Makes a safe archive of what a sandbox sends, and reads it again. Blocks; call it in a thread.

What comes out of a sandbox is hostile until it is shown to be none: nothing in the result leads
out of the directory it is unpacked in, nothing is a device or has special rights, and all sizes
are bounded. It is written anew, member by member, so that nothing unknown gets through.
"""

import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Self, cast

import msgspec
from backports import zstd

from agentsvc.errors import ArchiveRefused

_EXTENDED: Final = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_BROKEN: Final = (
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ValueError,
    OverflowError,
)
_EXTENDED_BYTES: Final = 64 * 1024
_NAME_CHARS: Final = 4096
_PART_BYTES: Final = 256 * 1024
_LEVEL: Final = 3


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How large an archive may become when it is unpacked."""

    unpacked_bytes: int
    files: int


class Contents(msgspec.Struct, kw_only=True):
    """What an archive has, and how much was left out."""

    unpacked_bytes: int = 0
    files: int = 0
    skipped: int = 0


class _BoundedInfo(tarfile.TarInfo):
    """A header; those that announce more about the next one are read whole, so they are bounded."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in a block; raises ReadError for one that wants too much memory."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENDED and not 0 <= info.size <= _EXTENDED_BYTES:
            raise tarfile.ReadError("a header is too long")
        if info.size < 0:
            raise tarfile.ReadError("a size is negative")
        return info


class _Bounded:
    """A stream that ends with an error where it has more than it may."""

    def __init__(self, source: gzip.GzipFile, most: int) -> None:
        self._source = source
        self._left = most

    def read(self, size: int = -1) -> bytes:
        """Read at most so many bytes."""
        data = self._source.read(min(size if size >= 0 else _PART_BYTES, _PART_BYTES))
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRefused("The workspace is larger than archives may be")
        return data


def repack(source: Path, target: Path, bounds: Bounds) -> Contents:
    """Write what is safe of a tar file with gzip into a new tar file with zstd.

    Raises ArchiveRefused for one that is broken or too large; then the target is worth nothing.
    """
    contents = Contents()
    # Headers and padding come on top of what is in the files.
    most = bounds.unpacked_bytes + bounds.files * 4096 + 2**20
    try:
        with (
            gzip.open(source, "rb") as unpacked,
            tarfile.open(
                # To read is all a stream needs.
                fileobj=cast("IO[bytes]", _Bounded(unpacked, most)),
                mode="r|",
                tarinfo=_BoundedInfo,
                errorlevel=1,
            ) as old,
            zstd.open(target, "wb", level=_LEVEL) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as new,
        ):
            _copy(old, new, bounds, contents)
    except _BROKEN as exc:
        raise ArchiveRefused(
            "What the sandbox sent is no whole archive", detail=f"{type(exc).__name__}: {exc}"
        ) from exc
    return contents


def read_parts(file: Path) -> Iterator[bytes]:
    """Yield an archive as a tar file without compression, in parts."""
    with zstd.open(file, "rb") as unpacked:
        while part := unpacked.read(_PART_BYTES):
            yield part


def _copy(old: tarfile.TarFile, new: tarfile.TarFile, bounds: Bounds, contents: Contents) -> None:
    links: set[str] = set()
    plain: set[str] = set()
    for member in old:
        # It would remember every member, and so grow with their number.
        old.members = []  # type: ignore[attr-defined]  # what `iter` of a stream looks into
        name = _safe_name(member.name)
        if name == ".":
            continue
        info = None
        if name is not None and not _is_below(name, links):
            info = _safe_info(member, name, plain)
        if info is None:
            contents.skipped += 1
            continue
        contents.files += 1
        contents.unpacked_bytes += info.size
        if contents.files > bounds.files or contents.unpacked_bytes > bounds.unpacked_bytes:
            raise ArchiveRefused(
                f"The workspace is larger than archives may be: {bounds.files} files and"
                f" {bounds.unpacked_bytes} bytes"
            )
        if info.issym():
            links.add(info.name)
        elif info.isreg():
            plain.add(info.name)
        new.addfile(info, old.extractfile(member) if info.isreg() else None)


def _safe_info(member: tarfile.TarInfo, name: str, plain: set[str]) -> tarfile.TarInfo | None:
    """Return a header of our own for a member, or None for what is left out."""
    info = tarfile.TarInfo(name)
    info.mtime = min(max(int(member.mtime), 0), 2**33)
    info.mode = (member.mode & 0o777) | 0o600
    if member.isdir():
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700
        return info
    if member.size < 0:
        # An extended header may have said so, behind the one that was checked.
        raise tarfile.ReadError("a size is negative")
    if member.isreg() and not member.issparse():
        info.size = member.size
        return info
    if member.issym() and _stays_inside(name, member.linkname):
        info.type, info.linkname = tarfile.SYMTYPE, member.linkname
        return info
    if member.islnk():
        target = _safe_name(member.linkname)
        if target is not None and target in plain:
            info.type, info.linkname = tarfile.LNKTYPE, target
            return info
    return None


def _safe_name(name: str) -> str | None:
    """Return a path without detours, or None for one that leads elsewhere."""
    if not name or len(name) > _NAME_CHARS or "\0" in name or name.startswith("/"):
        return None
    return None if ".." in name.split("/") else posixpath.normpath(name)


def _stays_inside(name: str, target: str) -> bool:
    if not target or len(target) > _NAME_CHARS or "\0" in target or target.startswith("/"):
        return False
    end = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return end != ".." and not end.startswith("../")


def _is_below(name: str, links: set[str]) -> bool:
    """Whether a path, or a directory it is in, is a link."""
    while name:
        if name in links:
            return True
        name = posixpath.dirname(name)
    return False
