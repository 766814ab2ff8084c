"""The event socket, `/socket.io`: authentication, connections and received actions.

`listeners` sends the events. Every request needs an API key or a browser login: without either it
is answered 401, with a wrong key the connection is refused within the protocol. Only this module
and `packets` import python-socketio, and both are imported when the first client connects.
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
"""Maximum number of connections of a user; all connections with a wrong key count as one user."""

TIDY_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10.0
"""Time after which a connection that has not joined a conversation is closed."""

_DRAIN_SECONDS: Final = 3.0
_SHUTDOWN_DRAIN_SECONDS: Final = 0.5
_WRONG_KEY: Final = "invalid_session_api_key"
_UNKNOWN_PACKET: Final = "Unknown receive error"
"""Log message of python-engineio, with a traceback, for a packet of an unknown type."""


class _Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The user who opened a connection; `principal` is None for a wrong key."""

    principal: Principal | None
    connected_at: float

    @property
    def user_id(self) -> str | None:
        """The id of the user, None for a wrong key."""
        return None if self.principal is None else self.principal.user_id


_CALLER: Final[web.RequestKey[_Caller]] = web.RequestKey("socket_caller", _Caller)


async def _identify(request: web.Request) -> _Caller:
    """Return the caller of a request; raises NotAuthenticated only if it has no credentials."""
    in_query = (key.strip() for key in query_keys(request))
    shown = [*keys_of(request), *(key for key in in_query if key)]
    for key in shown:
        with contextlib.suppress(errors.NotAuthenticated):
            return _known(request, await request.app[keys.KEYRING].identify(key))
    if token := login_token(request):
        return _known(request, await request.app[keys.LOGINS].identify(token))
    if not shown:
        raise errors.NotAuthenticated
    return _Caller(principal=None, connected_at=monotonic())


