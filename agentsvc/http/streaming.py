"""Streaming responses: messages as server-sent events, or over a WebSocket if the client upgrades.

Writing waits for a slow client and buffers only the message being sent; the connection closes a
client that has read nothing for too long. A stream ends when the client disconnects, its key is
revoked or the server stops. The callers of `serve` provide the messages.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from agentsvc.accounts import Principal
from agentsvc.base import AgentsvcError, BadRequest, NotAuthenticated, NotFound, TooManyRequests
from agentsvc.http.following import Finder, FollowedStreams, Items, StreamEnd, StreamItem
from agentsvc.http.keys import KEYRING, LOGINS, ON_LOST, OPEN_CONNECTIONS, PRINCIPAL
from agentsvc.http.middleware.login_cookie import login_token
from agentsvc.http.middleware.websocket_auth import (
    LARGEST_FIRST_BYTES,
    first_message_key,
    wants_socket,
)
from agentsvc.http.server.connections import show_key
from agentsvc.http.wire import encode

EVENT_STREAM: Final = "text/event-stream"

RESYNC_CODE: Final = 4008
"""WebSocket close code for a client that may have missed events; the reason is the last id."""

_KEY_CODE: Final = 4001
_GONE_CODE: Final = 4004
_RETRY_MS: Final = 1000
_MAX_MISSED_BEATS: Final = 3
_LAST_SECONDS: Final = 1.0
"""Seconds that a client has to read the end of a stream."""
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def _ended(reason: str, code: int) -> StreamEnd:
    message = StreamItem(type="end", data=encode({"reason": reason}))
    return StreamEnd(message=message, code=code, reason=reason)


DELETED: Final = _ended("deleted", _GONE_CODE)
_KEY_LOST: Final = _ended("not_authenticated", _KEY_CODE)
_STOPPING: Final = StreamEnd(message=None, code=WSCloseCode.GOING_AWAY)


class OpenStreams:
    """Registry of open streams and WebSockets, which the server ends when it stops."""

    def __init__(self) -> None:
        self._ends: set[Callable[[], None]] = set()
        self._is_stopping = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[asyncio.Event]:
        """Register a stream for the duration of the context; yields the event that ends it."""
        stop = asyncio.Event()
        with self.ending(stop.set):
            yield stop

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if the server stops during the context, or at once if it is stopping."""
        self._ends.add(end)
        if self._is_stopping:
            end()
        try:
            yield
        finally:
            self._ends.discard(end)

    def end(self) -> None:
        """End all open streams, and each later one when it begins."""
        self._is_stopping = True
        for end in self._ends:
            end()


LIVE: Final[web.AppKey[OpenStreams]] = web.AppKey("live_answers", OpenStreams)


type _Sink = _EventStream | _WebSocket
"""Sends the messages of a stream to a client."""


def resync(last: int | None) -> StreamEnd:
    """Return a stream end that tells the client to resume after event `last`, or from the start."""
    shown = None if last is None or last < 0 else last
    return StreamEnd(
        message=StreamItem(type="resync", data=encode({"last_event_id": shown}), id=last),
        code=RESYNC_CODE,
        reason="" if shown is None else str(shown),
    )


async def serve(
    request: web.Request,
    find_items: Callable[[], Awaitable[Items]],
    find_more: Finder | None = None,
) -> web.StreamResponse:
    """Respond with a stream until the items end, client or key is gone, or the server stops.

    `find_items` is called after authentication: the key may be the first WebSocket message.
    `find_more` returns the items of further streams that the client of a WebSocket opens.
    """
    sink = _WebSocket(request) if wants_socket(request) else _EventStream(request)
    with request.app[LIVE].opened() as stop:
        if isinstance(sink, _WebSocket) and PRINCIPAL not in request:
            ending = await _stream_after_auth(request, sink, find_items, find_more, stop)
        else:
            items = await find_items()
            await sink.open()
            ending = await _stream(request, sink, items, find_more, stop)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(_LAST_SECONDS):
            await sink.end(ending or _STOPPING)
            return sink.response
    if request.transport is not None:
        request.transport.abort()
    return sink.response


async def _stream_after_auth(
    request: web.Request,
    sink: "_WebSocket",
    find_items: Callable[[], Awaitable[Items]],
    find_more: Finder | None,
    stop: asyncio.Event,
) -> StreamEnd | None:
    """Serve a client that sends its key first; errors are sent as close codes of the WebSocket."""
    await sink.open()
    ending = await _first_to_end(_authenticate(request, sink), _wait(stop))
    if PRINCIPAL not in request:
        return ending
    try:
        items = await find_items()
    except AgentsvcError as exc:
        code = _GONE_CODE if isinstance(exc, NotFound) else WSCloseCode.INTERNAL_ERROR
        return StreamEnd(message=None, code=code, reason=exc.code)
    return await _stream(request, sink, items, find_more, stop)


async def _authenticate(request: web.Request, sink: "_WebSocket") -> StreamEnd | None:
    """Authenticate a client by its first message; returns the stream end if that fails."""
    try:
        key = await first_message_key(request, sink.first_text())
        caller = await _identify(request, key)
        show_key(request, user_id=caller.user_id)
    except NotAuthenticated:
        return _KEY_LOST
    except TooManyRequests as exc:
        return StreamEnd(message=None, code=WSCloseCode.TRY_AGAIN_LATER, reason=exc.code)
    request[PRINCIPAL] = caller
    return None


