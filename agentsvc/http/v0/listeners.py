"""One client of the event socket: what it is told, and what it tells the agent.

It is told what the store has, at the pace at which it reads; a client that does not read is let
go of. What it says is passed on one after the other; a client that says more than that is let go
of, too. How frames travel is for `sockets` to know.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from agentsvc.base import EventBus, Notice, Overflow, Subject, errors
from agentsvc.conversations import Conversations, ConversationView, MessageQueue
from agentsvc.domain import StartStatus
from agentsvc.http.v0.conversations import ConversationStatus, status_of
from agentsvc.http.v0.frames import (
    READY,
    error_frame,
    live,
    replay,
    status_frame,
    title_frame,
    waiting_frame,
)
from agentsvc.http.v0.transcripts import Transcripts
from agentsvc.http.v0.user_actions import ACTION_BODY, ActionBody, perform, to_user_action
from agentsvc.sandboxes import Sandboxes

log = logging.getLogger(__name__)

_DONE: Final = 200
MAX_ACTIONS: Final = 16
"""How many actions of one client may wait for the agent."""


class Line(Protocol):
    """The way to one client."""

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits for a client that reads slowly.

        Raises ConnectionError for one that reads no more.
        """
        ...

    async def hang_up(self) -> None:
        """End the connection for good; what was sent still arrives."""
        ...

    async def drop(self) -> None:
        """Break the connection; the client may come back."""
        ...


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What listeners need of the server."""

    conversations: Conversations
    pending: MessageQueue
    sandboxes: Sandboxes
    transcripts: Transcripts
    event_bus: EventBus


class Listener:
    """A client that follows one conversation."""

    def __init__(
        self,
        services: Services,
        line: Line,
        view: ConversationView,
        *,
        latest_event_id: int,
        check_key: Callable[[], Awaitable[None]],
        note: Callable[[int], Awaitable[None]],
        max_bytes: int,
    ) -> None:
        conversation = view.conversation
        self.conversation_id = conversation.id
        self._user_id = conversation.user_id
        self._created_at = conversation.created_at
        self._services = services
        self._line = line
        self._latest_event_id = latest_event_id
        self._check_key = check_key
        self._note = note
        self._max_bytes = max_bytes
        self._told = _SentFrames(status=READY, title=title_frame(view), waiting=None)
        self._position = 0
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inbox_bytes = 0
        self._news = services.event_bus.subscribe(self._user_id, self._is_wanted)

    async def tell(self) -> None:
        """Send what is stored and then what happens, until the listener is closed."""
        try:
            await self._tell_all()
        except ConnectionError as exc:
            log.info(
                "event socket dropped",
                extra={"conversation_id": self.conversation_id, "reason": str(exc)},
            )
            await self._line.drop()
        finally:
            self.close()

    def take(self, raw: bytes) -> bool:
        """Take what the client says; say whether there was room for it. Never waits."""
        is_full = self._inbox.qsize() >= MAX_ACTIONS
        if is_full or (self._inbox_bytes and self._inbox_bytes + len(raw) > self._max_bytes):
            return False
        self._inbox_bytes += len(raw)
        self._inbox.put_nowait(raw)
        return True

    async def obey(self) -> None:
        """Pass on what the client says, one after the other, until the listener is closed."""
        while (raw := await self._inbox.get()) is not None:
            self._inbox_bytes -= len(raw)
            try:
                await self._pass_on(raw)
            except errors.AgentsvcError as exc:
                await self._note(exc.status)
                await self._complain(exc.message)
                if isinstance(exc, errors.NotAuthenticated):
                    await self._line.hang_up()
            else:
                await self._note(_DONE)

    async def _pass_on(self, raw: bytes) -> None:
        await self._check_key()
        await perform(
            self._services.pending,
            self._user_id,
            self.conversation_id,
            to_user_action(_to_body(raw)),
        )

    async def wake(self) -> None:
        """Let a stopped conversation run again, as clients expect of a connect."""
        view = await self._find()
        sandbox = view.sandbox if view else None
        if view is None or sandbox is None or not view.conversation.is_ready:
            return
        if status_of(view) is not ConversationStatus.STOPPED:
            return
        try:
            await self._services.sandboxes.resume(self._user_id, sandbox.id)
        except errors.AgentsvcError as exc:
            await self._complain(exc.message)

    def close(self) -> None:
        """End what is going on; safe to call twice."""
        self._news.close()
        self._inbox.put_nowait(None)

    # Inside

    def _is_wanted(self, news: Notice) -> bool:
        if news.subject is Subject.DELTA:
            return False
        return news.subject is Subject.SANDBOX or news.conversation_id == self.conversation_id

    async def _tell_all(self) -> None:
        await self._replay()
        while await self._tell_status():
            if not await self._hear():
                return
            await self._tell_events()
        await self._line.hang_up()

    async def _hear(self) -> bool:
        """Wait until there may be something to tell; say whether anybody still listens."""
        try:
            return bool(await self._news.take())
        except Overflow:
            return True

    async def _replay(self) -> None:
        history = await self._services.transcripts.read(self.conversation_id, self._created_at)
        self._position = len(history)
        for event in replay(history[: self._position], self._latest_event_id):
            await self._line.send(event)

    async def _tell_events(self) -> None:
        history = await self._services.transcripts.read(self.conversation_id, self._created_at)
        news = history[self._position :]
        self._position += len(news)
        for event in news:
            shown = live(event)
            if shown is not None:
                await self._line.send(shown)

    async def _tell_status(self) -> bool:
        """Tell state and title if they have changed; say whether the conversation still exists."""
        view = await self._find()
        if view is None:
            return False
        now = _SentFrames(
            status=status_frame(view, await self._stage(view)),
            title=title_frame(view),
            waiting=None if self._position else waiting_frame(view),
        )
        for frame, before in zip(now, self._told, strict=True):
            if frame is not None and frame != before:
                await self._line.send(frame)
        self._told = now
        return True

    async def _find(self) -> ConversationView | None:
        [view] = await self._services.conversations.find_many(
            self._user_id, [self.conversation_id], include_starting=True
        )
        # One that was deleted and made again under its id is another one.
        is_same = view is not None and view.conversation.created_at == self._created_at
        return view if is_same else None

    async def _stage(self, view: ConversationView) -> StartStatus | None:
        if view.conversation.is_ready:
            return None
        tasks, _ = await self._services.conversations.starts.search(
            self._user_id, conversation_id=self.conversation_id, limit=1
        )
        return tasks[0].status if tasks else None

    async def _complain(self, message: str) -> None:
        try:
            await self._line.send(error_frame(message))
        except ConnectionError:
            # Whoever tells it what happens finds out too, and lets go of it.
            return


class _SentFrames(NamedTuple):
    """The frames a client has of what changes; it need not be told that all is well."""

    status: bytes
    title: bytes | None
    waiting: bytes | None


def _to_body(raw: bytes) -> ActionBody:
    try:
        return ACTION_BODY.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise errors.BadRequest(f"This is no action: {exc}") from exc