class Sockets:
    """The event socket server with all its connections.

    A client is disconnected if it does not finish a POST, or does not read, within
    `request_seconds`. A background loop closes unused connections.
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
        self._handle_message = self._server.eio.handlers["message"]
        self._server.eio.on("message", self._handle_if_open)
        self._server.on("connect", self._connect)
        self._server.on("disconnect", self._disconnect)
        self._server.on("oh_user_action", self._enqueue)
        self._server.on("oh_action", self._enqueue)
        self._supervisor.loop("event sockets", self.tidy, every_seconds=TIDY_SECONDS)

    # Requests

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a request of either transport, polling or WebSocket."""
        request[_CALLER] = caller = await _identify(request)
        query = parse_qs(request.query_string)
        if "j" in query:
            raise errors.BadRequest("JSONP is not supported")
        eio_sid = query["sid"][0] if "sid" in query else None
        if eio_sid is None and request.method == hdrs.METH_POST:
            raise errors.BadRequest("The session is missing in the query")
        if eio_sid is None:
            self._check_limit(caller)
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
            raise ConnectionResetError("the client violates the protocol") from exc
        finally:
            if eio_sid is not None:
                self._streams.pop(eio_sid, None)

    async def _answer(self, request: "web.Request | _ReadRequest") -> web.StreamResponse:
        response = await self._server.handle_request(request)
        if not isinstance(response, web.StreamResponse):
            raise errors.BadRequest("The request is neither a poll nor a WebSocket")
        if isinstance(response, web.Response) and response.status == errors.BadRequest.status:
            # The protocol does not define this response; clients check only the status.
            raise errors.BadRequest(msgspec.json.decode(response.text or '""', type=str))
        return response

    def _check_session(self, eio_sid: str, caller: _Caller) -> None:
        opened = self._callers().get(eio_sid)
        socket = self._server.eio.sockets.get(eio_sid)
        if opened is None or socket is None or socket.closed:
            raise errors.BadRequest("The session is closed or unknown: connect again")
        if opened.user_id != caller.user_id:
            raise errors.NotAuthenticated

    def _check_limit(self, caller: _Caller) -> None:
        known = sum(other.user_id == caller.user_id for other in self._callers().values())
        if known >= MAX_OF_USER:
            raise errors.TooManyRequests("Too many connections to the event socket")

    def _callers(self) -> dict[str, _Caller]:
        opened = self._server.environ.items()
        return {eio_sid: environ["aiohttp.request"][_CALLER] for eio_sid, environ in opened}

    def _opened_by(self, request: web.Request) -> list[str]:
        opened = self._server.environ.items()
        return [eio_sid for eio_sid, environ in opened if environ["aiohttp.request"] is request]

    # Events of a connection

    async def _handle_if_open(self, eio_sid: str, message: Any) -> None:
        """Handle a message, unless the client has disconnected.

        For a disconnected client python-socketio (5.18) would fail and keep state about it.
        """
        if eio_sid in self._server.environ:
            await self._handle_message(eio_sid, message)

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
                # A polling client is done with the response; a WebSocket client closes by itself.
                self._end_soon(eio_sid)
            raise Refused(exc.message) from exc
        queue = ClientQueue(self._server, sid, self._end, send_seconds=self._send_seconds)
        listener = Listener(request, principal, queue, view, latest_event_id)
        # Disconnect the client when its key becomes invalid.
        hold = request.app[keys.OPEN_CONNECTIONS].held(
            principal, lambda: self._supervisor.spawn(f"socket {sid} revoked", queue.disconnect)
        )
        listener.resources.enter_context(hold)
        self._listeners[sid] = listener
        self._followers[listener.conversation_id] += 1
        self._supervisor.spawn(f"socket {sid} events", listener.stream)
        self._supervisor.spawn(f"socket {sid} actions", listener.process_actions)
        if principal.may_run:
            self._supervisor.spawn(f"socket {sid} resume", listener.resume)

    async def _disconnect(self, sid: str, reason: str) -> None:
        listener = self._forget(sid)
        if listener is not None and reason == self._server.reason.CLIENT_DISCONNECT:
            # The client may be waiting for the response to a poll.
            await listener.queue.close()

    async def _enqueue(self, sid: str, *args: msgspec.Raw) -> None:
        listener = self._listeners.get(sid)
        if listener is None or listener.enqueue(bytes(args[0]) if args else b"null"):
            return
        # The queue is full: accept no more actions of the client, and disconnect it.
        self._forget(sid)
        self._supervisor.spawn(f"socket {sid} overflow", listener.queue.disconnect_with_error)

    def _forget(self, sid: str) -> Listener | None:
        listener = self._listeners.pop(sid, None)
        if listener is not None:
            listener.close()
            # `+=` drops the entries that are zero.
            self._followers.subtract([listener.conversation_id])
            self._followers += Counter()
        return listener

    # Closing

    async def tidy(self, *, at: float | None = None) -> None:
        """Close connections that have not joined a conversation in time."""
        moment = monotonic() if at is None else at
        following = {listener.queue.eio_sid for listener in self._listeners.values()}
        for eio_sid, caller in self._callers().items():
            if eio_sid not in following and caller.connected_at + _CONNECT_SECONDS < moment:
                self._end_soon(eio_sid)

    async def close(self) -> None:
        """Close all connections; called before the server stops."""
        async with asyncio.TaskGroup() as group:
            for eio_sid in self._callers():
                group.create_task(self._end(eio_sid, drain_seconds=_SHUTDOWN_DRAIN_SECONDS))
        await self._server.shutdown()

    def _end_soon(self, eio_sid: str) -> None:
        self._supervisor.spawn(f"connection {eio_sid} close", lambda: self._end(eio_sid))

    async def _end(self, eio_sid: str, *, drain_seconds: float = _DRAIN_SECONDS) -> None:
        stream = self._find_stream(eio_sid)
        socket = self._server.eio.sockets.get(eio_sid)
        if socket is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                # After closing, a polling client gets no more packets.
                await socket.queue.join()
        await socket.close(wait=False, abort=stream is not None)
        if stream is None or stream.transport is None:
            return
        # None makes the writer task close the WebSocket; it cannot if the client does not read.
        socket.queue.put_nowait(None)
        asyncio.get_running_loop().call_later(drain_seconds, stream.transport.abort)

    def _find_stream(self, eio_sid: str) -> web.Request | None:
        """Return the request of a WebSocket, or None for a polling client."""
        if eio_sid in self._streams:
            return self._streams[eio_sid]
        environ = self._server.environ.get(eio_sid)
        opened: web.Request | None = environ["aiohttp.request"] if environ else None
        return opened if opened is not None and _is_stream(opened) else None


class _ReadRequest:
    """A request with its body read, with the interface that python-engineio expects."""

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
        """Return the body, at most `size` bytes of it."""
        return self._body[:size]


def _known(request: web.Request, principal: Principal) -> _Caller:
    show_key(request, user_id=principal.user_id)
    return _Caller(principal=principal, connected_at=monotonic())


def _is_stream(request: web.Request) -> bool:
    asked = (request.query.get("transport", ""), request.headers.get(hdrs.UPGRADE, ""))
    return any("websocket" in one.lower() for one in asked)


def _make_server(max_bytes: int) -> Any:
    # Most messages that the package logs are errors of clients or contents of packets.
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
    return record.exc_info is not None and record.msg != _UNKNOWN_PACKET