async def _identify(request: web.Request, key: str) -> Principal:
    """Return the user of the API key or page token in a first message."""
    try:
        return await request.app[KEYRING].identify(key)
    except NotAuthenticated:
        return await request.app[LOGINS].identify(login_token(request, page_part=key))


async def _stream(
    request: web.Request, sink: _Sink, items: Items, find_more: Finder | None, stop: asyncio.Event
) -> StreamEnd | None:
    async with contextlib.aclosing(items):
        gone, revoked = asyncio.Event(), asyncio.Event()
        request[ON_LOST] = gone.set
        if request.transport is None:
            gone.set()
        with request.app[OPEN_CONNECTIONS].held(request[PRINCIPAL], revoked.set):
            return await _first_to_end(
                _send_items(sink, items),
                _listen(sink, gone, find_more),
                _wait(revoked, _KEY_LOST),
                _wait(stop),
            )


async def _listen(sink: _Sink, gone: asyncio.Event, find_more: Finder | None) -> StreamEnd | None:
    """Handle the messages of a client until it disconnects."""
    async with asyncio.TaskGroup() as group:
        followed = FollowedStreams(group, sink.send, find_more)
        await sink.listen(gone, followed.handle)
        followed.end()
    return None


class _EventStream:
    """Sends a stream as server-sent events."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        headers = {hdrs.CONTENT_TYPE: EVENT_STREAM, "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)

    async def open(self) -> None:
        """Send the head of the response and the reconnection delay."""
        await self.response.prepare(self._request)
        await self.response.write(b"retry: %d\n\n" % _RETRY_MS)

    async def listen(self, gone: asyncio.Event, on_text: Callable[[str], Awaitable[None]]) -> None:
        """Wait until the client disconnects; a WebSocket calls `on_text` with each message."""
        await gone.wait()

    async def send(self, message: StreamItem) -> None:
        """Send a message; waits while the client does not read."""
        await self.response.write(_to_event(message))

    async def beat(self) -> None:
        """Send a heartbeat; raises ConnectionError if the client does not respond."""
        await self.response.write(b":\n\n")

    async def end(self, ending: StreamEnd) -> None:
        """Send the reason for the end and close the response."""
        if ending.message is not None:
            await self.send(ending.message)
        self.response.force_close()
        await self.response.write_eof()


class _WebSocket:
    """Sends a stream over a WebSocket; its methods have the same contract."""

    def __init__(self, request: web.Request) -> None:
        if hdrs.SEC_WEBSOCKET_PROTOCOL in request.headers:
            raise BadRequest("WebSocket subprotocols are not supported here")
        self._request = request
        self._missed = 0
        # Compression costs memory, but only browsers offer it, with one connection each.
        self.response = self._socket = web.WebSocketResponse(
            autoping=False, compress=True, timeout=_LAST_SECONDS, max_msg_size=LARGEST_FIRST_BYTES
        )

    async def open(self) -> None:
        await self._socket.prepare(self._request)

    async def first_text(self) -> str:
        """Return the first message; raises NotAuthenticated if it is no text message."""
        async for message in self._socket:
            if message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                return str(message.data)
            elif message.type is not WSMsgType.PONG:
                break
        raise NotAuthenticated

    async def listen(self, gone: asyncio.Event, on_text: Callable[[str], Awaitable[None]]) -> None:
        async for message in self._socket:
            self._missed = 0
            if message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                await on_text(message.data)

    async def send(self, message: StreamItem) -> None:
        await self._socket.send_frame(_to_json(message), WSMsgType.TEXT)

    async def beat(self) -> None:
        if self._missed >= _MAX_MISSED_BEATS:
            raise ConnectionResetError("the client does not answer")
        self._missed += 1
        await self._socket.ping()

    async def end(self, ending: StreamEnd) -> None:
        await self._socket.close(code=ending.code, message=ending.reason.encode())


async def _send_items(sink: _Sink, items: Items) -> StreamEnd | None:
    """Send items; returns the StreamEnd if one of them is, or None when they are exhausted."""
    async for item in items:
        match item:
            case StreamEnd():
                return item
            case StreamItem():
                await sink.send(item)
            case None:
                await sink.beat()
    return None


async def _wait(stop: asyncio.Event, ending: StreamEnd | None = None) -> StreamEnd | None:
    await stop.wait()
    return ending


async def _first_to_end(*works: Awaitable[StreamEnd | None]) -> StreamEnd | None:
    """Return the result of the first awaitable that finishes, and cancel the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_until_disconnect(work)) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return next((task.result() for task in tasks if task in done and task.result()), None)


async def _until_disconnect(work: Awaitable[StreamEnd | None]) -> StreamEnd | None:
    """Await `work`; a disconnected client ends it without an error."""
    with contextlib.suppress(ConnectionError):
        return await work
    return None


def _to_event(message: StreamItem) -> bytes:
    """Encode a server-sent event; replaces line breaks in its JSON, which would end the field."""
    lines = [b"event: " + message.type.encode()]
    if message.id is not None:
        lines.append(b"id: %d" % message.id if message.id >= 0 else b"id:")
    lines.append(b"data: " + message.data.translate(_BREAKS))
    return b"\n".join((*lines, b"", b""))


def _to_json(message: StreamItem) -> bytes:
    number = b"" if message.id is None else b',"id":%d' % message.id
    stream = b"" if message.stream is None else b',"stream":' + encode(message.stream)
    head = b'{"type":' + encode(message.type) + stream + number
    return head + b',"data":' + message.data + b"}"
