"""Answers that go on: messages as server-sent events, or over a WebSocket if the client asks for one.

A client that does not read is waited for, and nothing is kept for it but what is being sent; the
connection ends it when it has taken nothing for too long. A stream ends with the client's key, with
the client and with the server. What is told is decided elsewhere.
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
"""The close code of a WebSocket whose client may have missed something; the last id says more."""

_KEY_CODE: Final = 4001
_GONE_CODE: Final = 4004
_RETRY_MS: Final = 1000
_MAX_MISSED_BEATS: Final = 3
_LAST_SECONDS: Final = 1.0
"""How long a client has to take the end of a stream."""
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


def _ended(reason: str, code: int) -> StreamEnd:
    message = StreamItem(type="end", data=encode({"reason": reason}))
    return StreamEnd(message=message, code=code, reason=reason)


DELETED: Final = _ended("deleted", _GONE_CODE)
_KEY_LOST: Final = _ended("not_authenticated", _KEY_CODE)
_STOPPING: Final = StreamEnd(message=None, code=WSCloseCode.GOING_AWAY)


class LiveAnswers:
    """The open streams and WebSockets, which it ends when the server stops."""

    def __init__(self) -> None:
        self._ends: set[Callable[[], None]] = set()
        self._is_over = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[asyncio.Event]:
        """Return what is set when the stream inside has to end."""
        over = asyncio.Event()
        with self.ending(over.set):
            yield over

    @contextlib.contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Have `end` called when what is inside has to end."""
        self._ends.add(end)
        if self._is_over:
            end()
        try:
            yield
        finally:
            self._ends.discard(end)

    def end(self) -> None:
        """End all of it, also what begins from now on."""
        self._is_over = True
        for end in self._ends:
            end()


LIVE: Final[web.AppKey[LiveAnswers]] = web.AppKey("live_answers", LiveAnswers)


type _Line = _Lines | _Socket
"""How items reach a client."""


def resync(last: int | None) -> StreamEnd:
    """Return the end after which a client has to go on behind this event, or begin anew."""
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
    """Answer with all items, to the end of them, of the client, of its key or of the server.

    Who calls is known when the items are asked for: the key may be the first message. A client of a
    WebSocket may have further streams told in it, which `find_more` finds.
    """
    line = _Socket(request) if wants_socket(request) else _Lines(request)
    with request.app[LIVE].opened() as over:
        if isinstance(line, _Socket) and PRINCIPAL not in request:
            ending = await _stream_after_auth(request, line, find_items, find_more, over)
        else:
            items = await find_items()
            await line.open()
            ending = await _stream(request, line, items, find_more, over)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(_LAST_SECONDS):
            await line.end(ending or _STOPPING)
            return line.response
    if request.transport is not None:
        request.transport.abort()
    return line.response


async def _stream_after_auth(
    request: web.Request,
    line: "_Socket",
    find_items: Callable[[], Awaitable[Items]],
    find_more: Finder | None,
    over: asyncio.Event,
) -> StreamEnd | None:
    """Serve a client that shows its key first; what is wrong can only end the WebSocket."""
    await line.open()
    ending = await _first_to_end(_authenticate(request, line), _wait(over))
    if PRINCIPAL not in request:
        return ending
    try:
        items = await find_items()
    except AgentsvcError as exc:
        code = _GONE_CODE if isinstance(exc, NotFound) else WSCloseCode.INTERNAL_ERROR
        return StreamEnd(message=None, code=code, reason=exc.code)
    return await _stream(request, line, items, find_more, over)


async def _authenticate(request: web.Request, line: "_Socket") -> StreamEnd | None:
    """Find out who a client is by its first message."""
    try:
        key = await first_message_key(request, line.first_text())
        caller = await _identify(request, key)
        show_key(request, user_id=caller.user_id)
    except NotAuthenticated:
        return _KEY_LOST
    except TooManyRequests as exc:
        return StreamEnd(message=None, code=WSCloseCode.TRY_AGAIN_LATER, reason=exc.code)
    request[PRINCIPAL] = caller
    return None


async def _identify(request: web.Request, key: str) -> Principal:
    """Return whose key, or whose page's part of a login, a first message has."""
    try:
        return await request.app[KEYRING].identify(key)
    except NotAuthenticated:
        return await request.app[LOGINS].identify(login_token(request, page_part=key))


async def _stream(
    request: web.Request, line: _Line, items: Items, find_more: Finder | None, over: asyncio.Event
) -> StreamEnd | None:
    async with contextlib.aclosing(items):
        gone, lost = asyncio.Event(), asyncio.Event()
        request[ON_LOST] = gone.set
        if request.transport is None:
            gone.set()
        with request.app[OPEN_CONNECTIONS].held(request[PRINCIPAL], lost.set):
            return await _first_to_end(
                _send_items(line, items),
                _listen(line, gone, find_more),
                _wait(lost, _KEY_LOST),
                _wait(over),
            )


