"""A disk whose power fails: what of a server's files is left is what was synced, and chance.

`disk.c` writes down what the server does to its files. What is modelled: a write is safe once a sync
of its file that began after it has ended; of the others any page of 4 KiB may be there or not, in
any order, or be torn: then any of its sectors of 512 bytes is there or not. Files that are made, renamed and removed are so in order, as by a journal: all of it up
to the last sync of anything, and any part of what came after.
"""

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec

SOURCE: Final = Path(__file__).with_name("disk.c")
PAGE: Final = 4096
SECTOR: Final = 512
_TORN: Final = 0.25
_HEAD: Final = struct.Struct("<cHQI")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done to a file."""

    kind: str
    path: str
    offset: int
    data: bytes


class _File(msgspec.Struct, kw_only=True, eq=False):
    """A file, whichever names it has: what is safe of it, what is not yet, and syncs that run."""

    safe: bytearray = msgspec.field(default_factory=bytearray)
    pending: list[Record] = []
    begun: dict[tuple[bytes, int], int] = {}


class _Move(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a file got, or lost."""

    path: str
    file: _File | None


def build(directory: Path) -> Path:
    """Compile what writes down; raises CalledProcessError, or FileNotFoundError without a `cc`."""
    made = directory / "disk.so"
    program = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(program, check=True, capture_output=True)
    return made


def read_log(file: Path) -> Iterator[Record]:
    """Yield what was done, as far as it was written down whole."""
    raw, at = file.read_bytes(), 0
    while at + _HEAD.size <= len(raw):
        kind, path, offset, length = _HEAD.unpack_from(raw, at)
        end = at + _HEAD.size + path + length
        if end > len(raw):
            return
        name = raw[at + _HEAD.size : at + _HEAD.size + path].decode()
        yield Record(kind=kind.decode(), path=name, offset=offset, data=raw[end - length : end])
        at = end


class Disk:
    """The files below a directory as they were, and what becomes of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._safe = {
            str(file): _File(safe=bytearray(file.read_bytes()))
            for file in sorted(directory.rglob("*"))
            if file.is_file() and not file.name.endswith("-shm")
        }
        self._live = dict(self._safe)
        self._moves: list[_Move] = []

    def play(self, records: Iterator[Record]) -> None:
        """Take note of all that was done until the power failed."""
        for record in records:
            if record.path.endswith("-shm"):
                continue
            match record.kind:
                case "C":
                    self._name(record.path, _File())
                case "U":
                    self._name(record.path, None)
                case "R":
                    file = self._live.get(record.path)
                    self._name(record.path, None)
                    self._name(record.data.decode(), file)
                case "S":
                    self._sync(record)
                case _:
                    self._note(record)

    def fail(self, chance: Random) -> int:
        """Leave on the real disk what is left; return how many writes were not safe."""
        self._make_safe(chance.randint(0, len(self._moves)))
        keep = chance.choice((0.0, 0.5, 0.9))
        unsafe = 0
        for file in self._safe.values():
            for record in file.pending:
                unsafe += 1
                for part in _what_is_left(record, chance, keep):
                    _apply(file.safe, part)
        for found in sorted(self._directory.rglob("*")):
            if found.is_file() and str(found) not in self._safe:
                found.unlink()
        for path, file in self._safe.items():
            Path(path).write_bytes(file.safe)
        return unsafe

    def _name(self, path: str, file: _File | None) -> None:
        self._live.pop(path, None)
        if file is not None:
            self._live[path] = file
        self._moves.append(_Move(path=path, file=file))

    def _note(self, record: Record) -> None:
        """Take note of a write, a cut, or the begin of a sync; names are no content."""
        file = self._live.get(record.path)
        if file is None:
            return
        if record.kind == "B":
            file.begun[record.data, record.offset] = len(file.pending)
        else:
            file.pending.append(record)

    def _sync(self, record: Record) -> None:
        self._make_safe(len(self._moves))
        file = self._live.get(record.path)
        if file is None:
            return
        count = file.begun.pop((record.data, record.offset), 0)
        for one in file.pending[:count]:
            _apply(file.safe, one)
        del file.pending[:count]
        file.begun = {key: max(0, at - count) for key, at in file.begun.items()}

    def _make_safe(self, count: int) -> None:
        for move in self._moves[:count]:
            self._safe.pop(move.path, None)
            if move.file is not None:
                self._safe[move.path] = move.file
        del self._moves[:count]


def _what_is_left(record: Record, chance: Random, keep: float) -> Iterator[Record]:
    """Yield what is left of a write, page by page of its file; what is cut is cut at once."""
    if record.kind == "T" and chance.random() < keep:
        yield record
    for page in _parts(record, PAGE):
        if chance.random() >= keep:
            continue
        if chance.random() >= _TORN:
            yield page
            continue
        yield from (sector for sector in _parts(page, SECTOR) if chance.random() < 0.5)


def _parts(record: Record, size: int) -> Iterator[Record]:
    """Divide a write where the pages or sectors of its file begin."""
    at, end = record.offset, record.offset + len(record.data)
    while at < end:
        until = min(end, (at // size + 1) * size)
        data = record.data[at - record.offset : until - record.offset]
        yield msgspec.structs.replace(record, offset=at, data=data)
        at = until


def _apply(content: bytearray, record: Record) -> None:
    if record.kind == "T":
        del content[record.offset :]
        return
    end = record.offset + len(record.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[record.offset : end] = record.data
