"""The parts of RFC 6455 that the gateway needs where it does not forward raw bytes.

Before the sandbox is known, it reads one text frame and may send a close frame; for older clients,
it parses and converts the messages of an agent server.
"""

import asyncio
import base64
import hashlib
import struct
from typing import Final, NamedTuple

from aiohttp import hdrs, web

from agentsvc.base import BadRequest

CLOSE_REASON_BYTES: Final = 123

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"
_TEXT: Final = 0x81
_CLOSE: Final = 0x88
_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_SHORTEST_OF_64: Final = 0x10000
_FINAL: Final = 0x80
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0
_TEXT_CODE: Final = 1
_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest message of an agent server that is converted."""
_KEY_BYTES: Final = 16


class InvalidFrame(Exception):
    """A frame is too large, wrongly masked, or not the expected text frame."""


class ServerMessage(NamedTuple):
    """A complete text message of a server (one or more frames), or any other single frame."""

    raw: bytes
    """The frames as received."""
    data: bytes
    is_text: bool


def is_upgrade(request: web.Request) -> bool:
    """Whether a request is a WebSocket handshake."""
    if hdrs.UPGRADE not in request.headers:
        return False
    wanted = ",".join(request.headers.getall(hdrs.CONNECTION, [])).lower().split(",")
    is_named = "upgrade" in (token.strip() for token in wanted)
    return is_named and request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


def accept(request: web.Request) -> str:
    """Return the Sec-WebSocket-Accept value of a handshake; raises BadRequest if it is invalid."""
    key = request.headers.get(hdrs.SEC_WEBSOCKET_KEY, "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except ValueError:
        is_key = False
    version = request.headers.get(hdrs.SEC_WEBSOCKET_VERSION, "").strip()
    if request.method != hdrs.METH_GET or not is_key or version != _VERSION:
        raise BadRequest("The WebSocket handshake is invalid; version 13 is supported")
    digest = hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


async def read_text(reader: asyncio.StreamReader, *, limit: int) -> bytes:
    """Read a client's text frame; raises InvalidFrame, or IncompleteReadError at the end."""
    first, _, data = await _frame(reader, limit, mask_bytes=_MASK_BYTES)
    if first != _TEXT:
        raise InvalidFrame
    mask, masked = data[:_MASK_BYTES], data[_MASK_BYTES:]
    return bytes(byte ^ mask[index % _MASK_BYTES] for index, byte in enumerate(masked))


class ServerMessages:
    """Reads a server's frames; the frames of a text message are joined."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._raw = bytearray()
        self._data = bytearray()

    async def read(self) -> ServerMessage:
        """Return the next message or frame; raises InvalidFrame if it is too large or masked.

        A control frame between the frames of a text message is returned before the message. Raises
        IncompleteReadError at the end.
        """
        while True:
            # Reading buffered frames does not yield to other tasks.
            await asyncio.sleep(0)
            # The limit includes frame headers, since there can be any number of empty frames.
            first, raw, data = await _frame(self._reader, _MESSAGE_BYTES - len(self._raw))
            code = first & _OPCODE
            if code != _TEXT_CODE and not (self._raw and code == _CONTINUATION):
                return ServerMessage(raw, data, is_text=False)
            self._raw += raw
            self._data += data
            if first & _FINAL:
                whole = ServerMessage(bytes(self._raw), bytes(self._data), is_text=True)
                self._raw.clear()
                self._data.clear()
                return whole


def text(data: bytes) -> bytes:
    """Encode a text frame of a server."""
    if len(data) < _LENGTH_16:
        return bytes((_TEXT, len(data))) + data
    if len(data) < _SHORTEST_OF_64:
        return struct.pack("!BBH", _TEXT, _LENGTH_16, len(data)) + data
    return struct.pack("!BBQ", _TEXT, _LENGTH_64, len(data)) + data


async def _frame(
    reader: asyncio.StreamReader, limit: int, *, mask_bytes: int = 0
) -> tuple[int, bytes, bytes]:
    """Read a frame; returns its first byte, its raw bytes, and its payload after any mask."""
    raw = await reader.readexactly(2)
    first, length = raw
    if bool(length & _MASKED) != bool(mask_bytes):
        raise InvalidFrame
    length &= ~_MASKED
    if length >= _LENGTH_16:
        size = await reader.readexactly(2 if length == _LENGTH_16 else 8)
        raw += size
        length = int.from_bytes(size)
    if length > limit:
        raise InvalidFrame
    data = await reader.readexactly(mask_bytes + length)
    return first, raw + data, data


def close(code: int, reason: str) -> bytes:
    """Encode a close frame of a server; a long reason is truncated."""
    payload = reason.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore").encode()
    return bytes((_CLOSE, 2 + len(payload))) + struct.pack("!H", code) + payload