async def _listen(line: _Line, gone: asyncio.Event, find_more: Finder | None) -> StreamEnd | None:
    """Heed what a client asks for, until it has gone."""
    async with asyncio.TaskGroup() as group:
        followed = FollowedStreams(group, line.send, find_more)
        await line.listen(gone, followed.handle)
        followed.end()
    return None


class _Lines:
    """Server-sent events."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        headers = {hdrs.CONTENT_TYPE: EVENT_STREAM, "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)

    async def open(self) -> None:
        """Begin the answer."""
        await self.response.prepare(self._request)
        await self.response.write(b"retry: %d\n\n" % _RETRY_MS)

    async def listen(self, gone: asyncio.Event, on_text: Callable[[str], Awaitable[None]]) -> None:
        """Return once the client has gone; `on_text` gets what it says."""
        await gone.wait()

    async def send(self, message: StreamItem) -> None:
        """Send a message, waiting while the client does not take it."""
        await self.response.write(_to_lines(message))

    async def beat(self) -> None:
        """Show that the stream is alive; raises ConnectionError if the client seems not to be."""
        await self.response.write(b":\n\n")

    async def end(self, ending: StreamEnd) -> None:
        """Say why it ends."""
        if ending.message is not None:
            await self.send(ending.message)
        self.response.force_close()
        await self.response.write_eof()


class _Socket:
    """A WebSocket."""

    def __init__(self, request: web.Request) -> None:
        if hdrs.SEC_WEBSOCKET_PROTOCOL in request.headers:
            raise BadRequest("WebSocket subprotocols are not supported here")
        self._request = request
        self._missed = 0
        # Compression costs memory, for clients that offer it: browsers, one connection each.
        self.response = self._socket = web.WebSocketResponse(
            autoping=False, compress=True, timeout=_LAST_SECONDS, max_msg_size=LARGEST_FIRST_BYTES
        )

    async def open(self) -> None:
        await self._socket.prepare(self._request)

    async def first_text(self) -> str:
        """Return what the client says first; raises NotAuthenticated if it is no text."""
        async for said in self._socket:
            if said.type is WSMsgType.PING:
                await self._socket.pong(said.data)
            elif said.type is WSMsgType.TEXT:
                return str(said.data)
            elif said.type is not WSMsgType.PONG:
                break
        raise NotAuthenticated

    async def listen(self, gone: asyncio.Event, on_text: Callable[[str], Awaitable[None]]) -> None:
        async for said in self._socket:
            self._missed = 0
            if said.type is WSMsgType.PING:
                await self._socket.pong(said.data)
            elif said.type is WSMsgType.TEXT:
                await on_text(said.data)

    async def send(self, message: StreamItem) -> None:
        await self._socket.send_frame(_to_text(message), WSMsgType.TEXT)

    async def beat(self) -> None:
        if self._missed >= _MAX_MISSED_BEATS:
            raise ConnectionResetError("the client does not answer")
        self._missed += 1
        await self._socket.ping()

    async def end(self, ending: StreamEnd) -> None:
        await self._socket.close(code=ending.code, message=ending.reason.encode())


async def _send_items(line: _Line, items: Items) -> StreamEnd | None:
    """Send items until one is the end."""
    async for item in items:
        match item:
            case StreamEnd():
                return item
            case StreamItem():
                await line.send(item)
            case None:
                await line.beat()
    return None


async def _wait(over: asyncio.Event, ending: StreamEnd | None = None) -> StreamEnd | None:
    await over.wait()
    return ending


async def _first_to_end(*works: Awaitable[StreamEnd | None]) -> StreamEnd | None:
    """Return what the first that ends returns, and end the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_quietly(work)) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return next((task.result() for task in tasks if task in done and task.result()), None)


async def _quietly(work: Awaitable[StreamEnd | None]) -> StreamEnd | None:
    """Wait for some work; a client that has gone ends it, and is no failure."""
    with contextlib.suppress(ConnectionError):
        return await work
    return None


def _to_lines(message: StreamItem) -> bytes:
    """Return a server-sent event; line breaks in JSON are blanks, and would end its line."""
    lines = [b"event: " + message.type.encode()]
    if message.id is not None:
        lines.append(b"id: %d" % message.id if message.id >= 0 else b"id:")
    lines.append(b"data: " + message.data.translate(_BREAKS))
    return b"\n".join((*lines, b"", b""))


def _to_text(message: StreamItem) -> bytes:
    number = b"" if message.id is None else b',"id":%d' % message.id
    stream = b"" if message.stream is None else b',"stream":' + encode(message.stream)
    head = b'{"type":' + encode(message.type) + stream + number
    return head + b',"data":' + message.data + b"}"
