"""Histories are read once, continued, and forgotten when they take too much room."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import StoredEvent
from agentsvc.http.v0 import transcripts as under_test
from agentsvc.http.v0.transcripts import Transcripts
from agentsvc.http.wire import encode

MADE = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryLog(EventLog):
    """An event log of messages that notes from where it was read."""

    def __init__(self, length: int) -> None:
        self.first = 0
        self.length = length
        self.reads: list[tuple[str, int]] = []

    async def find_first(self, conversation_id: str) -> int | None:
        del conversation_id
        return self.first if self.first < self.length else None

    async def read_stretch(
        self,
        conversation_id: str,
        *,
        from_seq: int,
        to_seq: int | None,
        limit: int,
        max_bytes: int,
    ) -> list[StoredEvent]:
        del to_seq, max_bytes
        self.reads.append((conversation_id, from_seq))
        await asyncio.sleep(0)
        numbers = range(max(self.first, from_seq), min(self.length, from_seq + limit))
        return [message(conversation_id, seq) for seq in numbers]


def message(conversation_id: str, seq: int) -> StoredEvent:
    event = {
        "id": f"e{seq}",
        "kind": "MessageEvent",
        "timestamp": "2026-01-01T00:00:00",
        "source": "user",
        "llm_message": {"content": [{"type": "text", "text": f"message {seq}"}]},
    }
    return StoredEvent(
        conversation_id=conversation_id,
        seq=seq,
        id=f"e{seq}",
        kind="MessageEvent",
        timestamp="2026-01-01T00:00:00",
        source="user",
        body=msgspec.json.encode(event),
    )


async def test_a_long_history_is_read_whole() -> None:
    history = await Transcripts(MemoryLog(250)).read("c", MADE)
    assert [msgspec.json.decode(event)["id"] for event in history] == list(range(251))


async def test_a_second_read_goes_on_where_the_first_ended() -> None:
    log = MemoryLog(3)
    transcripts = Transcripts(log)
    before = list(await transcripts.read("c", MADE))
    log.length = 5
    after = await transcripts.read("c", MADE)
    assert log.reads == [("c", 0), ("c", 3)]
    assert list(after)[: len(before)] == before
    assert len(after) == 6


async def test_readers_at_the_same_time_see_one_history() -> None:
    transcripts = Transcripts(MemoryLog(250))
    histories = await asyncio.gather(*(transcripts.read("c", MADE) for _ in range(5)))
    assert {len(history) for history in histories} == {251}


async def test_what_was_read_longest_ago_is_forgotten_first() -> None:
    log = MemoryLog(3)
    transcripts = Transcripts(log, max_bytes=1)
    for conversation_id in ("a", "b", "b", "a"):
        await transcripts.read(conversation_id, MADE)
    assert log.reads == [("a", 0), ("b", 0), ("b", 3), ("a", 0)]


async def test_a_conversation_made_again_under_its_old_id_has_its_own_history() -> None:
    log = MemoryLog(3)
    transcripts = Transcripts(log)
    await transcripts.read("c", MADE)
    log.length = 1
    assert len(await transcripts.read("c", datetime(2026, 1, 2, tzinfo=UTC))) == 2


async def test_what_was_deleted_for_its_age_is_not_shown_any_more() -> None:
    log = MemoryLog(3)
    transcripts = Transcripts(log)
    await transcripts.read("c", MADE)
    log.first = 2
    [_, left] = await transcripts.read("c", MADE)
    assert msgspec.json.decode(left)["message"] == "message 2"
    log.first = 3
    assert list(await transcripts.read("c", MADE)) == []


async def test_an_event_that_cannot_be_shown_is_left_out_of_every_history(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def encode_most(event: object) -> bytes:
        if b"message 1" in (encoded := encode(event)):
            raise OverflowError
        return encoded

    monkeypatch.setattr(under_test, "encode", encode_most)
    log = MemoryLog(4)
    kept = Transcripts(log)
    histories = [list(await one.read("c", MADE)) for one in (kept, kept, Transcripts(log))]
    assert histories[0] == histories[1] == histories[2]
    shown = [msgspec.json.decode(event) for event in histories[0]]
    assert [event["id"] for event in shown] == [0, 1, 2, 3]
    assert [event["message"] for event in shown] == ["", "message 0", "message 2", "message 3"]
    assert "event not translated to V0" in caplog.text
