"""What tests of streams have: a conversation, and events for it as its sandbox reports them."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tests.http.gateway.steps import until
from tests.service import Client, Service

_BATCH: Final = 40


class Feeder(msgspec.Struct, frozen=True, kw_only=True):
    """Sends events of a conversation as its sandbox does."""

    conversation_id: str
    sandbox: Client

    @property
    def path(self) -> str:
        return f"/api/v1/webhooks/events/{self.conversation_id}"

    async def send(self, some: Sequence[dict[str, Any]]) -> None:
        for batch in itertools.batched(some, _BATCH):
            answer = await self.sandbox.post(self.path, json=batch)
            assert answer.status == 200, answer.text


async def feeder(client: Client, service: Service) -> Feeder:
    """Start a conversation in which nothing happens but what is sent."""
    conversation_id = await client.start_conversation(None)
    # The agent server tells of its state once, a moment later.

    async def has_told() -> bool:
        return len(await client.events(conversation_id)) > 0

    await until(has_told)
    found = await client.conversation(conversation_id)
    sandbox = service.client_with(found["session_api_key"])
    return Feeder(conversation_id=conversation_id, sandbox=sandbox)


def events(count: int, *, first: int = 1, **members: Any) -> list[dict[str, Any]]:
    return [_event(number, "MessageEvent", members) for number in range(first, first + count)]


def deltas(count: int, *, first: int = 0, **members: Any) -> list[dict[str, Any]]:
    first += 10**9
    return [
        _event(number, "StreamingDeltaEvent", members) for number in range(first, first + count)
    ]


def _event(number: int, kind: str, members: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": "2030-01-01T00:00:00.000000",
        "source": "agent",
        "kind": kind,
        **members,
    }
