"""Multiplexed streams: one WebSocket carries further conversation streams beside its own."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import MAX_INT, AgentsvcError
from agentsvc.http.wire import encode

_MAX: Final = 64
"""Maximum number of streams that one WebSocket carries beside its own."""


class StreamItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a stream; `data` is JSON."""

    type: str
    data: bytes = b"{}"
    id: int | None = None
    stream: str | None = None
    """Name of the multiplexed stream; None for the stream that the URL opened."""


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a stream: its last server-sent event, or a WebSocket's close code and reason."""

    message: StreamItem | None
    code: int
    reason: str = ""


type Item = StreamItem | StreamEnd | None
"""None is a heartbeat: there was no message for a while."""
type Items = AsyncGenerator[Item, None]

type Name = Annotated[str, Meta(min_length=1, max_length=64)]
type Number = Annotated[int, Meta(ge=0, le=MAX_INT)]


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="follow"):
    """A client message that opens a stream of a conversation under a name that the client chose."""

    stream: Name
    conversation_id: UUID
    after: Number | UnsetType = UNSET
    latest: Number | UnsetType = UNSET


class Unfollow(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="unfollow"):
    """A client message that ends a stream."""

    stream: Name


type Finder = Callable[[Follow], Awaitable[Items]]

_decode = msgspec.json.Decoder(Follow | Unfollow).decode


class FollowedStreams:
    """The streams that the client of a WebSocket has opened with `follow`."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        send: Callable[[StreamItem], Awaitable[None]],
        find: Finder | None,
    ) -> None:
        self._group = group
        self._send = send
        self._find = find
        self._running: dict[str, asyncio.Task[None]] = {}

    async def handle(self, text: str) -> None:
        """Open or end a stream as a client message asks; ignore other messages."""
        if self._find is None:
            return
        try:
            wanted = _decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return
        if (task := self._running.pop(wanted.stream, None)) is not None:
            task.cancel()
        if isinstance(wanted, Unfollow):
            return
        if len(self._running) >= _MAX:
            await self._refuse(wanted, "too_many_streams")
            return
        try:
            items = await self._find(wanted)
        except AgentsvcError as exc:
            await self._refuse(wanted, exc.code)
            return
        self._running[wanted.stream] = self._group.create_task(
            self._send_items(wanted.stream, items)
        )

    def end(self) -> None:
        """End all streams."""
        for task in self._running.values():
            task.cancel()

    async def _refuse(self, wanted: Follow, reason: str) -> None:
        data = encode({"reason": reason})
        await self._send(StreamItem(type="end", data=data, stream=wanted.stream))

    async def _send_items(self, name: str, items: Items) -> None:
        async with aclosing(items):
            async for item in items:
                message = item.message if isinstance(item, StreamEnd) else item
                # Heartbeats are dropped: the stream of the URL sends them for the connection.
                if message is not None:
                    await self._send(msgspec.structs.replace(message, stream=name))
        if self._running.get(name) is asyncio.current_task():
            del self._running[name]
