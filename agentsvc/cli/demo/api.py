"""The demo as a client: what it asks of the server, in both generations of the API."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

import aiohttp

from agentsvc.base import Secret
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import KEY_HEADER, V1
from agentsvc.cli.show.notes import Event

V0: Final = "/api"
_LOOK_SECONDS: Final = 0.1
_PAGE: Final = 100


class DemoApi:
    """A client of one server with one key; use it as an async context manager."""

    def __init__(self, url: str, key: Secret) -> None:
        self._url = url
        self._key = key
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def save_settings(self, settings: dict[str, Any]) -> None:
        """Save settings through V0."""
        await self._call("POST", f"{V0}/settings", body=settings)

    async def start_conversation(self, text: str) -> dict[str, Any]:
        """Ask for a conversation through V1 and return its start task."""
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        body = {"initial_message": message}
        task: dict[str, Any] = await self._call("POST", f"{V1}/app-conversations", body=body)
        return task

    async def follow_start(self, task: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the start task each time its status has changed; READY or ERROR is the last."""
        yield task
        while task["status"] not in {"READY", "ERROR"}:
            await asyncio.sleep(_LOOK_SECONDS)
            path = f"{V1}/app-conversations/start-tasks"
            found = (await self._call("GET", path, query={"ids": task["id"]}))[0]
            if found["status"] != task["status"]:
                yield found
            task = found

    async def follow_events(self, conversation_id: str) -> AsyncIterator[Event]:
        """Yield each event of a conversation as soon as the server has it; there is no end."""
        path = f"{V1}/conversation/{conversation_id}/events/search"
        seen: set[str] = set()
        query = {"limit": str(_PAGE)}
        while True:
            page = await self._call("GET", path, query=query)
            for event in page["items"]:
                if event["id"] not in seen:
                    seen.add(event["id"])
                    yield event
            if page["next_page_id"]:
                query["page_id"] = page["next_page_id"]
                continue
            # Deliveries may be out of order, so the search starts anew each time.
            query.pop("page_id", None)
            await asyncio.sleep(_LOOK_SECONDS)

    async def get_conversation(self, conversation_id: str) -> dict[str, Any]:
        """Return a conversation through V1."""
        query = {"ids": conversation_id}
        found: Sequence[Any] = await self._call("GET", f"{V1}/app-conversations", query=query)
        conversation: dict[str, Any] = found[0]
        return conversation

    async def get_isolation(self, task: dict[str, Any]) -> str:
        """Return how far the sandbox of a conversation that was started is isolated."""
        query = {"id": task["sandbox_id"]}
        found: Sequence[Any] = await self._call("GET", f"{V1}/sandboxes", query=query)
        return str(found[0]["isolation"])

    async def read_file(self, conversation: dict[str, Any], path: str) -> str:
        """Return a file as it lies in the sandbox, asked of the agent server there."""
        agent_url = conversation["conversation_url"].partition("/api/conversations/")[0]
        key = conversation["session_api_key"]
        async with self._session.get(
            f"{agent_url}/api/file/download", params={"path": path}, headers={KEY_HEADER: key}
        ) as response:
            if not response.ok:
                raise CommandFailed(f"the sandbox does not give {path}: {await response.text()}")
            return await response.text()

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation and its sandbox through V1."""
        await self._call("DELETE", f"{V1}/app-conversations/{conversation_id}")

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Any:
        headers = {KEY_HEADER: self._key.reveal()}
        async with self._session.request(
            method, self._url + path, params=query, json=body, headers=headers
        ) as response:
            if not response.ok:
                raise CommandFailed(
                    f"{method} {path} was answered with {response.status}: {await response.text()}"
                )
            return await response.json()
