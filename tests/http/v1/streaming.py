"""What tests of streams have: a conversation, and events for it as its sandbox reports them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.service import Client, Service


class Feeder(msgspec.Struct, frozen=True, kw_only=True):
    """Sends events of a conversation as its sandbox does."""

    conversation_id: str
    sandbox: Client

    @property
    def path(self) -> str:
        return f"/api/v1/webhooks/events/{self.conversation_id}"

    async def send(self, some: Sequence[dict[str, Any]]) -> None:
        answer = await self.sandbox.post(self.path, json=some)
        assert answer.status == 200, answer.text


async def feeder(client: Client, service: Service) -> Feeder:
    """Start a conversation in which nothing happens but what is sent."""
    conversation_id = await client.start_conversation(None)
    found = await client.conversation(conversation_id)
    sandbox = service.client_with(found["session_api_key"])
    return Feeder(conversation_id=conversation_id, sandbox=sandbox)


def events(count: int, *, first: int = 1, **members: Any) -> list[dict[str, Any]]:
    return [_event(number, "MessageEvent", members) for number in range(first, first + count)]


def deltas(count: int, **members: Any) -> list[dict[str, Any]]:
    first = 10**9
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
