"""The event log: append, search, count. Bodies are kept as the bytes the agent server sent.

Only of an event that is too large a stub is kept: its head, `"truncated": true` and its size.
Only the head of an event is read here; what events mean is for `conversations` and the API
generations to know. A log belongs to its conversation and is deleted with it. What was stored is
announced, and so is each streaming delta that is not.
"""

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import EventBus, ExportTooLarge, Notice, Subject, decode_or_none, values
from agentsvc.conversations import event_table
from agentsvc.conversations.event_table import EventQuery, LogState, StoredEvent
from agentsvc.storage import Database, Transaction

log = logging.getLogger(__name__)

LARGEST_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Of larger ones only a stub is kept; a page of events is built in memory."""

DELTA_KIND: Final = "StreamingDeltaEvent"

IMPORTED_KEY: Final = "imported_event"
"""The state that an event of another server's older generation is kept in as it was."""

WISH_KEY: Final = "asked_agent_state"
"""The state that tells what a client of the older generation asked the agent to do."""

REFUSAL_KEY: Final = "model_refusal"
"""The state that tells that the model does not answer now, and that the agent asks it again."""

_WHOLE_KINDS: Final = frozenset({"MessageEvent", "ActionEvent"})
"""The events that have whole what deltas have in pieces."""

_MANY: Final = 8
"""How many events may be read at once whatever their size."""
_LONGEST_TEXT = 255
_LATEST_BYTES = 64 * 1024
_LATEST_EVENTS = 100
_LATEST_CONVERSATIONS = 64


