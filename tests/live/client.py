"""What the live tests do as a client of a server, in both generations of the API."""

import asyncio
from collections.abc import Callable
from typing import Any

from agentsvc.testing.llm import ScriptedModel
from tests.live.events import Event, of_kind
from tests.service import Client

PATIENCE = 90.0
"""Seconds a thing may take before a test gives up on it; two cores may be shared by many."""

DEFAULTS: dict[str, Any] = {
    "max_iterations": None,
    "security_analyzer": None,
    "confirmation_mode": None,
    "enable_default_condenser": None,
    "condenser_max_size": None,
    "mcp_config": None,
    "max_budget_per_task": None,
    "git_user_name": None,
    "git_user_email": None,
}
"""Settings that put back to its default what another test may have changed."""


class LiveClient(Client):
    """One caller of a server whose agents use the scripted model."""

    def __init__(self, base_url: str, key: str, model: ScriptedModel) -> None:
        super().__init__(base_url, key, patience=PATIENCE)
        self.model = model
        self._agents: list[Client] = []

    async def close(self) -> None:
        for agent in self._agents:
            await agent.close()
        await super().close()

    def agent(self, conversation: dict[str, Any]) -> Client:
        """Return a client of the agent server that a conversation says it lives on."""
        base_url = conversation["conversation_url"].partition("/api/conversations/")[0]
        agent = Client(base_url, conversation["session_api_key"], patience=PATIENCE)
        self._agents.append(agent)
        return agent

    def asked(self, text: str) -> list[dict[str, Any]]:
        """Return what agents asked the model about a text, oldest first.

        The requests for titles have the text, too, come at any time, and have no tools.
        """
        return [one for one in self.model.requests if one.get("tools") and text in str(one)]

    async def save_settings(self, **fields: Any) -> None:
        """Save settings that are complete: what is not named is as if never changed."""
        llm = {
            "llm_model": "openai/scripted",
            "llm_base_url": self.model.url,
            "llm_api_key": self.model.key.reveal(),
        }
        await super().save_settings(**llm | DEFAULTS | fields)

    async def send(self, conversation_id: str, text: str) -> None:
        """Send a message that sets the agent to work, through V1."""
        answer = await self.post(
            f"/api/v1/app-conversations/{conversation_id}/send-message",
            json={"role": "user", "content": [{"type": "text", "text": text}], "run": True},
        )
        assert answer.status == 200, answer.text

    async def until(
        self, conversation_id: str, is_enough: Callable[[list[Event]], bool]
    ) -> list[Event]:
        """Return the events of a conversation as soon as they are as wished."""
        events: list[Event] = []
        try:
            async with asyncio.timeout(self.patience):
                while True:
                    events = await self.events(conversation_id)
                    if is_enough(events):
                        return events
                    await asyncio.sleep(0.05)
        except TimeoutError:
            kinds = [event["kind"] for event in events]
            raise AssertionError(f"the events stayed like this: {kinds}") from None

    async def until_kind(self, conversation_id: str, kind: str) -> list[Event]:
        """Return the events of a kind as soon as there is one."""
        events = await self.until(conversation_id, lambda events: bool(of_kind(events, kind)))
        return of_kind(events, kind)

    async def history(self, conversation_id: str) -> list[Event]:
        """Return the events as V0 tells them."""
        found = await self.get(f"/api/conversations/{conversation_id}/events?limit=100")
        events: list[Event] = found.json()["events"]
        return events

    async def respond(self, conversation_id: str, **fields: Any) -> None:
        """Accept or reject what an agent wants to do, on its agent server."""
        agent = self.agent(await self.conversation(conversation_id))
        path = f"/api/conversations/{conversation_id}/events/respond_to_confirmation"
        answer = await agent.post(path, json=fields)
        assert answer.status == 200, answer.text
