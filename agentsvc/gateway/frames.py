"""The little of RFC 6455 that is needed before a sandbox is known: one text in, one close out."""

import asyncio
import base64
import binascii
import hashlib
import struct
from typing import Final

from aiohttp import hdrs, web

from agentsvc.errors import BadRequest

CLOSE_REASON_BYTES: Final = 123

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"
_TEXT: Final = 0x81
_CLOSE: Final = 0x88
_MASKED: Final = 0x80
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_KEY_BYTES: Final = 16


class NotAText(Exception):
    """The first frame is not a text of a reasonable size."""


def is_upgrade(request: web.Request) -> bool:
    """Whether a request asks for a WebSocket."""
    wanted = ",".join(request.headers.getall(hdrs.CONNECTION, [])).lower().split(",")
    is_named = "upgrade" in (token.strip() for token in wanted)
    return is_named and request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


def accept(request: web.Request) -> str:
    """Return what proves that the handshake was understood; raises BadRequest for a bad one."""
    key = request.headers.get(hdrs.SEC_WEBSOCKET_KEY, "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    version = request.headers.get(hdrs.SEC_WEBSOCKET_VERSION, "").strip()
    if request.method != hdrs.METH_GET or not is_key or version != _VERSION:
        raise BadRequest("The WebSocket handshake is not one of version 13")
    digest = hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


async def read_text(reader: asyncio.StreamReader, *, limit: int) -> bytes:
    """Return the first frame's text; raises NotAText, or IncompleteReadError at the end."""
    first, second = await reader.readexactly(2)
    length = second & ~_MASKED
    if first != _TEXT or not second & _MASKED or length == _LENGTH_64:
        raise NotAText
    if length == _LENGTH_16:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
    if length > limit:
        raise NotAText
    mask = await reader.readexactly(4)
    data = await reader.readexactly(length)
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def close(code: int, reason: str) -> bytes:
    """Return the frame with which a server ends a WebSocket."""
    said = reason.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore").encode()
    return bytes((_CLOSE, 2 + len(said))) + struct.pack("!H", code) + said
