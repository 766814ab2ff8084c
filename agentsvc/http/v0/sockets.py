"""The event socket, `/socket.io`: connections, and what is said on them. What is told is elsewhere.

Every request of a connection shows a key, or comes from a page of this server in a browser that is
logged in: one with neither is answered 401, one with a wrong key is told so in the words of the
protocol. The package that speaks the protocol is imported here and
in `packets` only, and these only when the first client comes.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import socketio
from aiohttp import hdrs, web
from socketio.exceptions import ConnectionRefusedError as Refused

from agentsvc.accounts import Principal
from agentsvc.base import errors, monotonic
from agentsvc.http import keys
from agentsvc.http.middleware.authentication import keys_of
from agentsvc.http.middleware.login_cookie import login_token
from agentsvc.http.routes import query_keys
from agentsvc.http.server.connections import show_key
from agentsvc.http.v0.conversations import find_named
from agentsvc.http.v0.listeners import ClientQueue, Listener
from agentsvc.http.v0.packets import Packet, check_payload
from agentsvc.http.v0.socket_opener import FOLLOWERS, read_subscription

log = logging.getLogger(__name__)

MAX_OF_USER: Final = 200
"""How many connections one user may have; those with a wrong key are together one user's."""

TIDY_SECONDS: Final = 5.0
_KNOCK_SECONDS: Final = 10.0
"""How long a connection may go without following a conversation."""

_FAREWELL_SECONDS: Final = 3.0
_SHORT_FAREWELL_SECONDS: Final = 0.5
_WRONG_KEY: Final = "invalid_session_api_key"
_NO_PACKET: Final = "Unknown receive error"
"""What the package logs, with a traceback, when a client sends a packet of no known type."""


