"""The key as the first message of a WebSocket, from clients that can send no header with it.

It is what published clients say to agent servers: `{"type": "auth", "session_api_key": "..."}`. Who
opened a WebSocket without any key has little time to say it, and is one of the connections without a
good key until then, of which the oldest make room for new ones.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web

from agentsvc.base import NotAuthenticated
from agentsvc.http.keys import CONFIG, SDK_VERSION
from agentsvc.http.sdk_versions import unmark

LARGEST_FIRST_BYTES: Final = 4096
"""How long a first message may be."""


class AuthMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a client that opened a WebSocket without a key."""

    type: Literal["auth"]
    session_api_key: str


_AUTH = msgspec.json.Decoder(AuthMessage)


async def first_message_key(request: web.Request, message: Awaitable[bytes | str]) -> str:
    """Return the key in a message that may still come; raises NotAuthenticated if it has none.

    What it says of its client is noted in the request.
    """
    try:
        async with asyncio.timeout(request.app[CONFIG].server.first_message_seconds):
            key = _AUTH.decode(await message).session_api_key
    except (TimeoutError, msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise NotAuthenticated("The first message has no key") from exc
    if not key.isascii():
        raise NotAuthenticated
    key, version = unmark(key)
    if version is not None:
        request[SDK_VERSION] = version
    return key


def wants_socket(request: web.Request) -> bool:
    """Whether a client asks for a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
