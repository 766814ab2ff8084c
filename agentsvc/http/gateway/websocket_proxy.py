"""Proxies a client's WebSocket to one in a sandbox, byte by byte.

Client and sandbox negotiate extensions and subprotocols with each other; all frames, including
pings and closes, are forwarded unchanged. Back pressure applies in both directions.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

from aiohttp import hdrs, web
from multidict import CIMultiDict

from agentsvc.base import BadRequest, PortUnavailable
from agentsvc.http.gateway import websocket_frames as frames
from agentsvc.http.gateway.address import connect
from agentsvc.http.gateway.headers import to_client
from agentsvc.http.gateway.http_proxy import CLIENT_GONE, unavailable
from agentsvc.http.gateway.http_responses import (
    HEAD_BYTES,
    InvalidResponse,
    ResponseHead,
    read_head,
)
from agentsvc.http.gateway.request_lifetime import ClientGone, until_stop, with_client
from agentsvc.http.gateway.target import ProxyTarget, head_of
from agentsvc.http.keys import IS_FORWARDED
from agentsvc.http.sdk_versions import EventReader
from agentsvc.http.wire import parse_in_thread

_PART_BYTES: Final = 64 * 1024
_REJECTION_BYTES: Final = 64 * 1024
_DIGITS: Final = len(str(_REJECTION_BYTES))
_NO_HTTP: Final = "The server in the sandbox does not answer in HTTP"
_CLOSE_SECONDS: Final = 5.0
"""Seconds that a client has to read the last frames and close."""


class Client:
    """The client's side of a WebSocket; `open` completes its handshake."""

    def __init__(self, request: web.Request) -> None:
        if request.can_read_body:
            raise BadRequest("A WebSocket handshake has no body")
        self.request = request
        self.proof = frames.accept(request)
        self.reader = asyncio.StreamReader(limit=_PART_BYTES, loop=asyncio.get_running_loop())
        self.response: web.StreamResponse | None = None

    async def open(self, headers: CIMultiDict[str]) -> web.StreamResponse:
        """Complete the handshake; from then on `reader` receives the client's bytes."""
        request = self.request
        response = web.StreamResponse(status=HTTPStatus.SWITCHING_PROTOCOLS, headers=headers)
        response.headers[hdrs.CONNECTION] = "upgrade"
        response.headers[hdrs.UPGRADE] = "websocket"
        response.headers[hdrs.SEC_WEBSOCKET_ACCEPT] = self.proof
        response.force_close()
        request[IS_FORWARDED] = True
        await response.prepare(request)
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        self.reader.set_transport(request.transport)
        # aiohttp's protocol calls only these two methods of a parser.
        request.protocol.set_parser(cast("Any", _ReaderFeed(self.reader)))
        request.protocol.keep_alive(False)
        self.response = response
        return response

    async def send(self, data: bytes) -> None:
        """Send bytes and wait while the write buffer is full."""
        if self.response is None:
            raise ConnectionResetError("there is no WebSocket")
        await self.response.write(data)

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the client to close."""
        with contextlib.suppress(ConnectionError):
            await self.send(frames.close(code, reason))
            await self.finish()

    async def finish(self) -> None:
        """Stop sending, and read until the client closes or a timeout.

        Closing a connection with unread data could discard the last frames sent.
        """
        transport = self.request.transport
        if transport is not None and transport.can_write_eof():
            with contextlib.suppress(OSError):
                transport.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while await self.reader.read(_PART_BYTES):
                    pass


class WebSocketUpstream(NamedTuple):
    """The sandbox's side of a WebSocket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def shake_hands(self, target: ProxyTarget) -> ResponseHead:
        """Send a handshake and return the response; raises PortUnavailable."""
        headers = target.headers.copy()
        headers.popall(hdrs.TE, None)
        headers[hdrs.CONNECTION] = "Upgrade"
        headers[hdrs.UPGRADE] = "websocket"
        try:
            self.writer.write(head_of(hdrs.METH_GET, target, headers.items()))
            await self.writer.drain()
            left = HEAD_BYTES
            while left > 0:
                raw = await self.reader.readuntil(b"\r\n\r\n")
                head = read_head(raw[:-4])
                if not head.is_interim:
                    return head
                left -= len(raw)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as exc:
            raise unavailable(exc) from exc
        except InvalidResponse as exc:
            raise PortUnavailable(_NO_HTTP) from exc
        raise PortUnavailable(_NO_HTTP, detail="too many interim responses")

    async def refusal(self, head: ResponseHead, target: ProxyTarget) -> web.Response:
        """Convert the response of a sandbox that rejected the handshake; reads a short body."""
        headers = to_client(head.headers, target.confines)
        length = head.headers.get(hdrs.CONTENT_LENGTH, "")
        body = b""
        if length.isdecimal() and len(length) <= _DIGITS and int(length) <= _REJECTION_BYTES:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                body = await self.reader.readexactly(int(length))
        return web.Response(status=head.status, reason=head.reason, headers=headers, body=body)