class _Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who opened a connection; nobody with a wrong key."""

    principal: Principal | None
    came_at: float

    @property
    def user_id(self) -> str | None:
        """Whose connection it is."""
        return None if self.principal is None else self.principal.user_id


_CALLER: Final[web.RequestKey[_Caller]] = web.RequestKey("socket_caller", _Caller)


async def _identify(request: web.Request) -> _Caller:
    """Return who sends a request; raises NotAuthenticated where it has no key at all."""
    in_query = (key.strip() for key in query_keys(request))
    shown = [*keys_of(request), *(key for key in in_query if key)]
    for key in shown:
        with contextlib.suppress(errors.NotAuthenticated):
            return _known(request, await request.app[keys.KEYRING].identify(key))
    if token := login_token(request):
        return _known(request, await request.app[keys.LOGINS].identify(token))
    if not shown:
        raise errors.NotAuthenticated
    return _Caller(principal=None, came_at=monotonic())


class Sockets:
    """Every connection to the event socket of a server.

    A client that sends or reads nothing for as long as a request may take, where it should, is let
    go of. It is kept tidy from the beginning.
    """

    def __init__(self, app: web.Application) -> None:
        config = app[keys.CONFIG].server
        self._app = app
        self._followers = app[FOLLOWERS]
        self._supervisor = app[keys.SUPERVISOR]
        self._send_seconds = config.request_seconds
        self._listeners: dict[str, Listener] = {}
        self._streams: dict[str, web.Request] = {}
        self._server = _make_server(config.max_body_bytes)
        self._hear = self._server.eio.handlers["message"]
        self._server.eio.on("message", self._hear_known)
        self._server.on("connect", self._connect)
        self._server.on("disconnect", self._disconnect)
        self._server.on("oh_user_action", self._take)
        self._server.on("oh_action", self._take)
        self._supervisor.loop("event sockets", self.tidy, every_seconds=TIDY_SECONDS)

    # Requests

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of either transport."""
        request[_CALLER] = caller = await _identify(request)
        query = parse_qs(request.query_string)
        if "j" in query:
            raise errors.BadRequest("JSONP is not supported")
        eio_sid = query["sid"][0] if "sid" in query else None
        if eio_sid is None and request.method == hdrs.METH_POST:
            raise errors.BadRequest("The session is missing in the query")
        if eio_sid is None:
            self._make_room(caller)
        else:
            self._check_session(eio_sid, caller)
        if request.method == hdrs.METH_POST:
            return await self._handle_post(request)
        if _is_stream(request):
            return await self._handle_stream(request, eio_sid)
        return await self._answer(request)

    async def _handle_post(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._send_seconds):
                body = await request.read()
        except TimeoutError as exc:
            raise errors.TimedOut("The request took too long") from exc
        check_payload(body)
        return await self._answer(_ReadRequest(request, body))

    async def _handle_stream(self, request: web.Request, eio_sid: str | None) -> web.StreamResponse:
        if eio_sid is not None:
            self._streams[eio_sid] = request
        try:
            return await self._answer(request)
        except (ValueError, OSError, RecursionError) as exc:
            for ended in [eio_sid] if eio_sid else self._opened_by(request):
                self._end_soon(ended)
            raise ConnectionResetError("this is not the protocol") from exc
        finally:
            if eio_sid is not None:
                self._streams.pop(eio_sid, None)

    async def _answer(self, request: "web.Request | _ReadRequest") -> web.StreamResponse:
        response = await self._server.handle_request(request)
        if not isinstance(response, web.StreamResponse):
            raise errors.BadRequest("This is neither a poll nor a WebSocket")
        if isinstance(response, web.Response) and response.status == errors.BadRequest.status:
            # The protocol has no form for this; clients go by the status.
            raise errors.BadRequest(msgspec.json.decode(response.text or '""', type=str))
        return response

    def _check_session(self, eio_sid: str, caller: _Caller) -> None:
        opened = self._callers().get(eio_sid)
        socket = self._server.eio.sockets.get(eio_sid)
        if opened is None or socket is None or socket.closed:
            raise errors.BadRequest("The session is over or was never begun")
        if opened.user_id != caller.user_id:
            raise errors.NotAuthenticated

    def _make_room(self, caller: _Caller) -> None:
        known = sum(other.user_id == caller.user_id for other in self._callers().values())
        if known >= MAX_OF_USER:
            raise errors.TooManyRequests("Too many connections to the event socket")

    def _callers(self) -> dict[str, _Caller]:
        opened = self._server.environ.items()
        return {eio_sid: environ["aiohttp.request"][_CALLER] for eio_sid, environ in opened}

    def _opened_by(self, request: web.Request) -> list[str]:
        opened = self._server.environ.items()
        return [eio_sid for eio_sid, environ in opened if environ["aiohttp.request"] is request]

    # What happens on a connection

    async def _hear_known(self, eio_sid: str, said: Any) -> None:
        """Hear a client, unless it has said goodbye: python-socketio (5.18) would fail, and remember it."""
        if eio_sid in self._server.environ:
            await self._hear(eio_sid, said)

    async def _connect(self, sid: str, environ: dict[str, Any], _auth: Any = None) -> None:
        request: web.Request = environ["aiohttp.request"]
        caller = request[_CALLER]
        try:
            if (principal := caller.principal) is None:
                raise errors.NotAuthenticated(_WRONG_KEY)
            name, latest_event_id = read_subscription(request)
            view = await find_named(self._app[keys.CONVERSATIONS], principal.user_id, name)
            if view is None:
                raise errors.NotFound(f"Conversation {name} not found")
        except errors.AgentsvcError as exc:
            eio_sid = self._server.manager.eio_sid_from_sid(sid, "/")
            if self._find_stream(eio_sid) is None:
                # It leaves when its poll is answered; a WebSocket is its own to close.
                self._end_soon(eio_sid)
            raise Refused(exc.message) from exc
        line = ClientQueue(self._server, sid, self._end, send_seconds=self._send_seconds)
        listener = Listener(request, principal, line, view, latest_event_id)
        # It ends when the key of its caller has lost its worth.
        hold = request.app[keys.OPEN_CONNECTIONS].held(
            principal, lambda: self._supervisor.spawn(f"socket {sid} ends", line.hang_up)
        )
        listener.holds.enter_context(hold)
        self._listeners[sid] = listener
        self._followers[listener.conversation_id] += 1
        self._supervisor.spawn(f"socket {sid} tells", listener.stream)
        self._supervisor.spawn(f"socket {sid} obeys", listener.process_actions)
        if principal.may_run:
            self._supervisor.spawn(f"socket {sid} wakes", listener.resume)

    async def _disconnect(self, sid: str, reason: str) -> None:
        listener = self._forget(sid)
        if listener is not None and reason == self._server.reason.CLIENT_DISCONNECT:
            # A poll of its own may be waiting for an answer, and the client for that.
            await listener.line.close()

    async def _take(self, sid: str, *said: msgspec.Raw) -> None:
        listener = self._listeners.get(sid)
        if listener is None or listener.enqueue(bytes(said[0]) if said else b"null"):
            return
        # Nothing more of it is taken, and what it is told is its last.
        self._forget(sid)
        self._supervisor.spawn(f"socket {sid} floods", listener.line.turn_away)

    def _forget(self, sid: str) -> Listener | None:
        listener = self._listeners.pop(sid, None)
        if listener is not None:
            listener.close()
            # A count that is zero is no count.
            self._followers.subtract([listener.conversation_id])
            self._followers += Counter()
        return listener

    # Ends

    async def tidy(self, *, at: float | None = None) -> None:
        """Let go of connections that follow nothing."""
        moment = monotonic() if at is None else at
        following = {listener.line.eio_sid for listener in self._listeners.values()}
        for eio_sid, caller in self._callers().items():
            if eio_sid not in following and caller.came_at + _KNOCK_SECONDS < moment:
                self._end_soon(eio_sid)

    async def close(self) -> None:
        """Let go of every connection; called before the server stops."""
        async with asyncio.TaskGroup() as group:
            for eio_sid in self._callers():
                group.create_task(self._end(eio_sid, farewell_seconds=_SHORT_FAREWELL_SECONDS))
        await self._server.shutdown()

    def _end_soon(self, eio_sid: str) -> None:
        self._supervisor.spawn(f"connection {eio_sid} ends", lambda: self._end(eio_sid))

    async def _end(self, eio_sid: str, *, farewell_seconds: float = _FAREWELL_SECONDS) -> None:
        stream = self._find_stream(eio_sid)
        socket = self._server.eio.sockets.get(eio_sid)
        if socket is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(farewell_seconds):
                # Once it is closed, a client that polls is told no more.
                await socket.queue.join()
        await socket.close(wait=False, abort=stream is not None)
        if stream is None or stream.transport is None:
            return
        # What writes to a WebSocket closes it then, unless the client does not read.
        socket.queue.put_nowait(None)
        asyncio.get_running_loop().call_later(farewell_seconds, stream.transport.abort)

    def _find_stream(self, eio_sid: str) -> web.Request | None:
        """Return the request behind a WebSocket, or None for a client that polls."""
        if eio_sid in self._streams:
            return self._streams[eio_sid]
        environ = self._server.environ.get(eio_sid)
        opened: web.Request | None = environ["aiohttp.request"] if environ else None
        return opened if opened is not None and _is_stream(opened) else None


