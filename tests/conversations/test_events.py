"""The event log: stored once, as they came, numbered without gaps; bad ones hurt nobody."""

import asyncio
import itertools
import logging
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentsvc.base.bus import EventBus, Notice, Subject
from agentsvc.base.errors import ExportTooLarge, InvalidRequest
from agentsvc.conversations.event_log import LARGEST_EVENT_BYTES, EventLog, read_head
from agentsvc.conversations.event_table import EventQuery, StoredEvent
from agentsvc.storage.database import Database, Transaction

ALL = EventQuery()
NEWEST_FIRST = EventQuery(descending=True)


@pytest.fixture
async def db(db: Database) -> Database:
    """Return a database with a user and two conversations."""
    await db.write(lambda tx: tx.run(ADD_USER))
    ids = [{"id": "c1"}, {"id": "c2"}]
    await db.write(lambda tx: tx.run_many(ADD_CONVERSATION, ids))
    return db


ADD_USER = "INSERT INTO users (id, name, role, created_at) VALUES ('u', 'ada', 'admin', '')"
ADD_CONVERSATION = """
    INSERT INTO conversations
        (id, user_id, title_source, pr_number, agent_kind, facts, tags, created_at, updated_at)
    VALUES (:id, 'u', 'default', x'', 'openhands', x'', x'', '', '')
"""


@pytest.fixture
def event_bus() -> EventBus:
    return EventBus()


@pytest.fixture
def events(db: Database, event_bus: EventBus) -> EventLog:
    return EventLog(db, event_bus, store_deltas=False)


def event(number: int, **members: Any) -> bytes:
    """Return an event whose time grows with its number."""
    defaults = {
        "id": f"e{number}",
        "timestamp": f"2025-03-01T12:00:00.{number:06}",
        "kind": "MessageEvent",
        "source": "agent",
    }
    return msgspec.json.encode(defaults | members)


async def append(
    db: Database, events: EventLog, raw: Sequence[bytes], conversation_id: str = "c1"
) -> list[StoredEvent]:
    return await db.write(lambda tx: events.append(tx, conversation_id, raw))


async def stored(events: EventLog, conversation_id: str = "c1") -> list[StoredEvent]:
    return await events.read_range(conversation_id, from_seq=0, limit=10_000)


def numbers(found: Sequence[StoredEvent]) -> list[int]:
    return [int(one.id.removeprefix("e")) for one in found]


async def test_an_event_is_stored_as_it_came(db: Database, events: EventLog) -> None:
    raw = b'{ "source":"user",\n "extra": {"n": 1e3, "\\u00e9": null}, "kind":"MessageEvent",  \
"id":"e1", "timestamp":"2025-03-01T12:00:00.123456" }'

    [added] = await append(db, events, [raw])

    assert added == StoredEvent(
        conversation_id="c1",
        seq=0,
        id="e1",
        kind="MessageEvent",
        timestamp="2025-03-01T12:00:00.123456",
        source="user",
        body=raw,
    )
    assert await stored(events) == [added]


async def test_events_are_numbered_from_zero_in_the_order_of_arrival(
    db: Database, events: EventLog
) -> None:
    first = await append(db, events, [event(5), event(3)])
    second = await append(db, events, [event(4)])

    assert [one.seq for one in first + second] == [0, 1, 2]
    assert numbers(await stored(events)) == [5, 3, 4]


async def test_each_conversation_has_numbers_and_ids_of_its_own(
    db: Database, events: EventLog
) -> None:
    await append(db, events, [event(1), event(2)], "c1")
    [added] = await append(db, events, [event(1)], "c2")

    assert added.seq == 0
    assert len(await stored(events, "c1")) == 2
    assert len(await stored(events, "c2")) == 1