async def join(client: Client, target: ProxyTarget, connect_seconds: float) -> web.StreamResponse:
    """Proxy a WebSocket until either side closes or the server stops.

    If the client's handshake is still pending, it gets the sandbox's response, also a rejection.
    Raises PortUnavailable if the port cannot be reached, or if the sandbox rejects the WebSocket
    after the client's handshake was completed.
    """
    try:
        async with with_client(client.request, grace_seconds=_CLOSE_SECONDS) as life:
            with until_stop(client.request, life):
                async with _connect(target, connect_seconds) as upstream:
                    return await _exchange(client, upstream, target)
    except ClientGone:
        if client.response is not None:
            raise
        return web.Response(status=CLIENT_GONE)


async def _exchange(
    client: Client, upstream: WebSocketUpstream, target: ProxyTarget
) -> web.StreamResponse:
    head = await upstream.shake_hands(target)
    has_agreed = head.status == HTTPStatus.SWITCHING_PROTOCOLS
    if not has_agreed and client.response is None:
        client.request[IS_FORWARDED] = True
        return await upstream.refusal(head, target)
    if not has_agreed:
        raise PortUnavailable("The server in the sandbox rejected this WebSocket")
    response = client.response or await client.open(to_client(head.headers, target.confines))
    await _pump_both(client, upstream, target.reader)
    return response


@contextlib.asynccontextmanager
async def _connect(target: ProxyTarget, time_limit: float) -> AsyncIterator[WebSocketUpstream]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PART_BYTES, loop=loop)
    try:
        transport, protocol = await connect(
            target.address,
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop),
            confirm=target.confirm,
            time_limit=time_limit,
        )
    except (OSError, TimeoutError, ValueError) as exc:
        raise unavailable(exc) from exc
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield WebSocketUpstream(reader, writer)
    finally:
        writer.close()


class _ReaderFeed:
    """Feeds the client's bytes to a reader, in place of aiohttp's HTTP parser."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Feed bytes; the stream ends only with the connection."""
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        """Mark the end of the connection."""
        self._reader.feed_eof()


async def _pump_both(
    client: Client, upstream: WebSocketUpstream, reader: EventReader | None
) -> None:
    """Forward bytes in both directions until one side ends; let the client read the rest."""
    async with asyncio.TaskGroup() as group:
        inward = group.create_task(_pump_in(client, upstream.writer))
        outward = group.create_task(
            _pump_out(upstream.reader, client)
            if reader is None
            else _pump_events(upstream.reader, client, reader)
        )
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        has_sandbox_ended = outward.done()
        inward.cancel()
        outward.cancel()
    if has_sandbox_ended:
        await client.finish()


async def _pump_in(client: Client, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await client.reader.read(_PART_BYTES):
            writer.write(data)
            await writer.drain()


async def _pump_out(reader: asyncio.StreamReader, client: Client) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PART_BYTES):
            await client.send(data)


async def _pump_events(source: asyncio.StreamReader, client: Client, reader: EventReader) -> None:
    """Forward messages, converted for an older client; an invalid or incomplete one ends it."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, frames.InvalidFrame):
        messages = frames.ServerMessages(source)
        while True:
            frame = await messages.read()
            body = await parse_in_thread(frame.data, reader.event) if frame.is_text else None
            if not frame.is_text:
                await client.send(frame.raw)
            elif body is not None:
                await client.send(frame.raw if body == frame.data else frames.text(body))
