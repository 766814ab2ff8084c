"""One client of the event socket: sends it events, and forwards its actions to the agent.

Events are read from the store at the pace at which the client reads; a client that does not read is
disconnected. Actions are queued and forwarded one after the other; a client whose queue overflows
is disconnected, too.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from agentsvc.accounts import Principal, of_caller
from agentsvc.base import Notice, Overflow, Subject, errors
from agentsvc.conversations import ConversationView
from agentsvc.domain import ExecutionStatus, StartStatus
from agentsvc.http import keys
from agentsvc.http.routes import Scope, check_scope
from agentsvc.http.urls import address_of
from agentsvc.http.v0.conversations import ConversationStatus, status_of
from agentsvc.http.v0.event_types import AgentState
from agentsvc.http.v0.frames import (
    READY,
    error_frame,
    last_state,
    live,
    replay,
    state_frame,
    status_frame,
    title_frame,
)
from agentsvc.http.v0.packets import event_packet
from agentsvc.http.v0.transcripts import TRANSCRIPTS
from agentsvc.http.v0.user_actions import ACTION_BODY, ActionBody, perform, to_user_action

log = logging.getLogger(__name__)

_DONE: Final = 200
_ACTION: Final = "SOCKET /socket.io"
_BATCH_BYTES: Final = 64 * 1024
"""Bytes to send before waiting for the client to read them."""
_FRAME_BYTES: Final = _BATCH_BYTES // 14
"""Minimum size that counts for a frame to a polling client: Python clients disconnect at a response
with more than 16 packets."""
MAX_ACTIONS: Final = 16
"""Maximum number of queued actions of one client."""


class ClientQueue:
    """The send queue of one client; holds at most two batches that the client has not read."""

    def __init__(
        self,
        server: Any,
        sid: str,
        end: Callable[[str], Awaitable[None]],
        *,
        send_seconds: float,
    ) -> None:
        self.eio_sid: str = server.manager.eio_sid_from_sid(sid, "/")
        self._server = server
        self._sid = sid
        self._end = end
        self._send_seconds = send_seconds
        self._unread = 0

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits for a slow client. Raises ConnectionError if it does not read."""
        socket = self._server.eio.sockets.get(self.eio_sid)
        if socket is None or socket.closed:
            raise ConnectionResetError("the client has disconnected")
        if self._unread >= _BATCH_BYTES:
            try:
                async with asyncio.timeout(self._send_seconds):
                    await socket.queue.join()
            except TimeoutError as exc:
                raise ConnectionAbortedError("the client does not read") from exc
            self._unread = 0
        text = event_packet(frame)
        self._unread += len(text) if socket.upgraded else max(len(text), _FRAME_BYTES)
        await self._server.eio.send(self.eio_sid, text)

    async def close(self) -> None:
        """Close the connection of a client that has disconnected from the namespace."""
        socket = self._server.eio.sockets.get(self.eio_sid)
        if socket is not None:
            await socket.close(wait=False)

    async def disconnect_with_error(self) -> None:
        """Send the error for too many actions and disconnect the client."""
        with contextlib.suppress(ConnectionError):
            await self.send(error_frame("Too many actions at once"))
        await self.disconnect()

    async def disconnect(self) -> None:
        """Disconnect the client for good; frames that were sent still arrive."""
        await self._server.disconnect(self._sid)
        await self._end(self.eio_sid)

    async def drop(self) -> None:
        """Close the connection; the client may reconnect."""
        await self._end(self.eio_sid)


