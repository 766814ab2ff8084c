"""Zip export of a conversation, streamed: only one page of events is in memory."""

import asyncio
import io
import re
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from agentsvc.base import Conflict, ExportTooLarge, now
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import EventQuery, StoredEvent

MAX_EVENTS: Final = 10_000

_PAGE: Final = 25
_ID_CHARS: Final = 100
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class Exports:
    """Exports conversations; one export of a conversation at a time."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._running: set[str] = set()

    @asynccontextmanager
    async def open(
        self, conversation_id: str, meta: bytes
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Yield the chunks of a zip file with `meta.json` and one file for each event.

        Raises, before the first chunk, Conflict while another export of the conversation runs, and
        ExportTooLarge.
        """
        if conversation_id in self._running:
            raise Conflict("A download of this conversation is already running")
        self._running.add(conversation_id)
        try:
            count = await self._events.count(conversation_id, EventQuery())
            if count > MAX_EVENTS:
                raise ExportTooLarge(
                    f"The conversation has {count} events, and at most {MAX_EVENTS} can be"
                    " downloaded. Read them in pages"
                )
            async with aclosing(self._pack(conversation_id, meta)) as parts:
                yield parts
        finally:
            self._running.discard(conversation_id)

    async def _pack(self, conversation_id: str, meta: bytes) -> AsyncGenerator[bytes, None]:
        out, moment = _WriteBuffer(), now().timetuple()[:6]
        archive = zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED)

        def add(files: Sequence[tuple[str, bytes]]) -> None:
            for name, data in files:
                entry = zipfile.ZipInfo(name, date_time=moment)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)

        add([("meta.json", meta)])
        number = 0
        pages = self._events.pages(conversation_id, EventQuery(), limit=_PAGE)
        async with aclosing(pages):
            async for events in pages:
                files = [(_name(at, event), event.body) for at, event in enumerate(events, number)]
                await asyncio.to_thread(add, files)
                number += len(events)
                yield out.take()
        archive.close()
        yield out.take()


def _name(number: int, event: StoredEvent) -> str:
    # Ids come from sandboxes: none may be a path outside of the archive or an invalid file name.
    return f"event_{number:06d}_{_UNSAFE.sub('_', event.id[:_ID_CHARS])}.json"


class _WriteBuffer(io.RawIOBase):
    """A write-only file without seek; `take` returns and clears the written bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # zipfile writes bytes only
        self._buffer += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data
