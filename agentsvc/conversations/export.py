"""A conversation as a zip file, written while it is being sent; only a page of it is in memory."""

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
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class Exports:
    """Packs conversations, each at most once at a time."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._running: set[str] = set()

    @asynccontextmanager
    async def open(
        self, conversation_id: str, meta: bytes
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Give the parts of a zip file of `meta.json` and one file for each event.

        Raises, before there is a part, Conflict while another one of the conversation goes on,
        and ExportTooLarge.
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
        archive = _Archive()
        archive.add("meta.json", meta)
        page_id, number = None, 0
        while True:
            events, page_id = await self._events.search(
                conversation_id, EventQuery(), page_id=page_id, limit=_PAGE
            )
            await asyncio.to_thread(archive.add_events, events, number)
            number += len(events)
            yield archive.take()
            if page_id is None:
                break
        archive.close()
        yield archive.take()


class _Archive:
    """A zip file that goes out in parts."""

    def __init__(self) -> None:
        self._out = _Outlet()
        self._moment = now().timetuple()[:6]
        self._zip = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED)

    def add(self, name: str, data: bytes) -> None:
        entry = zipfile.ZipInfo(name, date_time=self._moment)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        self._zip.writestr(entry, data)

    def add_events(self, events: Sequence[StoredEvent], first: int) -> None:
        for number, event in enumerate(events, first):
            # Ids come out of sandboxes: none may name a place outside of the archive.
            self.add(f"event_{number:06d}_{_UNSAFE.sub('_', event.id)}.json", event.body)

    def close(self) -> None:
        self._zip.close()

    def take(self) -> bytes:
        return self._out.take()


class _Outlet(io.RawIOBase):
    """A file that only goes forward, and hands over what was written."""

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
