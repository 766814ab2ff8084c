"""Reads untrusted tar files from a stream, from the first byte to the last.

Nothing is extracted here: the caller decides what to do with a member. Headers are bounded, each
size is checked, and malformed input raises `BadTar`. The standard library's `tarfile` is not
used for such files, because its behaviour depends on the version of Python.
"""

import os
import posixpath
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

BLOCK: Final = 512
SPARSE: Final = "$(tar --version 2>/dev/null | grep -q GNU && echo --sparse)"
"""A shell expression that lets `tar` skip the holes of files instead of reading terabytes of zeros."""

_CHUNK: Final = 256 * 1024
_HEADER_MAX: Final = 64 * 1024
"""The maximum size of an extended header: names of 4096 bytes, and other metadata."""
_HEADERS_MAX: Final = 8
"""The maximum number of extended headers of a member."""
_SEGMENTS_MAX: Final = 2**20
_TAIL_MAX: Final = 2**20
"""The maximum size of the padding after the end."""
_SIZE_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 20
_NAME_CHARS: Final = 4096
_STEP_BYTES: Final = 255
_STEPS_MAX: Final = 256
"""The maximum depth of a path, because each directory on the way is looked up for each member."""
_GZIP: Final = 31
"""The `wbits` of zlib for the gzip format with header and checksum."""
_GZIP_MEMBERS_MAX: Final = 4096
_BINARY, _NEGATIVE = 0x80, 0xFF
"""The first byte of a number in binary instead of octal digits."""
_HAS_SIGN: Final = (0x7F).__lt__

_EXTENDED: Final = b"xX"
_GLOBAL: Final = b"g"
_LONG_NAME: Final = b"L"
_LONG_TARGET: Final = b"K"
_SPARSE: Final = b"S"
_KNOWN_RECORDS: Final = frozenset({b"path", b"linkpath", b"size", b"mtime"})


class BadTar(ValueError):
    """A tar file that is malformed or uses an unsupported feature; the message says why."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty at the end."""


class Gunzip:
    """A decompressed gzip stream, without trailing data other than further gzip members."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._data = b""
        self._zlib = zlib.decompressobj(_GZIP)
        self._members = 0

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty at the end. Raises BadTar if the stream is malformed."""
        while True:
            if self._zlib.eof and not self._begin_next():
                return b""
            self._data = self._data or self._source.read(_CHUNK)
            if not self._data:
                raise BadTar("it ends too early")
            try:
                part = self._zlib.decompress(self._data, size)
            except zlib.error as exc:
                raise BadTar("it is not what gzip has written, or damaged") from exc
            self._data = self._zlib.unconsumed_tail
            if part:
                return part

    def _begin_next(self) -> bool:
        """Start the next gzip member; return whether there is one."""
        self._data = self._zlib.unused_data or self._source.read(_CHUNK)
        if self._data:
            self._members += 1
            self._zlib = zlib.decompressobj(_GZIP)
        if self._members > _GZIP_MEMBERS_MAX:
            raise BadTar("it is made of too many parts")
        return bool(self._data)


class MemberKind(StrEnum):
    """The type of a member."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    OTHER = "special file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as described by its headers, which are parsed but not validated."""

    name: str
    kind: MemberKind
    size: int
    """The apparent size of the file."""
    stored: int
    """The number of bytes in the archive; less than `size` for a sparse file."""
    mode: int
    mtime: int
    target: str
    """The target of a link."""
    segments: array[int] | None = None
    """Alternating offsets and lengths of a sparse file's data; None for a file without holes."""


_KINDS: Final = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    _SPARSE: MemberKind.FILE,
    b"1": MemberKind.HARDLINK,
    b"2": MemberKind.SYMLINK,
    b"5": MemberKind.DIRECTORY,
}
_WITHOUT_CONTENT: Final = b"123456"