async def test_an_event_that_comes_again_is_stored_once_and_takes_no_number(
    db: Database, events: EventLog
) -> None:
    await append(db, events, [event(1), event(2)])
    again = await append(db, events, [event(2), event(3), event(1, kind="PauseEvent"), event(3)])

    assert numbers(again) == [3]
    assert [one.seq for one in await stored(events)] == [0, 1, 2]
    assert {one.kind for one in await stored(events)} == {"MessageEvent"}
    assert await append(db, events, [event(1)]) == []


async def test_of_two_with_one_id_in_a_batch_the_first_counts(
    db: Database, events: EventLog
) -> None:
    [added] = await append(db, events, [event(1, source="user"), event(1, source="agent")])
    assert added.source == "user"


async def test_batches_that_arrive_at_the_same_time_leave_no_gap_and_no_double(
    db: Database, events: EventLog
) -> None:
    await asyncio.gather(
        *(append(db, events, [event(n) for n in range(start, start + 10)]) for start in range(50))
    )
    found = await stored(events)
    assert [one.seq for one in found] == list(range(59))
    assert sorted(numbers(found)) == list(range(59))


async def test_a_transaction_that_fails_takes_no_number(db: Database, events: EventLog) -> None:
    async def failing(tx: Transaction) -> None:
        await events.append(tx, "c1", [event(1)])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(failing)
    [added] = await append(db, events, [event(2)])
    assert added.seq == 0


