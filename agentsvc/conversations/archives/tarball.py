"""Conversion of a sandbox's tar file into a safe archive. Blocking; call it in a thread.

Input from a sandbox is untrusted. In the result, no path leads out of the directory in which it is
unpacked, no member is a device or has special permissions, and all sizes are bounded. It is
rewritten member by member, so that unknown features are not copied.
"""

import hashlib
import io
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

import msgspec
from backports import zstd

from agentsvc.base import ArchiveRefused
from agentsvc.storage import (
    BLOCK,
    BadTar,
    Gunzip,
    Member,
    MemberKind,
    Readable,
    TarStream,
    safe_name,
    stays_inside,
)

_BROKEN: Final = (BadTar, zstd.ZstdError, EOFError)
_PART_BYTES: Final = 256 * 1024
_LEVEL: Final = 3
_TIME_MAX: Final = 2**33


class UnpackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an unpacked archive; holes in sparse files do not count."""

    unpacked_bytes: int
    files: int


class Contents(msgspec.Struct, kw_only=True):
    """Totals of an archive, and the number of skipped members."""

    unpacked_bytes: int = 0
    files: int = 0
    skipped: int = 0


class _Bounded:
    """A stream that raises ArchiveRefused when it exceeds its limit."""

    def __init__(self, source: Readable, bounds: UnpackLimits) -> None:
        self._source = source
        # Allow for headers and padding in addition to the contents of the files.
        self._left = bounds.unpacked_bytes + bounds.files * 4096 + 2**20

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes."""
        data = self._source.read(min(size if size >= 0 else _PART_BYTES, _PART_BYTES))
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRefused("The workspace exceeds the limit for archives")
        return data


class _PrefixedStream:
    """A stream of some bytes followed by the content of the current member."""

    def __init__(self, head: bytes, rest: TarStream) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int) -> bytes:
        """Read `size` bytes, fewer only at the end."""
        data = self._head.read(size)
        return data + self._rest.read(size - len(data)) if len(data) < size else data


def repack(source: Path, target: Path, bounds: UnpackLimits) -> Contents:
    """Copy the safe members of a gzipped tar file to a new tar file with zstd.

    Raises ArchiveRefused if it is broken or too large; the target is incomplete then.
    """
    contents = Contents()
    try:
        with (
            source.open("rb") as opened,
            zstd.open(target, "wb", level=_LEVEL) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as new,
        ):
            old = TarStream(_Bounded(Gunzip(opened), bounds))
            for member, info in _safe_members(old, contents):
                _check_bounds(contents, bounds)
                _add(new, old, member, info)
    except _BROKEN as exc:
        raise ArchiveRefused(
            "The tar file of the sandbox is not a complete archive",
            detail=f"{type(exc).__name__}: {exc}",
        ) from exc
    return contents


def check(file: Path, bounds: UnpackLimits) -> None:
    """Raise ArchiveRefused for a file that `repack` cannot have written within these bounds."""
    contents = Contents()
    try:
        with zstd.open(file, "rb") as unpacked:
            for _ in _safe_members(TarStream(_Bounded(unpacked, bounds)), contents):
                _check_bounds(contents, bounds)
    except _BROKEN as exc:
        raise ArchiveRefused("This is not a complete archive", detail=str(exc)) from exc
    if contents.skipped:
        raise ArchiveRefused("This archive has members that this server never writes")


def read_parts(file: Path) -> Iterator[bytes]:
    """Yield an archive as an uncompressed tar file, in chunks."""
    with zstd.open(file, "rb") as unpacked:
        while part := unpacked.read(_PART_BYTES):
            yield part


def _safe_members(tar: TarStream, contents: Contents) -> Iterator[tuple[Member, tarfile.TarInfo]]:
    """Yield the safe members of an archive, each with a new header, and count them."""
    seen: dict[bytes, MemberKind] = {}
    for member in tar:
        name = safe_name(member.name)
        if name == ".":
            continue
        info = None
        if name is not None and _is_new(name, seen):
            info = _safe_info(member, name, seen)
        if info is None:
            contents.skipped += 1
            continue
        seen[_digest(info.name)] = member.kind
        contents.files += 1
        contents.unpacked_bytes += member.stored
        yield member, info


def _check_bounds(contents: Contents, bounds: UnpackLimits) -> None:
    if contents.files > bounds.files or contents.unpacked_bytes > bounds.unpacked_bytes:
        raise ArchiveRefused(
            f"The workspace exceeds the limit for archives: {bounds.files} files and"
            f" {bounds.unpacked_bytes} bytes"
        )


def _add(new: tarfile.TarFile, old: TarStream, member: Member, info: tarfile.TarInfo) -> None:
    if member.kind is not MemberKind.FILE:
        new.addfile(info)
        return
    head = b""
    if member.segments is not None:
        head = _sparse_head(member, info)
    info.size = len(head) + member.stored
    # tarfile only reads from it.
    new.addfile(info, cast("IO[bytes]", _PrefixedStream(head, old)))


def _sparse_head(member: Member, info: tarfile.TarInfo) -> bytes:
    """Turn a header into that of a sparse file (format 1.0); return the map before its content."""
    numbers = member.segments or ()
    lines = [len(numbers) // 2, *numbers]
    table = b"".join(b"%d\n" % number for number in lines)
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(member.size),
    }
    info.name = posixpath.join(
        posixpath.dirname(info.name), "GNUSparseFile.0", posixpath.basename(info.name)
    )
    return table + bytes(-len(table) % BLOCK)


def _safe_info(member: Member, name: str, seen: dict[bytes, MemberKind]) -> tarfile.TarInfo | None:
    """Return a new header for a member, or None to leave it out."""
    info = tarfile.TarInfo(name)
    info.mtime = min(member.mtime, _TIME_MAX)
    info.mode = (member.mode & 0o777) | 0o600
    match member.kind:
        case MemberKind.DIRECTORY:
            info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700
        case MemberKind.FILE:
            pass
        case MemberKind.SYMLINK if stays_inside(name, member.target):
            info.type, info.linkname = tarfile.SYMTYPE, member.target
        case MemberKind.HARDLINK:
            target = safe_name(member.target)
            if target is None or seen.get(_digest(target)) is not MemberKind.FILE:
                return None
            info.type, info.linkname = tarfile.LNKTYPE, target
        case _:
            return None
    return info


def _is_new(name: str, seen: dict[bytes, MemberKind]) -> bool:
    """Return whether a path is unused, and all its parents are directories."""
    *parents, own = _digests(name)
    return own not in seen and all(
        seen.get(parent, MemberKind.DIRECTORY) is MemberKind.DIRECTORY for parent in parents
    )


def _digest(name: str) -> bytes:
    """Return a digest of a path, to save memory: there may be many long paths."""
    return _digests(name)[-1]


def _digests(name: str) -> list[bytes]:
    """Return a digest of each parent directory of a path, and of the path."""
    found, whole = [], hashlib.blake2b(digest_size=16)
    for step in name.encode("utf-8", "surrogateescape").split(b"/"):
        whole.update(step + b"/")
        found.append(whole.digest())
    return found