def _weigh(page: tuple[list[bytes], str | None]) -> int:
    return sum(1 + len(body) // 1024 for body in page[0])


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has."""

    id: str
    kind: str
    timestamp: str
    source: str | None = None


class EventHead(Head, frozen=True, kw_only=True):
    """What is read of an event; `key` and `value` are there in updates of the state."""

    key: Any = None
    """The name of what has changed, where the event is as it should be."""
    value: msgspec.Raw = msgspec.Raw()
    """Empty where there is none."""


class EventLog:
    """Every event of every conversation."""

    def __init__(self, db: Database, event_bus: EventBus, *, store_deltas: bool) -> None:
        self._db = db
        self._event_bus = event_bus
        self.store_deltas = store_deltas
        self._latest = _Latest()

    async def append(
        self, tx: Transaction, conversation_id: str, raw: Iterable[bytes | msgspec.Raw]
    ) -> list[StoredEvent]:
        """Store the events that are new and return them, numbered without gaps.

        The same event may come any number of times. What is no event or belongs to no known
        conversation is skipped and logged; an event that is too large is logged and stored as
        a stub.
        """
        batch = _Batch()
        for item in map(bytes, raw):
            head = _check(item)
            if head is None:
                batch.skipped += 1
            elif self.store_deltas or head.kind != DELTA_KIND:
                batch.order.append(head.id)
                batch.found.setdefault(head.id, (head, _bounded(head, item, conversation_id)))
            else:
                batch.order.append(item)
        if batch.skipped:
            log.warning(
                "events skipped",
                extra={"conversation_id": conversation_id, "events": batch.skipped},
            )
        return await self._store(tx, conversation_id, batch) if batch.order else []

    async def announce_deltas(
        self, conversation_id: str, deltas: Sequence[bytes], *, after: int
    ) -> None:
        """Announce deltas that are not stored and came behind the event of a number.

        Those whose whole message is stored already are left out.
        """
        state = await event_table.find_state(self._db, conversation_id, ())
        if state is None:
            return
        if state.next_seq - 1 > after:
            said = await event_table.says_any(self._db, conversation_id, _WHOLE_KINDS, after)
            if said:
                return
        for news in _news(state, conversation_id, deltas, []):
            self._event_bus.announce(news)

    async def copy(self, tx: Transaction, from_id: str, to_id: str, until: int | None) -> None:
        """Give a conversation without events those of another one, up to a number or all.

        They are not announced: nobody can follow a conversation before it is stored, and
        webhooks were told of them as those of the other one. Raises NotFound where that is gone.
        """
        await event_table.copy(tx, from_id, to_id, until)
        tx.after_commit(lambda: self._latest.forget(to_id))

    async def load(self, tx: Transaction, conversation_id: str, raw: Iterable[bytes]) -> int:
        """Give a conversation without events those it had elsewhere, as `copy` does.

        Return how many are left out since they are no events, or come twice.
        """
        found: dict[str, tuple[Head, bytes]] = {}
        given = 0
        for item in raw:
            given += 1
            head = _check(item)
            if head is not None and head.id not in found:
                found[head.id] = (head, _bounded(head, item, conversation_id))
        # The number comes first: webhooks are told of no event below it.
        await event_table.set_next_seq(tx, conversation_id, len(found))
        await event_table.insert_many(tx, _number(conversation_id, 0, found.values()))
        tx.after_commit(lambda: self._latest.forget(conversation_id))
        return given - len(found)

    async def search(
        self, conversation_id: str, query: EventQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[StoredEvent], str | None]:
        """Return a page of events in the order of their times, and the id of the next page.

        There may be fewer of them than asked for, and more behind them, where some are large.
        Raises InvalidRequest for a page id that this server did not give.
        """
        page, next_page_id = await event_table.read_page(
            self._db, event_table.EVENTS, conversation_id, query, page_id=page_id, limit=limit
        )
        return [StoredEvent(*row) for row in page], next_page_id

    async def pages(
        self, conversation_id: str, query: EventQuery, *, limit: int
    ) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield every page of a search; one of no events has one page."""
        page_id = None
        while True:
            page, page_id = await self.search(conversation_id, query, page_id=page_id, limit=limit)
            yield page
            if page_id is None:
                return
            # A query is not waited for: others have their turn here.
            await asyncio.sleep(0)

    async def search_bodies(
        self, conversation_id: str, query: EventQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[bytes], str | None]:
        """Return the bodies of the events that `search` returns, and the id of the next page."""

        async def read() -> tuple[list[bytes], str | None]:
            page, next_page_id = await event_table.read_page(
                self._db, event_table.BODIES, conversation_id, query, page_id=page_id, limit=limit
            )
            return [row[-1] for row in page], next_page_id

        key = (EventLog.search_bodies, conversation_id, query, page_id, limit)
        return await self._db.keep(key, read, weigh=_weigh)

    async def count(self, conversation_id: str, query: EventQuery) -> int:
        """Return how many events a search finds on all its pages."""
        if msgspec.structs.replace(query, descending=False) == EventQuery():
            # They are numbered without gaps, and only the first ones are ever deleted.
            last = await self.find_last(conversation_id)
            first = await self.find_first(conversation_id)
            return 0 if last is None or first is None else last - first + 1
        return await event_table.count(self._db, conversation_id, query)

    async def find_many(self, conversation_id: str, ids: Sequence[str]) -> list[StoredEvent | None]:
        """Return the event of each id, or None; a UUID is found in its dashed and plain form.

        Raises ExportTooLarge for many that are large.
        """
        forms = {form for event_id in ids for form in _forms(event_id)}
        if len(ids) > _MANY:
            size = await event_table.size_of_many(self._db, conversation_id, forms)
            if size > _MANY * LARGEST_EVENT_BYTES:
                raise ExportTooLarge("These events are too large together: ask for fewer at a time")
        params = {"conversation_id": conversation_id, "ids": event_table.to_json(forms)}
        found = await event_table.read(self._db, event_table.OF_IDS, params)
        by_form = {form: event for event in found for form in _forms(event.id)}
        by_form |= {event.id: event for event in found}
        return [by_form.get(event_id) or by_form.get(event_id.lower()) for event_id in ids]

    async def read_range(
        self, conversation_id: str, *, from_seq: int, limit: int
    ) -> list[StoredEvent]:
        """Return events in the order of their arrival, beginning with a number."""
        params = {"conversation_id": conversation_id, "from_seq": from_seq, "limit": limit}
        return await event_table.read(self._db, event_table.RANGE, params)

    async def read_stretch(
        self,
        conversation_id: str,
        *,
        from_seq: int,
        to_seq: int | None,
        limit: int,
        max_bytes: int,
    ) -> list[StoredEvent]:
        """Return events as `read_range` does, so few that little more than the bytes are read.

        Those that were stored a moment ago are at hand for everyone who follows a conversation.
        """
        latest = self._latest.find(conversation_id, from_seq, to_seq)
        if latest:
            return latest[:limit]
        params = {
            "conversation_id": conversation_id,
            "from_seq": from_seq,
            "to_seq": values.MAX_INT if to_seq is None else to_seq,
            "limit": limit,
            "max_bytes": max_bytes,
        }
        return await event_table.read(self._db, event_table.STRETCH, params)

    async def find_first(self, conversation_id: str) -> int | None:
        """Return the number of the first event that is still there, None if there is none."""
        return await self._db.value(event_table.FIRST, {"conversation_id": conversation_id})

    async def find_last(self, conversation_id: str) -> int | None:
        """Return the number of the last event, -1 if there is none, None for no conversation."""
        state = await event_table.find_state(self._db, conversation_id, ())
        return None if state is None else state.next_seq - 1

    async def _store(
        self, tx: Transaction, conversation_id: str, batch: "_Batch"
    ) -> list[StoredEvent]:
        state = await event_table.find_state(tx, conversation_id, batch.found)
        if state is None:
            log.warning(
                "events reported for an unknown conversation",
                extra={"conversation_id": conversation_id},
            )
            return []
        new = [pair for event_id, pair in batch.found.items() if event_id not in state.known]
        events = _number(conversation_id, state.next_seq, new)
        if events:
            tx.after_commit(lambda: self._latest.add(conversation_id, events))
            await event_table.insert_many(tx, events)
            await event_table.set_next_seq(tx, conversation_id, state.next_seq + len(events))
        for news in _news(state, conversation_id, batch.order, events):
            tx.after_commit(partial(self._event_bus.announce, news))
        return events


class _Batch(msgspec.Struct, kw_only=True):
    """What came at once: the events to store, and the order of their ids and of the deltas."""

    found: dict[str, tuple[Head, bytes]] = {}
    order: list[str | bytes] = []
    skipped: int = 0


class _Stub(Head, frozen=True, kw_only=True):
    truncated: bool = True
    size: int


_head = msgspec.json.Decoder(Head)
_event_head = msgspec.json.Decoder(EventHead)


def read_head(body: bytes) -> EventHead | None:
    """Return the head of an event, or None if this is no event."""
    return decode_or_none(body, _event_head)


def read_time(item: bytes) -> str:
    """Return the time of an event as it is stored, an empty text for what is not stored as one."""
    head = _check(item)
    return head.timestamp if head else ""


def _check(item: bytes) -> Head | None:
    try:
        # msgspec does not look at the encoding of what it skips.
        item.decode()
        head = _head.decode(item)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    texts = (head.id, head.kind, head.timestamp, head.source or "")
    if not all(text.isprintable() and len(text) <= _LONGEST_TEXT for text in texts):
        return None
    return head if head.id and head.kind and values.parse_time(head.timestamp) else None


def _bounded(head: Head, item: bytes, conversation_id: str) -> bytes:
    if len(item) <= LARGEST_EVENT_BYTES:
        return item
    log.warning(
        "event truncated",
        extra={"conversation_id": conversation_id, "event_id": head.id, "size": len(item)},
    )
    return msgspec.json.encode(values.copy_to(_Stub, head, size=len(item)))


def _number(
    conversation_id: str, next_seq: int, new: Iterable[tuple[Head, bytes]]
) -> list[StoredEvent]:
    return [
        StoredEvent(
            conversation_id, seq, head.id, head.kind, head.timestamp, head.source or "", item
        )
        for seq, (head, item) in enumerate(new, next_seq)
    ]


def _news(
    state: LogState, conversation_id: str, order: Iterable[str | bytes], events: list[StoredEvent]
) -> Iterable[Notice]:
    """Return what to announce: each delta, with what was stored before it, and the last event."""
    last = state.next_seq - 1
    numbers = {event.id: event.seq for event in events}
    notice = partial(
        Notice, user_id=state.user_id, id=conversation_id, conversation_id=conversation_id
    )
    for item in order:
        if isinstance(item, str):
            last = numbers.get(item, last)
        else:
            yield notice(subject=Subject.DELTA, seq=last, delta=item)
    if events:
        yield notice(subject=Subject.EVENTS, seq=last)


class _Latest:
    """The events that were stored last: a few, of the conversations that had any last."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, deque[StoredEvent]] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def add(self, conversation_id: str, events: Sequence[StoredEvent]) -> None:
        """Remember events that follow each other; what does not follow what was known replaces it."""
        window = self._windows.pop(conversation_id, deque())
        size = self._sizes.get(conversation_id, 0)
        if window and window[-1].seq + 1 != events[0].seq:
            window.clear()
            size = 0
        window.extend(events)
        size += sum(len(event.body) for event in events)
        while window and (size > _LATEST_BYTES or len(window) > _LATEST_EVENTS):
            size -= len(window.popleft().body)
        self._windows[conversation_id] = window
        self._sizes[conversation_id] = size
        if len(self._windows) > _LATEST_CONVERSATIONS:
            oldest, _ = self._windows.popitem(last=False)
            del self._sizes[oldest]

    def forget(self, conversation_id: str) -> None:
        """Know nothing of one that begins with others, which may have the id of one that was deleted."""
        self._windows.pop(conversation_id, None)
        self._sizes.pop(conversation_id, None)

    def find(self, conversation_id: str, from_seq: int, to_seq: int | None) -> list[StoredEvent]:
        """Return the events between two numbers, nothing unless all of them are known."""
        window = self._windows.get(conversation_id)
        if to_seq is None or not window or not window[0].seq <= from_seq <= to_seq:
            return []
        if to_seq > window[-1].seq:
            return []
        first = window[0].seq
        return list(itertools.islice(window, from_seq - first, to_seq - first + 1))


def _forms(event_id: str) -> set[str]:
    # Text that no stored id can be would not even reach the database.
    if not event_id.isprintable():
        return set()
    plain = values.parse_uuid(event_id)
    return {event_id} if plain is None else {event_id, plain, values.dashed(plain)}