class _ReadRequest:
    """A request whose body has been read, in the form the protocol's package reads it."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method = request.method
        self.path = request.path
        self.path_qs = request.path_qs
        self.query_string = request.query_string
        self.version = request.version
        self.headers = request.headers.copy()
        self.headers[hdrs.CONTENT_LENGTH] = str(len(body))
        self.content = self
        self._body = body

    async def read(self, size: int) -> bytes:
        """Return the body, which has this size."""
        return self._body[:size]


def _known(request: web.Request, principal: Principal) -> _Caller:
    show_key(request, user_id=principal.user_id)
    return _Caller(principal=principal, came_at=monotonic())


def _is_stream(request: web.Request) -> bool:
    asked = (request.query.get("transport", ""), request.headers.get(hdrs.UPGRADE, ""))
    return any("websocket" in one.lower() for one in asked)


def _make_server(max_bytes: int) -> Any:
    # Most of what the package logs is what clients do wrong, or what is in their packets.
    only_bugs = logging.getLogger(f"{__name__}.protocol")
    only_bugs.setLevel(logging.ERROR)
    only_bugs.addFilter(_is_bug)
    return socketio.AsyncServer(
        async_mode="aiohttp",
        async_handlers=False,
        cors_allowed_origins=[],
        http_compression=False,
        max_http_buffer_size=max_bytes,
        serializer=Packet,
        logger=only_bugs,
        engineio_logger=only_bugs,
    )


def _is_bug(record: logging.LogRecord) -> bool:
    return record.exc_info is not None and record.msg != _NO_PACKET
