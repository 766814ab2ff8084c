"""Following a conversation from the command line."""

from collections.abc import Iterator
from typing import Any, cast

from agentsvc.base.values import Secret, new_id
from agentsvc.cli.client import Api, StreamMessage
from agentsvc.cli.talk import EventStream


class RestoredServer(Api):
    """A server that was put back to 50 events, for a client that has read 100."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", Secret("key"))
        self.asked: list[int] = []

    def stream(self, path: str, *, after: int, beats: bool = False) -> Iterator[StreamMessage]:
        del path, beats
        self.asked.append(after)
        if after > 50:
            yield StreamMessage(type="resync", id=50, data={"last_event_id": 50})
        else:
            yield StreamMessage(type="event", id=after + 1, data={})


def test_events_go_on_where_a_server_is_that_was_restored_from_a_backup() -> None:
    server = RestoredServer()
    events = EventStream(server, cast("dict[str, Any]", {"id": new_id()}))
    events.last = 100
    assert [one.type for one in events.read()] == ["resync"]
    assert [one.type for one in events.read()] == ["event"]
    assert server.asked == [100, 50]
    assert events.last == 51