UNFIT = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "null": b"null",
    "text": b'"text"',
    "no id": b'{"kind":"MessageEvent","timestamp":"2025-03-01T12:00:00"}',
    "no kind": b'{"id":"x","timestamp":"2025-03-01T12:00:00"}',
    "no timestamp": b'{"id":"x","kind":"MessageEvent"}',
    "empty id": event(1, id=""),
    "empty kind": event(1, kind=""),
    "number as id": event(1, id=7),
    "null as id": event(1, id=None),
    "list as kind": event(1, kind=["MessageEvent"]),
    "number as source": event(1, source=7),
    "no time": event(1, timestamp="yesterday"),
    "time out of range": event(1, timestamp="0001-01-01T00:00:00+23:59"),
    "number as time": event(1, timestamp=1.5),
    "NUL in id": event(1, id="a\0b"),
    "line break in kind": event(1, kind="Message\nEvent"),
    "long id": event(1, id="x" * 256),
    "long kind": event(1, kind="x" * 256),
    "long source": event(1, source="x" * 256),
    "lone surrogate in id": event(1).replace(b'"e1"', rb'"\ud800"'),
    "lone surrogate elsewhere": event(1, text="@").replace(b"@", rb"\ud800"),
    "invalid UTF-8": event(1, text="@").replace(b"@", b"\xff"),
    "invalid UTF-8 in id": event(1).replace(b'"e1"', b'"\xff"'),
    "NaN": event(1, text="@").replace(b'"@"', b"NaN"),
    "two values": event(1) + event(2),
    "depth": event(1, text="@").replace(b'"@"', b"[" * 100_000 + b"]" * 100_000),
    "no time and too large": event(1, timestamp="", text="x" * LARGEST_EVENT_BYTES),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_an_unfit_event_is_skipped_and_logged_and_its_neighbours_are_stored(
    db: Database, events: EventLog, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        added = await append(db, events, [event(10), UNFIT[name], event(11)])

    assert numbers(added) == [10, 11]
    assert [one.seq for one in added] == [0, 1]
    [record] = caplog.records
    assert record.message == "events skipped"
    assert (record.__dict__["conversation_id"], record.__dict__["events"]) == ("c1", 1)


@pytest.mark.parametrize(
    "members",
    [
        {"source": None},
        {"key": 7, "value": {"a": [1]}},
        {"kind": "FutureEvent", "big": 10**30, "id": "é" * 255},
        {"timestamp": "2025-03-01T12:00:00Z"},
        {"text": "\0 \u2028 😀"},
    ],
)
async def test_an_odd_event_is_stored(
    db: Database, events: EventLog, members: dict[str, Any]
) -> None:
    raw = event(1, **members)
    [added] = await append(db, events, [raw])
    assert (await stored(events))[0].body == raw == added.body


@pytest.mark.parametrize("source", ["agent", None])
async def test_of_an_event_that_is_too_large_a_stub_is_stored_once(
    db: Database, events: EventLog, source: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    raw = event(1, source=source, text="x" * LARGEST_EVENT_BYTES)
    added = await append(db, events, [raw, event(2)])
    assert await append(db, events, [raw]) == []

    assert numbers(added) == [1, 2]
    assert await stored(events) == added
    head = msgspec.json.decode(event(1, source=source))
    stub = msgspec.json.decode(added[0].body)
    assert stub == head | {"truncated": True, "size": len(raw)}
    assert read_head(added[0].body) is not None
    assert "event truncated" in caplog.text


async def test_an_event_of_the_largest_size_is_stored_as_it_came(
    db: Database, events: EventLog
) -> None:
    raw = event(1, text="x" * (LARGEST_EVENT_BYTES - len(event(1, text=""))))
    [added] = await append(db, events, [raw])
    assert len(raw) == LARGEST_EVENT_BYTES
    assert added.body == raw


async def test_events_of_an_unknown_conversation_are_skipped_and_logged(
    db: Database, events: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    assert await append(db, events, [event(1)], "nobody") == []
    assert "events reported for an unknown conversation" in caplog.text


async def test_an_empty_batch_is_nothing(db: Database, events: EventLog) -> None:
    assert await append(db, events, []) == []


@pytest.mark.parametrize(("store_deltas", "expected"), [(False, [2]), (True, [1, 2])])
async def test_deltas_are_stored_only_when_configured(
    db: Database, store_deltas: bool, expected: list[int]
) -> None:
    events = EventLog(db, EventBus(), store_deltas=store_deltas)
    added = await append(db, events, [event(1, kind="StreamingDeltaEvent"), event(2)])
    assert numbers(added) == expected


def told(subject: Subject, seq: int, delta: bytes = b"") -> Notice:
    return Notice(subject=subject, user_id="u", id="c1", conversation_id="c1", seq=seq, delta=delta)


async def test_what_was_stored_is_announced_once(
    db: Database, events: EventLog, event_bus: EventBus
) -> None:
    with event_bus.subscribe("u", lambda _: True) as listener:
        await append(db, events, [event(1), event(2)])
        assert await listener.take() == [told(Subject.EVENTS, 1)]
        await append(db, events, [event(1), event(2)])
        await append(db, events, [event(9)], "nobody")
        await append(db, events, [event(1), event(3)])
        assert await listener.take() == [told(Subject.EVENTS, 2)]


async def test_what_is_announced_can_be_read_at_once(
    db: Database, events: EventLog, event_bus: EventBus
) -> None:
    with event_bus.subscribe("u", lambda _: True) as listener:
        adding = asyncio.gather(append(db, events, [event(1)]))
        await listener.take()
        assert numbers(await stored(events)) == [1]
        await adding


async def test_nothing_is_announced_of_a_transaction_that_failed(
    db: Database, events: EventLog, event_bus: EventBus
) -> None:
    async def fail(tx: Transaction) -> None:
        await events.append(tx, "c1", [event(1)])
        raise InvalidRequest("no")

    with event_bus.subscribe("u", lambda _: True) as listener:
        with pytest.raises(InvalidRequest):
            await db.write(fail)
        await append(db, events, [event(2)])
        assert await listener.take() == [told(Subject.EVENTS, 0)]


async def test_deltas_are_announced_with_the_number_of_the_event_before_them(
    db: Database, events: EventLog, event_bus: EventBus
) -> None:
    first, second, third = (event(number, kind="StreamingDeltaEvent") for number in (7, 8, 9))
    with event_bus.subscribe("u", lambda _: True) as listener:
        await append(db, events, [first])
        await append(db, events, [event(1), second, event(2), third])
        assert await listener.take() == [
            told(Subject.DELTA, -1, first),
            told(Subject.DELTA, 0, second),
            told(Subject.DELTA, 1, third),
            told(Subject.EVENTS, 1),
        ]


async def test_a_delta_is_announced_without_reading_what_came_behind_it(
    db: Database, events: EventLog, event_bus: EventBus
) -> None:
    await append(db, events, [event(n, source="user", text="x" * 2**20) for n in range(20)])
    with event_bus.subscribe("u", lambda _: True) as listener:
        tracemalloc.start()
        try:
            await events.announce_deltas("c1", [b"{}"], after=0)
            assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
        finally:
            tracemalloc.stop()
        assert [news.delta for news in await listener.take()] == [b"{}"]
        await append(db, events, [event(20)])
        await events.announce_deltas("c1", [b"{}"], after=0)
        assert [news.delta for news in await listener.take()] == [b""], "its message is stored"


async def test_raw_parts_of_a_decoded_body_can_be_appended(db: Database, events: EventLog) -> None:
    body = b"[" + event(1) + b"," + event(2) + b"]"
    parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    added = await db.write(lambda tx: events.append(tx, "c1", parts))
    assert [one.body for one in added] == [event(1), event(2)]


async def pages(events: EventLog, query: EventQuery, limit: int) -> list[list[int]]:
    found, page_id = [], None
    while True:
        page, page_id = await events.search("c1", query, page_id=page_id, limit=limit)
        found.append(numbers(page))
        if page_id is None:
            return found


async def test_search_goes_by_time_whatever_the_order_of_arrival(
    db: Database, events: EventLog
) -> None:
    await append(db, events, [event(3), event(1), event(5), event(2), event(4)])

    assert await pages(events, ALL, 2) == [[1, 2], [3, 4], [5]]
    assert await pages(events, NEWEST_FIRST, 2) == [[5, 4], [3, 2], [1]]
    assert await pages(events, ALL, 5) == [[1, 2, 3, 4, 5]]


async def test_events_of_one_moment_are_paged_by_their_numbers(
    db: Database, events: EventLog
) -> None:
    same = "2025-03-01T12:00:00"
    await append(db, events, [event(n, timestamp=same) for n in (4, 2, 3, 1)])

    assert await pages(events, ALL, 1) == [[4], [2], [3], [1]]
    assert await pages(events, NEWEST_FIRST, 3) == [[1, 3, 2], [4]]


async def test_a_page_ends_early_where_events_are_large(db: Database, events: EventLog) -> None:
    sizes = [100, *[2**20] * 40, 70_000, 100]
    await append(db, events, [event(n, text="x" * size) for n, size in enumerate(sizes)])
    for query in (ALL, NEWEST_FIRST):
        found = await pages(events, query, 100)
        assert sorted(itertools.chain(*found)) == list(range(len(sizes)))
        assert max(map(len, found)) <= 18
        bodies, page_id = await events.search_bodies("c1", query, page_id=None, limit=100)
        page, same_page_id = await events.search("c1", query, page_id=None, limit=100)
        assert (bodies, page_id) == ([one.body for one in page], same_page_id)
    assert len(await events.find_many("c1", ["e1"] * 100)) == 100
    with pytest.raises(ExportTooLarge):
        await events.find_many("c1", [f"e{n}" for n in range(40)])


async def test_a_page_whose_events_are_deleted_while_it_is_read_is_not_the_last(
    db: Database, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(db, events, [event(n, text="x" * 70_000) for n in range(3)])
    read = Database.value

    async def delete_first(self: Database, sql: str, params: Any = ()) -> Any:
        await self.write(lambda tx: tx.run("DELETE FROM events WHERE seq = 0"))
        return await read(self, sql, params)

    monkeypatch.setattr(Database, "value", delete_first)
    assert await pages(events, ALL, 1) == [[], [1], [2]]


async def test_a_page_id_stays_true_while_events_arrive(db: Database, events: EventLog) -> None:
    await append(db, events, [event(2), event(4), event(6)])
    page, page_id = await events.search("c1", ALL, page_id=None, limit=2)
    await append(db, events, [event(1), event(5)])

    rest, last = await events.search("c1", ALL, page_id=page_id, limit=9)
    assert (numbers(page), numbers(rest), last) == ([2, 4], [5, 6], None)


async def test_search_and_count_filter_by_kind_and_time(db: Database, events: EventLog) -> None:
    kinds = ["MessageEvent", "ActionEvent"]
    await append(db, events, [event(n, kind=kinds[n % 2]) for n in range(10)])
    query = EventQuery(
        kind="ActionEvent",
        timestamp_gte="2025-03-01T12:00:00.000003",
        timestamp_lt="2025-03-01T12:00:00.000009",
    )

    assert await pages(events, query, 2) == [[3, 5], [7]]
    assert await pages(events, msgspec.structs.replace(query, descending=True), 2) == [[7, 5], [3]]
    assert await events.count("c1", query) == 3
    assert await events.count("c1", ALL) == 10
    assert await events.count("c2", ALL) == 0
    assert await pages(events, EventQuery(kind="PauseEvent"), 2) == [[]]


async def test_what_an_agent_server_does_not_log_can_be_left_out(db: Database) -> None:
    events = EventLog(db, EventBus(), store_deltas=True)
    kept = [
        event(1),
        event(2, kind="ConversationStateUpdateEvent", key="stats", value={"key": "full_state"}),
        event(3, kind="ConversationStateUpdateEvent"),
        event(4, key="full_state"),
    ]
    left_out = [
        event(5, kind="ConversationStateUpdateEvent", key="full_state", value={}),
        event(6, kind="StreamingDeltaEvent"),
    ]
    await append(db, events, [*kept, *left_out])

    assert await events.count("c1", ALL) == 6
    assert await events.count("c1", EventQuery(logged=True)) == 4
    assert await pages(events, EventQuery(logged=True), 9) == [[1, 2, 3, 4]]


@pytest.mark.parametrize("descending", [False, True])
async def test_a_page_id_from_outside_the_times_asked_for_does_not_widen_them(
    db: Database, events: EventLog, descending: bool
) -> None:
    await append(db, events, [event(n) for n in range(10)])
    whole = EventQuery(descending=descending)
    _, page_id = await events.search("c1", whole, page_id=None, limit=1)

    query = EventQuery(
        timestamp_gte="2025-03-01T12:00:00.000003",
        timestamp_lt="2025-03-01T12:00:00.000006",
        descending=descending,
    )
    page, _ = await events.search("c1", query, page_id=page_id, limit=9)
    assert sorted(numbers(page)) == [3, 4, 5]


@pytest.mark.parametrize("page_id", ["", "3", "!", "bnVsbA", "WzEsMl0", "x" * 10_000])
async def test_a_page_id_that_is_none_of_ours_is_refused(events: EventLog, page_id: str) -> None:
    with pytest.raises(InvalidRequest):
        await events.search("c1", ALL, page_id=page_id, limit=2)


PLAIN = "0123456789abcdef0123456789abcdef"
DASHED = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize("form", [PLAIN, DASHED])
async def test_events_are_found_by_id_in_the_order_asked_for(
    db: Database, events: EventLog, form: str
) -> None:
    await append(db, events, [event(1), event(2, id=form), event(3)])

    asked = [DASHED, "e3", "absent", PLAIN, "e1", "e3", PLAIN.upper(), DASHED.upper()]
    found = await events.find_many("c1", asked)

    ids = [one and one.id for one in found]
    assert ids == [form, "e3", None, form, "e1", "e3", form, form]
    assert await events.find_many("c2", asked) == [None] * len(asked)
    assert await events.find_many("c1", []) == []


async def test_two_forms_of_one_uuid_are_each_found_exactly(db: Database, events: EventLog) -> None:
    await append(db, events, [event(1, id=PLAIN), event(2, id=DASHED)])
    found = await events.find_many("c1", [DASHED, PLAIN])
    assert [one and one.id for one in found] == [DASHED, PLAIN]


@pytest.mark.parametrize("event_id", ["", "\0", "\udcff", "x" * 100_000, "'"])
async def test_ids_no_event_can_have_are_not_found(events: EventLog, event_id: str) -> None:
    assert await events.find_many("c1", [event_id]) == [None]


async def test_a_range_begins_at_a_number_and_keeps_the_order_of_arrival(
    db: Database, events: EventLog
) -> None:
    await append(db, events, [event(n) for n in (9, 8, 7, 6)])

    assert numbers(await events.read_range("c1", from_seq=1, limit=2)) == [8, 7]
    assert await events.read_range("c1", from_seq=4, limit=2) == []


@pytest.mark.parametrize(
    ("to_seq", "limit", "max_bytes", "expected"),
    [
        (None, 10, 10_000, [2, 3, 4, 5]),
        (None, 2, 10_000, [2, 3]),
        (None, 10, 1, [2]),
        (None, 10, 1500, [2, 3]),
        (3, 10, 10_000, [2, 3]),
        (1, 10, 10_000, []),
    ],
)
async def test_a_stretch_is_read_by_bytes_numbers_and_count(
    db: Database,
    events: EventLog,
    *,
    to_seq: int | None,
    limit: int,
    max_bytes: int,
    expected: list[int],
) -> None:
    await append(db, events, [event(n, text="x" * 1000) for n in range(6)])
    await append(db, events, [event(n) for n in range(6)], "c2")
    found = await events.read_stretch(
        "c1", from_seq=2, to_seq=to_seq, limit=limit, max_bytes=max_bytes
    )
    assert [one.seq for one in found] == expected
    assert numbers(found) == expected


async def test_the_number_of_the_last_event_is_known(db: Database, events: EventLog) -> None:
    assert await events.find_last("c1") == -1
    await append(db, events, [event(1), event(2)])
    assert await events.find_last("c1") == 1
    assert await events.find_last("unknown") is None


async def test_events_go_with_their_conversation(db: Database, events: EventLog) -> None:
    await append(db, events, [event(1)], "c1")
    await append(db, events, [event(1)], "c2")
    await db.write(lambda tx: tx.run("DELETE FROM conversations WHERE id = 'c1'"))

    assert await stored(events, "c1") == []
    assert len(await stored(events, "c2")) == 1


def test_the_head_of_a_state_update_carries_key_and_value() -> None:
    head = read_head(event(1, kind="ConversationStateUpdateEvent", key="stats", value={"a": 1}))
    assert head is not None
    assert (head.id, head.kind, head.source, head.key) == (
        "e1",
        "ConversationStateUpdateEvent",
        "agent",
        "stats",
    )
    assert bytes(head.value) == b'{"a":1}'


def test_the_head_of_another_event_has_neither() -> None:
    head = read_head(event(1, source=None))
    assert head is not None
    assert (head.id, head.kind, head.timestamp, head.source, head.key, bytes(head.value)) == (
        "e1",
        "MessageEvent",
        "2025-03-01T12:00:00.000001",
        None,
        None,
        b"",
    )


def test_a_key_that_is_no_text_does_not_hide_the_head() -> None:
    head = read_head(event(1, key=["odd"]))
    assert head is not None
    assert (head.id, head.kind) == ("e1", "MessageEvent")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"id":"x"}', b'{"id":"\xff"}', b'{"value":' + b"[" * 100_000]
)
def test_what_is_no_event_has_no_head(body: bytes) -> None:
    assert read_head(body) is None
