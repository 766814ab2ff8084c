"""A client of the V0 event socket that remembers what it was told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import socketio

from agentsvc.http.v0.events import ROUTES
from tests.description import message_checker

type Frame = dict[str, Any]

BOTH = ("polling", "websocket")


class Follower:
    """A connection to the event socket; `frames` is what came over it, in order.

    `problems` is what of it is not as it is described.
    """

    def __init__(self, *, patience: float) -> None:
        self.frames: list[Frame] = []
        self.problems: list[str] = []
        [route] = [one for one in ROUTES if one.socket is not None]
        self._checker = message_checker(route)
        self.is_over = asyncio.Event()
        self.client = socketio.AsyncClient(reconnection=False)
        self.client.on("oh_event", self._take)
        self.client.on("disconnect", self._end)
        self._patience = patience
        self._news = asyncio.Event()

    @property
    def events(self) -> list[Frame]:
        """Return the frames that are events."""
        return [frame for frame in self.frames if "timestamp" in frame]

    @property
    def ids(self) -> list[int]:
        return [event["id"] for event in self.events]

    @property
    def errors(self) -> list[str]:
        return [frame["message"] for frame in self.frames if frame.get("error")]

    @property
    def statuses(self) -> list[str]:
        return [
            frame["id"] for frame in self.frames if frame.get("status_update") and "id" in frame
        ]

    async def act(self, action: Any, *, name: str = "oh_user_action") -> None:
        await self.client.emit(name, action)

    async def say(self, text: str, *, name: str = "oh_user_action") -> None:
        await self.act({"action": "message", "args": {"content": text}}, name=name)

    async def wish(self, state: str) -> None:
        await self.act({"action": "change_agent_state", "args": {"agent_state": state}})

    async def until(self, is_enough: Callable[[Sequence[Frame]], Any]) -> list[Frame]:
        """Return all frames as soon as there are enough."""
        try:
            async with asyncio.timeout(self._patience):
                while not is_enough(self.frames):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"these frames were not enough: {self.frames}") from None
        return list(self.frames)

    async def until_state(self, state: str) -> list[Frame]:
        """Return all frames as soon as the agent is in this state."""
        return await self.until(lambda frames: states(frames)[-1:] == [state])

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.problems += [str(problem) for problem in self._checker.iter_errors(frame)]
        self._news.set()

    def _end(self, *_reason: str) -> None:
        self.is_over.set()


def states(frames: Sequence[Frame]) -> list[str]:
    """Return the states that events tell."""
    return [
        frame["extras"]["agent_state"]
        for frame in frames
        if frame.get("observation") == "agent_state_changed" and "timestamp" in frame
    ]


def address(base_url: str, **query: Any) -> str:
    """Return where a client connects to."""
    return f"{base_url}?{urlencode(query)}"


@asynccontextmanager
async def follow(
    base_url: str,
    key: str | None,
    name: str,
    *,
    transports: Sequence[str] = BOTH,
    patience: float = 30.0,
    **query: Any,
) -> AsyncIterator[Follower]:
    """Give a client that follows a conversation."""
    follower = Follower(patience=patience)
    if key is not None:
        query["session_api_key"] = key
    await follower.client.connect(
        address(base_url, conversation_id=name, **query),
        transports=list(transports),
        wait_timeout=patience,
    )
    try:
        yield follower
    finally:
        await follower.client.disconnect()
    assert follower.problems == []
