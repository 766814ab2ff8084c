"""The engine's multiplexed output streams: split into stdout and stderr, by line or whole."""

import asyncio
import contextlib
import io
import struct
import tarfile
from asyncio import IncompleteReadError
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from agentsvc.plugin import LogLine

from .engine import Engine, Json

_HEAD: Final = struct.Struct(">BxxxL")
_FOLLOW_SECONDS: Final = 0.3
_LINE_MAX: Final = 65536
_FILE_MAX: Final = 2**20
_NAMES: Final = {1: "stdout", 2: "stderr"}


class Readable(Protocol):
    """A source of bytes."""

    async def readexactly(self, n: int) -> bytes:
        """Return that many bytes; raises IncompleteReadError at an early end."""
        ...


class Output(msgspec.Struct):
    """The output of a command, up to a limit."""

    limit: int
    stdout: bytearray = msgspec.field(default_factory=bytearray)
    stderr: bytearray = msgspec.field(default_factory=bytearray)
    is_cut: bool = False

    def add(self, stream: str, data: bytes) -> None:
        """Append the data that still fits."""
        into = self.stderr if stream == "stderr" else self.stdout
        room = self.limit - len(into)
        self.is_cut = self.is_cut or len(data) > room
        into += data[: max(room, 0)]


async def frames(source: Readable) -> AsyncIterator[tuple[str, bytes]]:
    """Yield each frame with the name of its stream until the source ends between two frames."""
    while True:
        try:
            kind, size = _HEAD.unpack(await source.readexactly(_HEAD.size))
            data = await source.readexactly(size)
        except IncompleteReadError:
            return
        yield _NAMES.get(kind, "stdout"), data


async def read_log(
    engine: Engine, container_id: str, query: Mapping[str, Any]
) -> AsyncIterator[LogLine]:
    """Yield the lines of a container's log; none if it is gone."""
    path = f"containers/{container_id}/logs"
    async with engine.stream("GET", path, params=query, expect=(404, 409)) as answer:
        if answer is not None:
            async for line in lines(answer.content):
                yield line


async def follow_log(
    engine: Engine, find: Callable[[], Awaitable[Json | None]], *, tail: int, follow: bool
) -> AsyncIterator[LogLine]:
    """Yield the last lines of a container's log; with follow, continue until it is removed.

    Follows it through restarts.
    """
    last = datetime.fromtimestamp(0, UTC)
    query: dict[str, Any] = {"stdout": True, "stderr": True, "timestamps": True}
    query |= {"tail": tail, "follow": follow}
    while (found := await find()) is not None:
        async for line in read_log(engine, found["Id"], query):
            if line.at > last or "since" not in query:
                last = max(last, line.at)
                yield line
        if not follow:
            return
        # The run has ended; if the container is started again, its log continues.
        query |= {"tail": "all", "since": f"{last.timestamp():.6f}"}
        await asyncio.sleep(_FOLLOW_SECONDS)


async def lines(source: Readable) -> AsyncIterator[LogLine]:
    """Yield the lines of a log that was requested with timestamps."""
    rest = {"stdout": b"", "stderr": b""}
    async for stream, data in frames(source):
        *whole, last = (rest[stream] + data).split(b"\n")
        for line in whole:
            yield to_line(stream, line)
        if len(last) > _LINE_MAX:
            yield to_line(stream, last)
            last = b""
        rest[stream] = last
    for stream, last in rest.items():
        if last:
            yield to_line(stream, last)


def to_line(stream: str, line: bytes) -> LogLine:
    """Parse a line that begins with its timestamp."""
    stamp, _, text = line.decode(errors="replace").partition(" ")
    return LogLine(at=to_time(stamp), stream=stream, text=text.rstrip("\r"))


def to_time(text: str) -> datetime:
    """Parse a timestamp of the engine; the epoch if it is invalid."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def untar(archive: bytes) -> str:
    """Return the text of the first file in an archive; empty if there is none."""
    with (
        contextlib.suppress(tarfile.TarError),
        tarfile.open(fileobj=io.BytesIO(archive)) as tar,
    ):
        for member in tar:
            if member.isfile() and (file := tar.extractfile(member)) is not None:
                return file.read().decode(errors="replace")
    return ""


async def read_file(engine: Engine, container_id: str, path: str) -> str:
    """Return the text of a small file in a container; empty if it is missing or too large."""
    read = bytearray()
    source, query = f"containers/{container_id}/archive", {"path": path}
    async with engine.stream("GET", source, params=query, expect=(404,)) as answer:
        if answer is None:
            return ""
        async for part in answer.content.iter_any():
            read += part
            if len(read) > _FILE_MAX:
                return ""
    return untar(bytes(read))
