"""The key as the first message of a WebSocket, from clients that can send no header with it.

It is what published clients say to agent servers: `{"type": "auth", "session_api_key": "..."}`. Who
opened a WebSocket without any key has little time to say it, and not many may wait at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web

from agentsvc.errors import CapacityExceeded, NotAuthenticated
from agentsvc.values import spread

LARGEST_FIRST_BYTES: Final = 4096
"""How long a first message may be."""
_APART_SECONDS: Final = 1.0


class AuthMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a client that opened a WebSocket without a key."""

    type: Literal["auth"]
    session_api_key: str


_AUTH = msgspec.json.Decoder(AuthMessage)


class Doorstep:
    """Where those wait who have not shown a key yet."""

    def __init__(self, *, time_limit: float, most: int) -> None:
        self._time_limit = time_limit
        self._most = most
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for a client without a key; raises CapacityExceeded if there is none."""
        if self._waiting >= self._most:
            raise CapacityExceeded("Too many WebSockets wait for their key")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def delay(self) -> float:
        """Return how many seconds whoever has a place waits until the WebSocket is opened.

        It is some time where more than a quarter of the places is taken, another one for each, so
        that those who come together again and again do not stay together.
        """
        is_crowded = self._waiting * 4 > self._most
        return spread(_APART_SECONDS) - _APART_SECONDS if is_crowded else 0.0

    async def key_from(self, message: Awaitable[bytes | str]) -> str:
        """Return the key in a message that may still come; raises NotAuthenticated if it has none."""
        try:
            async with asyncio.timeout(self._time_limit):
                key = _AUTH.decode(await message).session_api_key
        except (TimeoutError, msgspec.MsgspecError, UnicodeError) as exc:
            raise NotAuthenticated("The first message has no key") from exc
        if not key.isascii():
            raise NotAuthenticated
        return key


DOORSTEP: Final[web.AppKey[Doorstep]] = web.AppKey("doorstep", Doorstep)


def wants_socket(request: web.Request) -> bool:
    """Whether a client asks for a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
