"""Authentication by the first message of a WebSocket, for clients that cannot send headers.

Published clients send `{"type": "auth", "session_api_key": "..."}` to agent servers. A client must
send it within a short time; until then, its connection counts as unauthenticated and may be
evicted.
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
"""Maximum size of the first message."""


class AuthMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a client that opened a WebSocket without a key."""

    type: Literal["auth"]
    session_api_key: str


_AUTH = msgspec.json.Decoder(AuthMessage)


async def first_message_key(request: web.Request, message: Awaitable[bytes | str]) -> str:
    """Wait for the first message and return its key; raises NotAuthenticated.

    Stores the SDK version in the key's suffix in the request.
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
    """Whether a request is an upgrade to a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