class TarStream:
    """The members of a tar file, in order; read each before the next one is requested."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._remaining = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield each member; unread content is skipped."""
        while (member := self._next()) is not None:
            yield member
            while self.read(_CHUNK):
                pass
            self._read_exactly(self._padding)
            self._padding = 0
        self._read_tail()

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes of the current member's content; empty at its end."""
        data = self._read_exactly(min(size, self._remaining, _CHUNK))
        self._remaining -= len(data)
        return data

    def parts(self, member: Member) -> Iterator[bytes]:
        """Yield the content of the current member with its holes filled with zeros."""
        if member.segments is None:
            while part := self.read(_CHUNK):
                yield part
            return
        at = 0
        for number in range(0, len(member.segments), 2):
            offset, length = member.segments[number : number + 2]
            yield from _zeros(offset - at)
            at = offset + length
            while length and (part := self.read(length)):
                length -= len(part)
                yield part
        yield from _zeros(member.size - at)

    def _next(self) -> Member | None:
        records: dict[bytes, bytes] = {}
        for number in range(_HEADERS_MAX + 1):
            block = self._read_exactly(BLOCK)
            if not block.strip(b"\0"):
                if number:
                    raise BadTar("an extended header belongs to nothing")
                return None
            _verify_checksum(block)
            kind, size = block[156:157], _number(block[124:136])
            if kind not in _HEADERS:
                return self._member(block, kind, size, records)
            records |= _HEADERS[kind](self._header(size))
        raise BadTar("a member has too many extended headers")

    def _member(self, block: bytes, kind: bytes, size: int, records: dict[bytes, bytes]) -> Member:
        if b"size" in records:
            size = _decimal(records[b"size"])
        self._remaining = 0 if kind in _WITHOUT_CONTENT else size
        self._padding = -self._remaining % BLOCK
        name, real, segments = _name(block, records), self._remaining, None
        if kind == _SPARSE:
            real, segments = _number(block[483:495]), self._old_segments(block)
        elif any(key.startswith(b"GNU.sparse.") for key in records):
            name, real, segments = self._new_segments(name, records)
        if segments is not None:
            _check_segments(segments, real, self._remaining)
        found = _KINDS.get(kind, MemberKind.OTHER)
        if kind in b"\x000" and name.endswith("/"):
            found = MemberKind.DIRECTORY
        return Member(
            name=name,
            kind=found,
            size=real,
            stored=self._remaining,
            mode=_number(block[100:108]),
            mtime=_seconds(block, records),
            target=_text(records.get(b"linkpath", block[157:257])),
            segments=segments,
        )

    def _header(self, size: int) -> bytes:
        if size > _HEADER_MAX:
            raise BadTar("an extended header is too long")
        return self._read_exactly(size + -size % BLOCK)[:size]

    def _old_segments(self, block: bytes) -> array[int]:
        """Parse a sparse file's map in GNU tar's old format: in the header and following blocks."""
        segments = array("q")
        table, count, more = block[386:482], 4, block[482]
        while True:
            _add_segments(segments, table, count)
            if not more:
                return segments
            if len(segments) >= 2 * _SEGMENTS_MAX:
                raise BadTar("a sparse file has too many parts")
            block = self._read_exactly(BLOCK)
            table, count, more = block[:504], 21, block[504]

    def _new_segments(self, name: str, records: dict[bytes, bytes]) -> tuple[str, int, array[int]]:
        """Parse the map of a sparse file in version 1.0 of the pax format."""
        version = records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")
        if version != (b"1", b"0"):
            raise BadTar("a sparse file is written in a way that is not read")
        name = _text(records.get(b"GNU.sparse.name", name.encode("utf-8", "surrogateescape")))
        real = _decimal(records.get(b"GNU.sparse.realsize", b""))
        numbers = self._map_numbers()
        count = next(numbers)
        if count > _SEGMENTS_MAX:
            raise BadTar("a sparse file has too many parts")
        segments = array("q")
        for _ in range(2 * count):
            segments.append(next(numbers))
        numbers.close()
        return name, real, segments

    def _map_numbers(self) -> Generator[int]:
        """Yield the numbers at the beginning of the content, which are padded to whole blocks."""
        rest = b""
        while True:
            line, newline, tail = rest.partition(b"\n")
            if newline:
                rest = tail
                yield _decimal(line)
            elif len(rest) > _DIGITS_MAX or not (part := self.read(BLOCK)):
                raise BadTar("the map of a sparse file is broken")
            else:
                rest += part

    def _read_tail(self) -> None:
        """Read to the end, so that the decompressor verifies the checksum."""
        left = _TAIL_MAX
        while part := self._source.read(_CHUNK):
            left -= len(part)
            if left < 0:
                raise BadTar("too much follows its end")

    def _read_exactly(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._source.read(min(size, _CHUNK))
            if not part:
                raise BadTar("it ends too early")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def safe_name(name: str) -> str | None:
    """Return a normalized relative path, or None for one that is absolute, leads up or is too deep."""
    if not name or len(name) > _NAME_CHARS or "\0" in name or name.startswith("/"):
        return None
    steps = name.split("/")
    if ".." in steps or len(steps) > _STEPS_MAX:
        return None
    if any(len(os.fsencode(step)) > _STEP_BYTES for step in steps):
        return None
    return posixpath.normpath(name)


def stays_inside(name: str, target: str) -> bool:
    """Return whether a symbolic link at path `name` cannot lead outside; no parent may be a link.

    The target may go up first and then only down: after the name of another link, `..` is not the
    directory it appears to be.
    """
    if not target or len(target) > _NAME_CHARS or "\0" in target or target.startswith("/"):
        return False
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    return ups <= name.count("/") and ".." not in steps[ups:]


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _CHUNK))
        count -= _CHUNK