class Listener:
    """A client of the event socket that is connected to one conversation."""

    def __init__(
        self,
        request: web.Request,
        caller: Principal,
        queue: ClientQueue,
        view: ConversationView,
        latest_event_id: int,
    ) -> None:
        conversation = view.conversation
        self.conversation_id = conversation.id
        self.resources = contextlib.ExitStack()
        """Contexts that `close` exits."""
        self._user_id = conversation.user_id
        self._created_at = conversation.created_at
        self._request = request
        self._app = request.app
        self._caller = caller
        self.queue = queue
        self._latest_event_id = latest_event_id
        self._max_bytes = self._app[keys.CONFIG].server.max_body_bytes
        self._sent = _SentFrames(status=READY, title=title_frame(view))
        self._position = 0
        self._has_run = False
        self._state: str | None = None
        """The last agent state in the history."""
        self._sent_state: str | None = None
        """The last agent state that was sent to the client."""
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inbox_bytes = 0
        self._news = self._app[keys.EVENT_BUS].subscribe(self._user_id, self._is_wanted)

    async def stream(self) -> None:
        """Send the stored events, then new ones, until the listener is closed."""
        try:
            await self._stream_all()
        except Exception as exc:
            # After any error no more events are sent; the client has to reconnect to get them.
            await self.queue.drop()
            if not isinstance(exc, ConnectionError):
                raise
            log.info(
                "event socket dropped",
                extra={"conversation_id": self.conversation_id, "reason": str(exc)},
            )
        finally:
            self.close()

    def enqueue(self, raw: bytes) -> bool:
        """Queue an action of the client without waiting; return False if the queue is full."""
        is_full = self._inbox.qsize() >= MAX_ACTIONS
        if is_full or (self._inbox_bytes and self._inbox_bytes + len(raw) > self._max_bytes):
            return False
        self._inbox_bytes += len(raw)
        self._inbox.put_nowait(raw)
        return True

    async def process_actions(self) -> None:
        """Forward the queued actions one after the other, until the listener is closed."""
        while (raw := await self._inbox.get()) is not None:
            self._inbox_bytes -= len(raw)
            try:
                await self._forward(raw)
            except errors.AgentsvcError as exc:
                await self._audit(exc.status)
                await self._send_error(exc.message)
                if isinstance(exc, errors.NotAuthenticated):
                    await self.queue.disconnect()
            else:
                await self._audit(_DONE)

    async def _forward(self, raw: bytes) -> None:
        await self._check_key()
        await perform(
            self._app[keys.PENDING],
            self._user_id,
            self.conversation_id,
            to_user_action(_to_body(raw)),
        )

    async def resume(self) -> None:
        """Resume a stopped conversation, as clients expect when they connect."""
        view = await self._find()
        sandbox = view.sandbox if view else None
        if view is None or sandbox is None or not view.conversation.is_ready:
            return
        if status_of(view) is not ConversationStatus.STOPPED:
            return
        try:
            await self._app[keys.CONVERSATIONS].resume(self._user_id, sandbox.id)
        except errors.AgentsvcError as exc:
            await self._send_error(exc.message)

    def close(self) -> None:
        """Stop streaming and processing; idempotent."""
        self.resources.close()
        self._news.close()
        self._inbox.put_nowait(None)

    # Inside

    async def _check_key(self) -> None:
        """Raise NotAuthenticated if the key is no longer valid, NotAllowed if it is read-only."""
        now = await self._app[keys.OPEN_CONNECTIONS].find(self._caller)
        if now is None:
            raise errors.NotAuthenticated
        check_scope(Scope.RUN, now)

    async def _audit(self, status: int) -> None:
        """Write an action to the audit log, with the status that it would have over HTTP."""
        entry = of_caller(
            self._caller,
            _ACTION,
            f"conversation_id={self.conversation_id}",
            status=status,
            address=address_of(self._request),
            request_id=self._request[keys.REQUEST_ID],
        )
        await self._app[keys.AUDIT].note(entry)

    def _is_wanted(self, news: Notice) -> bool:
        if news.subject is Subject.DELTA:
            return False
        return news.subject is Subject.SANDBOX or news.conversation_id == self.conversation_id

    async def _stream_all(self) -> None:
        await self._replay()
        while await self._send_status():
            if not await self._wait_for_news():
                return
            await self._send_events()
        await self.queue.disconnect()

    async def _wait_for_news(self) -> bool:
        """Wait until there may be news to send; return False once the subscription is closed."""
        try:
            return bool(await self._news.take())
        except Overflow:
            return True

    async def _replay(self) -> None:
        history = await self._app[TRANSCRIPTS].read(self.conversation_id, self._created_at)
        self._position = len(history)
        self._state = last_state(history)
        self._sent_state = last_state(history, self._latest_event_id)
        for event in replay(history[: self._position], self._latest_event_id):
            await self.queue.send(event)

    async def _send_events(self) -> None:
        history = await self._app[TRANSCRIPTS].read(self.conversation_id, self._created_at)
        news = history[self._position :]
        self._position += len(news)
        if state := last_state(news):
            self._state = self._sent_state = state
        for event in news:
            shown = live(event)
            if shown is not None:
                await self.queue.send(shown)

    async def _send_status(self) -> bool:
        """Send changes of status, title and state; return False if the conversation is deleted."""
        view = await self._find()
        if view is None:
            return False
        now = _SentFrames(
            status=status_frame(view, await self._stage(view)),
            title=title_frame(view),
        )
        for frame, before in zip(now, self._sent, strict=True):
            if frame is not None and frame != before:
                await self.queue.send(frame)
        self._sent = now
        state = self._find_state(view)
        if state not in (None, self._sent_state):
            await self.queue.send(state_frame(state))
            self._sent_state = state
        return True

    def _find_state(self, view: ConversationView) -> str | None:
        """Return the agent state that the client should have, or None to send none.

        Front ends accept no message before they have a state. Connecting resumes a stopped
        conversation, so `stopped` is sent only if it has run since the client connected.
        """
        match status_of(view):
            case ConversationStatus.STOPPED if self._has_run:
                return AgentState.STOPPED
            case ConversationStatus.RUNNING:
                self._has_run = True
                is_idle = view.execution_status is ExecutionStatus.IDLE
                return self._state or (AgentState.AWAITING_USER_INPUT if is_idle else None)
            case _:
                return None

    async def _find(self) -> ConversationView | None:
        [view] = await self._app[keys.CONVERSATIONS].find_many(
            self._user_id, [self.conversation_id], include_starting=True
        )
        # A conversation that was deleted and created again with the same id is a different one.
        is_same = view is not None and view.conversation.created_at == self._created_at
        return view if is_same else None

    async def _stage(self, view: ConversationView) -> StartStatus | None:
        if view.conversation.is_ready:
            return None
        tasks, _ = await self._app[keys.CONVERSATIONS].starts.search(
            self._user_id, conversation_id=self.conversation_id, limit=1
        )
        return tasks[0].status if tasks else None

    async def _send_error(self, message: str) -> None:
        try:
            await self.queue.send(error_frame(message))
        except ConnectionError:
            # `stream` gets the same error and disconnects the client.
            return


class _SentFrames(NamedTuple):
    """The last status and title frames of a client; READY, the initial one, need not be sent."""

    status: bytes
    title: bytes | None


def _to_body(raw: bytes) -> ActionBody:
    try:
        return ACTION_BODY.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise errors.BadRequest(f"This is not an action: {exc}") from exc
