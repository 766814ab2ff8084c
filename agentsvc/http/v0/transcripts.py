"""Cache of V0 histories for the conversations that were read last.

The number of a V0 event is known only after translating every stored event before it. So that a
polling client does not cause a translation of the whole conversation each time, the encoded events
and the state of the translator are cached, up to a limit of bytes, and continued from the last
event read. The cache is no source of truth: without it the numbers are the same.

An event log grows, and loses its beginning when old events are deleted. The creation time in the
cache key distinguishes a conversation that was deleted and created again with the same id.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from aiohttp import web

from agentsvc.conversations import EventLog
from agentsvc.http.v0.translate import Translator
from agentsvc.http.wire import encode

log = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of cached events; the conversation read last stays cached whatever its size."""

_CHUNK: Final = 100
_CHUNK_BYTES: Final = 1024 * 1024


class Transcripts:
    """LRU cache of V0 histories."""

    def __init__(self, log: EventLog, *, max_bytes: int = MAX_BYTES) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, datetime], _Entry] = OrderedDict()

    async def read(self, conversation_id: str, created_at: datetime) -> Sequence[bytes]:
        """Return the whole history as encoded events; the index of an event is its number."""
        key = (conversation_id, created_at)
        first = await self._log.find_first(conversation_id)
        if key in self._entries and self._entries[key].first_seq not in (None, first):
            # The oldest events were deleted, so the numbers have changed.
            del self._entries[key]
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        while True:
            stored = await self._log.read_stretch(
                conversation_id,
                from_seq=entry.next_seq,
                to_seq=None,
                limit=_CHUNK,
                max_bytes=_CHUNK_BYTES,
            )
            for event in stored:
                entry.add(event.seq, event.body)
            if len(stored) < _CHUNK and sum(len(event.body) for event in stored) < _CHUNK_BYTES:
                break
            # The query does not yield to the event loop, so yield here.
            await asyncio.sleep(0)
        self._evict()
        return entry.events

    def _evict(self) -> None:
        size = sum(entry.size for entry in self._entries.values())
        while size > self._max_bytes and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            size -= oldest.size


TRANSCRIPTS: Final[web.AppKey[Transcripts]] = web.AppKey("transcripts", Transcripts)


class _Entry:
    """The cached history of one conversation, with the state of its translator."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.first_seq: int | None = None
        """The number of the first stored event, or None before an event was read."""
        self.size = 0
        self.events: list[bytes] = []
        self._translator = Translator()

    def add(self, seq: int, body: bytes) -> None:
        """Add the next stored event; ignore one that a concurrent reader has already added."""
        if seq < self.next_seq:
            return
        self.next_seq = seq + 1
        self.first_seq = seq if self.first_seq is None else self.first_seq
        try:
            added = [encode(event) for event in self._translator.feed(body)]
        except Exception:
            # If it were raised, the next read would skip the event and assign other numbers.
            log.exception("event not translated to V0", extra={"seq": seq})
            self._translator.go_on_at(len(self.events))
            return
        self.size += sum(map(len, added))
        self.events += added


def select(
    events: Sequence[bytes], first: int, last: int | None, *, reverse: bool, limit: int
) -> tuple[list[bytes], bool]:
    """Return the events from `first` to `last`, inclusive, and whether `limit` cut some off."""
    start = max(first, 0)
    end = len(events) - 1 if last is None else min(last, len(events) - 1)
    count = max(end - start + 1, 0)
    taken = min(count, limit)
    if reverse:
        return [events[end - offset] for offset in range(taken)], count > taken
    return list(events[start : start + taken]), count > taken
