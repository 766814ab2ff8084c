"""What the tests of the console do with a server whose sandboxes and agents are fakes."""

import re
from typing import Any

import msgspec

from agentsvc.testing.llm import ScriptedModel
from tests.live.browser import Console
from tests.live.client import LiveClient
from tests.service import Service

FIELD = "Message to the agent"

WAITS: dict[str, Any] = {
    "id": "waits",
    "timestamp": "2099-01-01T00:00:00",
    "kind": "ConversationStateUpdateEvent",
    "key": "execution_status",
    "value": "waiting_for_confirmation",
}


async def user_of(service: Service, name: str = "admin") -> LiveClient:
    """Return a client of a user with settings."""
    client = await service.make_client(name)
    await client.save_settings()
    return LiveClient(client.base_url, str(client.key), ScriptedModel())


async def finished(client: LiveClient) -> str:
    """Return a conversation whose agent has done its task."""
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    return conversation_id


async def report(client: LiveClient, conversation_id: str, events: list[dict[str, Any]]) -> None:
    """Tell the server of events, as the agent server of a conversation does."""
    seen = await client.conversation(conversation_id)
    made = [
        {"timestamp": f"2026-01-01T00:{i // 60:02}:{i % 60:02}", "source": "agent", **event}
        for i, event in enumerate(events)
    ]
    answer = await client.post(
        f"/api/v1/webhooks/events/{conversation_id}",
        data=msgspec.json.encode(made),
        headers={"X-Session-API-Key": seen["session_api_key"], "Content-Type": "application/json"},
    )
    assert answer.status == 200, answer.text


def said(number: int, text: str, source: str = "agent") -> dict[str, Any]:
    role = {"agent": "assistant", "user": "user"}[source]
    content = [{"type": "text", "text": text}]
    message = {"role": role, "content": content}
    return {
        "id": f"said-{number}",
        "kind": "MessageEvent",
        "source": source,
        "llm_message": message,
    }


def forgive_lost_answers(console: Console) -> None:
    console.problems[:] = [
        one for one in console.problems if not re.search("net::ERR_FAILED|status of 50", one)
    ]


def command(number: int, text: str) -> dict[str, Any]:
    return {
        "id": f"action-{number}",
        "kind": "ActionEvent",
        "tool_name": "terminal",
        "tool_call_id": f"call-{number}",
        "action": {"kind": "TerminalAction", "command": text},
    }


def printed(number: int, text: str) -> dict[str, Any]:
    return {
        "id": f"observation-{number}",
        "kind": "ObservationEvent",
        "source": "environment",
        "tool_name": "terminal",
        "tool_call_id": f"call-{number}",
        "action_id": f"action-{number}",
        "observation": {
            "kind": "TerminalObservation",
            "content": [{"type": "text", "text": text}],
            "exit_code": 0,
        },
    }
