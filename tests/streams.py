"""Readers of streams: server-sent events and WebSockets, read as browsers read them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from agentsvc.http.v1.streams import ROUTES
from tests.description import message_checker
from tests.service import Client

CHANGES = "/api/v1/events/stream"
_LONGEST_LINE = 8 * 1024 * 1024


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream."""

    type: str
    id: str | None = None
    data: Any = None


class Stream:
    """An open stream of either kind, whose messages are all as they are described."""

    def __init__(self, path: str) -> None:
        [route] = [one for one in ROUTES if (one.path == CHANGES) == path.startswith(CHANGES)]
        self._checker = message_checker(route)

    async def read(self) -> Told | None:
        """Return the next message, None at the end."""
        raise NotImplementedError

    def as_described(self, told: Told) -> Told:
        """Return a message that is as it is described."""
        number = int(told.id) if told.id else None
        self._checker.validate({"type": told.type, "id": number, "data": told.data})
        return told

    async def until(self, kind: str) -> list[Told]:
        """Return all messages up to the first of a kind."""
        told: list[Told] = []
        while (one := await self.read()) is not None:
            told.append(one)
            if one.type == kind:
                return told
        raise AssertionError(f"it ended after {told[-3:]}")

    async def rest(self) -> list[Told]:
        """Return all messages up to the end."""
        told: list[Told] = []
        while (one := await self.read()) is not None:
            told.append(one)
        return told


class Lines(Stream):
    """Server-sent events."""

    def __init__(self, path: str, response: aiohttp.ClientResponse) -> None:
        super().__init__(path)
        self.response = response
        self.comments = 0

    async def read(self) -> Told | None:
        fields: dict[str, str] = {}
        while line := await self.response.content.readline():
            name, _, value = line.decode().removesuffix("\n").partition(":")
            if line == b":\n":
                self.comments += 1
            elif line != b"\n":
                fields[name] = value.removeprefix(" ")
            elif "data" in fields:
                data = msgspec.json.decode(fields["data"])
                told = Told(type=fields["event"], id=fields.get("id"), data=data)
                return self.as_described(told)
        return None


class Socket(Stream):
    """A WebSocket."""

    def __init__(self, path: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__(path)
        self.socket = socket
        self.end: tuple[int | None, str] = (None, "")

    async def read(self) -> Told | None:
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            self.end = (self.socket.close_code, message.extra or "")
            return None
        told = msgspec.json.decode(message.data)
        number = told.get("id")
        shown = None if number is None else str(number)
        return self.as_described(Told(type=told["type"], id=shown, data=told["data"]))


@asynccontextmanager
async def open_lines(
    client: Client, path: str, *, last_id: str | None = None, buffer_bytes: int = _LONGEST_LINE
) -> AsyncIterator[Lines]:
    """Open a stream of server-sent events; `last_id` is what a browser sends when it comes back."""
    headers = _key_of(client) | ({"Last-Event-ID": last_id} if last_id is not None else {})
    limit = aiohttp.ClientTimeout(sock_read=client.patience)
    async with (
        aiohttp.ClientSession(read_bufsize=buffer_bytes, timeout=limit) as session,
        session.get(client.base_url + path, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        yield Lines(path, response)


@asynccontextmanager
async def open_socket(client: Client, path: str, **options: Any) -> AsyncIterator[Socket]:
    """Open a stream over a WebSocket."""
    limit = aiohttp.ClientWSTimeout(ws_receive=client.patience)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            client.base_url + path,
            headers=_key_of(client),
            timeout=limit,
            max_msg_size=_LONGEST_LINE,
            **options,
        ) as socket,
    ):
        yield Socket(path, socket)


def path_of(conversation_id: str, after: str | int | None = None) -> str:
    """Return the path of a conversation's stream."""
    path = f"/api/v1/conversation/{conversation_id}/events/stream"
    return path if after is None else f"{path}?after={after}"


def _key_of(client: Client) -> dict[str, str]:
    return {"X-Session-API-Key": client.key, **client.headers} if client.key else client.headers
