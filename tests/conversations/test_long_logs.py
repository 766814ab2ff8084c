"""Logs of agents with more in them than is to be kept in memory while something is looked for."""

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from agentsvc.agentserver.client import AgentServer
from agentsvc.agentserver.responses import ConversationInfo
from agentsvc.base.errors import StartRefused
from agentsvc.conversations.message_delivery import deliver_once
from agentsvc.conversations.message_queue_table import PendingKind, PendingMessage
from agentsvc.conversations.model_health import WatchedModel
from agentsvc.conversations.replays import play
from agentsvc.conversations.starting.first_response import watch_first_answer
from agentsvc.domain.orders import Content, ContentKind, Message, RecordedStep

PAGES = 40
SAID = Message(content=(Content(kind=ContentKind.TEXT, text="only once"),))


def event(kind: str, **members: Any) -> bytes:
    return msgspec.json.encode({"id": "a", "kind": kind, **members})


def said(text: str) -> bytes:
    content = [{"type": "text", "text": text}]
    return event("MessageEvent", source="user", llm_message={"content": content})


class Talkative(AgentServer):
    """An agent server whose log has pages of 1 MiB."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        self.status = "error"

    async def event_pages(self, *_args: Any, **_rest: Any) -> AsyncIterator[list[bytes]]:
        text = "x" * 2**19
        for _ in range(PAGES):
            yield [event("ConversationErrorEvent", detail=text), said(text)]
        yield [said("only once")]

    async def find_conversation(self, conversation_id: str) -> ConversationInfo | None:
        return ConversationInfo(id=conversation_id, execution_status=self.status)

    async def wait_for_earlier_changes(self, conversation_id: str, **_rest: Any) -> None:
        del conversation_id

    async def send_message(
        self, conversation_id: str, content: Sequence[Mapping[str, Any]], *, run: bool, **_rest: Any
    ) -> None:
        del conversation_id, content
        self.told.append(run)

    async def run(self, conversation_id: str) -> None:
        self.told.append(conversation_id == "c")


async def deliver(agent: Talkative) -> None:
    async def begin(_last_event: str) -> bool:
        raise AssertionError("it was tried before")

    pending = PendingMessage(
        id="m",
        conversation_id="c",
        kind=PendingKind.MESSAGE,
        message=SAID,
        last_event="",
        is_tried=True,
    )
    await deliver_once(agent, pending, begin)
    assert agent.told == [True], "it was said, and the agent goes on"


async def watch(agent: Talkative) -> None:
    with pytest.raises(StartRefused, match="refused the first request"):
        await watch_first_answer(agent, "c", 30, WatchedModel(None))


async def replay(agent: Talkative) -> None:
    async def check() -> None:
        raise AssertionError("it is over")

    agent.status = "idle"
    await play(agent, "c", [RecordedStep(message=SAID)], check)


@pytest.mark.parametrize("look", [deliver, watch, replay])
async def test_what_is_not_looked_for_is_not_kept(
    look: Callable[[Talkative], Awaitable[None]],
) -> None:
    tracemalloc.start()
    try:
        await look(Talkative())
        assert tracemalloc.get_traced_memory()[1] < 12 * 2**20
    finally:
        tracemalloc.stop()
