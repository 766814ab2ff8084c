"""The event log: append, search, count. Bodies are stored as the bytes that the agent server sent.

An event that is too large is stored as a stub: its head, `"truncated": true` and its size. Only the
head of an event is parsed here; other modules and the API generations interpret events. A log
belongs to its conversation and is deleted with it. Stored events are announced on the bus, and so
are streaming deltas that are not stored.
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
"""Larger events are stored as stubs, because a page of events is built in memory."""

DELTA_KIND: Final = "StreamingDeltaEvent"

IMPORTED_KEY: Final = "imported_event"
"""The state that holds an imported event of another server's V0 API unchanged."""

STATE_REQUEST_KEY: Final = "asked_agent_state"
"""The state that records what a V0 client asked the agent to do."""

REFUSAL_KEY: Final = "model_refusal"
"""The state that reports a failing model that the agent retries."""

_WHOLE_KINDS: Final = frozenset({"MessageEvent", "ActionEvent"})
"""The kinds of events that hold the whole text of the deltas before them."""

_MANY: Final = 8
"""How many events may be read by id at once, whatever their size."""
_LONGEST_TEXT = 255
_LATEST_BYTES = 64 * 1024
_LATEST_EVENTS = 100
_LATEST_CONVERSATIONS = 64


def _page_weight(page: tuple[list[bytes], str | None]) -> int:
    return sum(1 + len(body) // 1024 for body in page[0])


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The members that every event has."""

    id: str
    kind: str
    timestamp: str
    source: str | None = None


class EventHead(Head, frozen=True, kw_only=True):
    """The parsed head of an event; updates of the state also have `key` and `value`."""

    key: Any = None
    """The name of the changed state; any JSON value in a malformed event."""
    value: msgspec.Raw = msgspec.Raw()
    """Empty if the event has none."""


class EventLog:
    """The events of all conversations."""

    def __init__(self, db: Database, event_bus: EventBus, *, store_deltas: bool) -> None:
        self._db = db
        self._event_bus = event_bus
        self.store_deltas = store_deltas
        self._latest = _LatestEvents()

    async def append(
        self, tx: Transaction, conversation_id: str, raw: Iterable[bytes | msgspec.Raw]
    ) -> list[StoredEvent]:
        """Store the new events and return them, numbered without gaps.

        Idempotent by event id. Items that are not events, and events of an unknown conversation,
        are skipped and logged; an event that is too large is logged and stored as a stub.
        """
        batch = _Batch()
        for item in map(bytes, raw):
            head = _parse(item)
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
        """Announce deltas that are not stored and follow the event with the number `after`.

        They are dropped if a later whole message or action of the agent is stored already.
        """
        state = await event_table.find_state(self._db, conversation_id, ())
        if state is None:
            return
        has_later = state.next_seq - 1 > after
        if has_later and await event_table.has_agent_event(
            self._db, conversation_id, _WHOLE_KINDS, after
        ):
            return
        for notice in _notices(state, conversation_id, deltas, []):
            self._event_bus.announce(notice)

    async def copy(self, tx: Transaction, from_id: str, to_id: str, until: int | None) -> None:
        """Copy the events of a conversation, up to the number `until`, to one without events.

        They are not announced: nobody can follow a conversation before it is stored, and webhooks
        have delivered them for the original. Raises NotFound if the original is gone.
        """
        await event_table.copy(tx, from_id, to_id, until)
        tx.after_commit(lambda: self._latest.forget(to_id))

    async def load(self, tx: Transaction, conversation_id: str, raw: Iterable[bytes]) -> int:
        """Store imported events in a conversation without events, unannounced as in `copy`.

        Return how many items were skipped because they are invalid or duplicates.
        """
        found: dict[str, tuple[Head, bytes]] = {}
        given = 0
        for item in raw:
            given += 1
            head = _parse(item)
            if head is not None and head.id not in found:
                found[head.id] = (head, _bounded(head, item, conversation_id))
        # Set the number first: webhooks deliver no event below it.
        await event_table.set_next_seq(tx, conversation_id, len(found))
        await event_table.insert_many(tx, _number(conversation_id, 0, found.values()))
        tx.after_commit(lambda: self._latest.forget(conversation_id))
        return given - len(found)

    async def search(
        self, conversation_id: str, query: EventQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[StoredEvent], str | None]:
        """Return a page of events in the order of their times, and the id of the next page.

        A page with large events may be shorter than `limit` although more follow.
        Raises InvalidRequest for a page id that this server did not issue.
        """
        page, next_page_id = await event_table.read_page(
            self._db, event_table.EVENTS, conversation_id, query, page_id=page_id, limit=limit
        )
        return [StoredEvent(*row) for row in page], next_page_id

    async def pages(
        self, conversation_id: str, query: EventQuery, *, limit: int
    ) -> AsyncGenerator[list[StoredEvent], None]:
        """Yield all pages of a search; a search without results has one empty page."""
        page_id = None
        while True:
            page, page_id = await self.search(conversation_id, query, page_id=page_id, limit=limit)
            yield page
            if page_id is None:
                return
            # A query does not suspend this task, so let others run here.
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
        return await self._db.keep(key, read, weigh=_page_weight)

    async def count(self, conversation_id: str, query: EventQuery) -> int:
        """Return the number of events that match a query."""
        if msgspec.structs.replace(query, descending=False) == EventQuery():
            # Events are numbered without gaps, and only the oldest ones are ever deleted.
            last = await self.find_last(conversation_id)
            first = await self.find_first(conversation_id)
            return 0 if last is None or first is None else last - first + 1
        return await event_table.count(self._db, conversation_id, query)

    async def find_many(self, conversation_id: str, ids: Sequence[str]) -> list[StoredEvent | None]:
        """Return the event of each id, or None; a UUID matches in its dashed and plain form.

        Raises ExportTooLarge if more than `_MANY` events are too large together.
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
        """Return events in the order of arrival, from a sequence number on."""
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
        """Return events as `read_range` does, and stop after the event that reaches `max_bytes`.

        The latest events come from a cache that all followers of a conversation share.
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
        """Return the number of the oldest stored event, or None without events."""
        return await self._db.value(event_table.FIRST, {"conversation_id": conversation_id})

    async def find_last(self, conversation_id: str) -> int | None:
        """Return the number of the last event; -1 without events, None without the conversation."""
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
        for notice in _notices(state, conversation_id, batch.order, events):
            tx.after_commit(partial(self._event_bus.announce, notice))
        return events


class _Batch(msgspec.Struct, kw_only=True):
    """A received batch: the events to store, and the order of their ids and of the deltas."""

    found: dict[str, tuple[Head, bytes]] = {}
    order: list[str | bytes] = []
    skipped: int = 0


class _Stub(Head, frozen=True, kw_only=True):
    truncated: bool = True
    size: int


_head = msgspec.json.Decoder(Head)
_event_head = msgspec.json.Decoder(EventHead)


def read_head(body: bytes) -> EventHead | None:
    """Parse the head of an event; return None if it is invalid."""
    return decode_or_none(body, _event_head)


def read_time(item: bytes) -> str:
    """Return the time of an event as it is stored, empty for an invalid event."""
    head = _parse(item)
    return head.timestamp if head else ""


def _parse(item: bytes) -> Head | None:
    try:
        # msgspec does not validate the encoding of values that it skips.
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


def _notices(
    state: LogState, conversation_id: str, order: Iterable[str | bytes], events: list[StoredEvent]
) -> Iterable[Notice]:
    """Yield a notice for each delta, with the number of the event before it, and one for events."""
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


class _LatestEvents:
    """A cache of the latest events of the conversations with the latest activity."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, deque[StoredEvent]] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def add(self, conversation_id: str, events: Sequence[StoredEvent]) -> None:
        """Append consecutive events; clear the conversation's window first if there is a gap."""
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
        """Drop a conversation's window: a new conversation may have the id of a deleted one."""
        self._windows.pop(conversation_id, None)
        self._sizes.pop(conversation_id, None)

    def find(self, conversation_id: str, from_seq: int, to_seq: int | None) -> list[StoredEvent]:
        """Return the events from one number to another, or nothing unless all are cached."""
        window = self._windows.get(conversation_id)
        if to_seq is None or not window or not window[0].seq <= from_seq <= to_seq:
            return []
        if to_seq > window[-1].seq:
            return []
        first = window[0].seq
        return list(itertools.islice(window, from_seq - first, to_seq - first + 1))


def _forms(event_id: str) -> set[str]:
    # No stored id has such characters, and the database would reject some of them.
    if not event_id.isprintable():
        return set()
    plain = values.parse_uuid(event_id)
    return {event_id} if plain is None else {event_id, plain, values.dashed(plain)}