def _verify_checksum(block: bytes) -> None:
    said = _number(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]
    # Old programs added the bytes as signed values.
    if said != (total := sum(rest)) and said != total - 256 * sum(map(_HAS_SIGN, rest)):
        raise BadTar("the sum of a header is wrong")


def _number(field: bytes) -> int:
    if field[0] in (_BINARY, _NEGATIVE):
        value = int.from_bytes(field[1:])
        if field[0] == _NEGATIVE or value > _SIZE_MAX:
            raise BadTar("a number is negative or too large")
        return value
    text = field.split(b"\0", 1)[0].strip()
    # `int` also accepts signs and underscores.
    if text.strip(b"01234567"):
        raise BadTar("a number is malformed")
    return int(text, 8) if text else 0


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > _DIGITS_MAX or int(text) > _SIZE_MAX:
        raise BadTar("a number in an extended header is malformed")
    return int(text)


def _seconds(block: bytes, records: dict[bytes, bytes]) -> int:
    text, field = records.get(b"mtime"), block[136:148]
    # Times before 1970 are treated as 0.
    if text is None:
        return 0 if field[0] == _NEGATIVE else _number(field)
    whole = text.partition(b".")[0]
    return 0 if whole.startswith(b"-") else _decimal(whole or b"0")


def _name(block: bytes, records: dict[bytes, bytes]) -> str:
    if b"path" in records:
        return _text(records[b"path"])
    name, prefix = _text(block[:100]), ""
    if block[257:263] == b"ustar\0":
        prefix = _text(block[345:500])
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[bytes, bytes]:
    """Parse an extended header; return the records that are used here."""
    found, at = {}, 0
    while at < len(data):
        digits, space, _ = data[at : at + _DIGITS_MAX].partition(b" ")
        end = at + int(digits) if space and digits.isdigit() else 0
        record = data[at + len(digits) + 1 : end - 1]
        name, equals, value = record.partition(b"=")
        if not at < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise BadTar("an extended header is broken")
        if name in _KNOWN_RECORDS or name.startswith(b"GNU.sparse."):
            found[name] = value
        at = end
    if any(b"\0" in value for value in found.values()):
        raise BadTar("a name has a zero in it")
    return found


def _ignored_records(data: bytes) -> dict[bytes, bytes]:
    """Validate and ignore a global header: no legitimate archive depends on it."""
    _records(data)
    return {}


_HEADERS: Final[Mapping[bytes, Callable[[bytes], dict[bytes, bytes]]]] = {
    _EXTENDED[:1]: _records,
    _EXTENDED[1:]: _records,
    _GLOBAL: _ignored_records,
    _LONG_NAME: lambda data: {b"path": data.split(b"\0", 1)[0]},
    _LONG_TARGET: lambda data: {b"linkpath": data.split(b"\0", 1)[0]},
}


def _add_segments(segments: array[int], table: bytes, count: int) -> None:
    for at in range(0, count * 24, 24):
        if not table[at : at + 24].strip(b"\0"):
            return
        segments.append(_number(table[at : at + 12]))
        segments.append(_number(table[at + 12 : at + 24]))


def _check_segments(segments: array[int], size: int, stored: int) -> None:
    """Raise BadTar unless the parts of a sparse file are in order and complete."""
    end = total = 0
    for at in range(0, len(segments), 2):
        offset, length = segments[at], segments[at + 1]
        if offset < end or offset + length > size:
            raise BadTar("the parts of a sparse file do not fit")
        end = offset + length
        total += length
    if total != stored:
        raise BadTar("the parts of a sparse file are not those that are there")
