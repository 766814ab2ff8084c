"""Histories in the older form, kept ready for the conversations somebody reads right now.

A number of the older history is known only by reading every stored event before it. So that a
client which polls does not cost a whole conversation each time, the encoded events and the state
of the translation are kept for the conversations read last, within a limit on their bytes, and
are continued from the last event read. The cache is no source of truth: without it the same
numbers come out. An event log grows, loses its beginning where old events are deleted, and dies with
its conversation; a conversation that was deleted and made again under its old id is told apart by
when it was made.
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
"""How much of encoded history is kept; the conversation read last stays, whatever its size."""

_CHUNK: Final = 100
_CHUNK_BYTES: Final = 1024 * 1024


class Transcripts:
    """The histories of conversations in the older form."""

    def __init__(self, log: EventLog, *, max_bytes: int = MAX_BYTES) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, datetime], _Entry] = OrderedDict()

    async def read(self, conversation_id: str, created_at: datetime) -> Sequence[bytes]:
        """Return the whole history as it is now, each event encoded; its place is its number."""
        key = (conversation_id, created_at)
        first = await self._log.find_first(conversation_id)
        if key in self._entries and self._entries[key].first_seq not in (None, first):
            # Its beginning was deleted for its age.
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
            # A query is not waited for: others have their turn here.
            await asyncio.sleep(0)
        self._forget()
        return entry.events

    def _forget(self) -> None:
        size = sum(entry.size for entry in self._entries.values())
        while size > self._max_bytes and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            size -= oldest.size


TRANSCRIPTS: Final[web.AppKey[Transcripts]] = web.AppKey("transcripts", Transcripts)


class _Entry:
    """How far the history of one conversation has been read."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.first_seq: int | None = None
        """The number of the first stored event, None before one was read."""
        self.size = 0
        self.events: list[bytes] = []
        self._translator = Translator()

    def add(self, seq: int, body: bytes) -> None:
        """Take the next stored event; one that another reader has taken already is passed over."""
        if seq < self.next_seq:
            return
        self.next_seq = seq + 1
        self.first_seq = seq if self.first_seq is None else self.first_seq
        try:
            added = [encode(event) for event in self._translator.feed(body)]
        except Exception:
            # Were it raised, the next read would pass over the event, and give other numbers.
            log.exception("event cannot be shown to older clients", extra={"seq": seq})
            self._translator.go_on_at(len(self.events))
            return
        self.size += sum(map(len, added))
        self.events += added


def select(
    events: Sequence[bytes], first: int, last: int | None, *, reverse: bool, limit: int
) -> tuple[list[bytes], bool]:
    """Return the events between two numbers, both included, and whether there are more than asked for."""
    start = max(first, 0)
    end = len(events) - 1 if last is None else min(last, len(events) - 1)
    count = max(end - start + 1, 0)
    taken = min(count, limit)
    if reverse:
        return [events[end - offset] for offset in range(taken)], count > taken
    return list(events[start : start + taken]), count > taken
