"""Contents of live streams: the events of a conversation, or the changes of a user's objects.

A stream reads the database and is only woken by notices. So it yields everything that is stored
once and in order, at any reading speed, and slow readers need little memory.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from agentsvc.base import EventBus, Notice, Overflow, Subject, Subscription
from agentsvc.conversations.deltas import DeltaSubscriptions
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import StoredEvent
from agentsvc.conversations.model import ConversationQuery, ConversationView, StartTask
from agentsvc.conversations.service import Conversations
from agentsvc.sandboxes import Sandbox, Sandboxes

PAGE_BYTES: Final = 64 * 1024
"""A page of a log ends with the event that reaches this size."""

MAX_WAITING_BYTES: Final = 128 * 1024
"""The most bytes of deltas that are buffered for one stream."""

_BATCH: Final = 50
_PAGE: Final = 100
_CHANGING: Final = (Subject.CONVERSATION, Subject.START_TASK, Subject.SANDBOX)


type _Find = Callable[
    [str, list[str]], Awaitable[Sequence[ConversationView | StartTask | Sandbox | None]]
]


class Mark(StrEnum):
    """A signal of a stream about itself."""

    READY = "ready"
    """All stored items were sent; what follows is new."""
    BEAT = "beat"
    """Keep-alive: nothing has happened for `beat_seconds`."""
    RESYNC = "resync"
    """The last item: later items may be lost, so the client has to start again."""
    DELETED = "deleted"
    """The last item: the conversation was deleted."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming delta of a model's response, which is not stored."""

    body: bytes


class StreamedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The present value of an object of a user; None if it was deleted."""

    subject: Subject
    id: str
    value: ConversationView | StartTask | Sandbox | None


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """Opens streams."""

    event_bus: EventBus
    events: EventLog
    conversations: Conversations
    sandboxes: Sandboxes
    deltas: DeltaSubscriptions
    beat_seconds: float

    async def of_conversation(
        self, user_id: str, conversation_id: str, *, after: int, latest: int | None = None
    ) -> "ConversationStream":
        """Return a stream of the events after a number, -1 for all, or of the `latest` ones.

        Raises NotFound.
        """
        await self.conversations.get(user_id, conversation_id, include_starting=True)
        if latest is not None:
            last = await self.events.find_last(conversation_id)
            after = max(-1, (-1 if last is None else last) - latest)
        return ConversationStream(self, user_id, conversation_id, after)

    async def of_user(self, user_id: str) -> AsyncGenerator[StreamedChange | Mark, None]:
        """Yield the changes of a user's conversations, start tasks and sandboxes.

        The first item is READY. Of several changes of one object, perhaps only the last is yielded.
        A conversation is also yielded when its sandbox changes, but not before it is ready.
        """
        with self.event_bus.subscribe(user_id, lambda n: n.subject in _CHANGING) as subscription:
            yield Mark.READY
            while True:
                try:
                    notices = await _within(self.beat_seconds, subscription.take())
                except Overflow:
                    yield Mark.RESYNC
                    return
                for batch in itertools.batched(notices, _BATCH):
                    for change in await self._find_changes(user_id, batch):
                        yield change
                if not notices:
                    yield Mark.BEAT

    async def _find_changes(self, user_id: str, notices: Sequence[Notice]) -> list[StreamedChange]:
        gone = [
            StreamedChange(subject=one.subject, id=one.id, value=None)
            for one in notices
            if one.is_deleted
        ]
        changed = [one for one in notices if not one.is_deleted]
        finders: dict[Subject, _Find] = {
            Subject.SANDBOX: self.sandboxes.find_many,
            Subject.START_TASK: self.conversations.starts.find_many,
            Subject.CONVERSATION: self.conversations.find_many,
        }
        changes = []
        for subject, find in finders.items():
            ids = [one.id for one in changed if one.subject is subject]
            for changed_id, value in zip(ids, await find(user_id, ids), strict=True):
                if value is not None:
                    changes.append(StreamedChange(subject=subject, id=changed_id, value=value))
        sent = {one.id for one in changed if one.subject is Subject.CONVERSATION}
        for sandbox_id in [one.id for one in changed if one.subject is Subject.SANDBOX]:
            changes += [
                each for each in await self._in_sandbox(user_id, sandbox_id) if each.id not in sent
            ]
        return changes + gone

    async def _in_sandbox(self, user_id: str, sandbox_id: str) -> list[StreamedChange]:
        """Return the conversations in a sandbox as changes."""
        query = ConversationQuery(sandbox_id=sandbox_id, include_children=True)
        views, _ = await self.conversations.search(user_id, query, page_id=None, limit=_PAGE)
        return [
            StreamedChange(subject=Subject.CONVERSATION, id=view.conversation.id, value=view)
            for view in views
        ]


class ConversationStream:
    """The events of a conversation, and after READY also the deltas between them."""

    def __init__(self, parts: Streams, user_id: str, conversation_id: str, after: int) -> None:
        self.last = after
        """The number of the last yielded event, -1 before the first."""
        self._parts = parts
        self._user_id = user_id
        self._id = conversation_id
        self._is_live = False

    async def read(self) -> AsyncGenerator[StoredEvent | Delta | Mark, None]:
        """Yield the stored events, then new events and deltas; may be called once.

        If `last` is beyond the log, because the database was restored from a backup, set it to the
        log's last event and yield RESYNC.
        """
        with self._parts.event_bus.subscribe(
            self._user_id,
            self._is_wanted,
            conversation_id=self._id,
            max_waiting_bytes=MAX_WAITING_BYTES,
        ) as subscription:
            last = await self._parts.events.find_last(self._id)
            if last is None or last < self.last:
                self.last = -1 if last is None else last
                yield Mark.DELETED if last is None else Mark.RESYNC
                return
            async for event in self._replay(None):
                yield event
            self._is_live = True
            yield Mark.READY
            with self._parts.deltas.followed(self._id):
                while True:
                    async for item in self._read_notices(subscription):
                        yield item
                        if item in (Mark.RESYNC, Mark.DELETED):
                            return

    def _is_wanted(self, notice: Notice) -> bool:
        if notice.subject is Subject.DELTA:
            return self._is_live
        is_end = notice.subject is Subject.CONVERSATION and notice.is_deleted
        return is_end or notice.subject is Subject.EVENTS

    async def _read_notices(
        self, subscription: Subscription
    ) -> AsyncGenerator[StoredEvent | Delta | Mark, None]:
        try:
            notices = await _within(self._parts.beat_seconds, subscription.take())
        except Overflow:
            yield Mark.RESYNC
            return
        for notice in notices:
            if notice.subject is Subject.CONVERSATION:
                yield Mark.DELETED
                return
            async for event in self._replay(notice.seq):
                yield event
            # An older delta belongs to a message that was yielded whole.
            if notice.subject is Subject.DELTA and notice.seq == self.last:
                yield Delta(body=notice.delta)
        if not notices:
            yield Mark.BEAT

    async def _replay(self, to_seq: int | None) -> AsyncGenerator[StoredEvent, None]:
        """Yield the stored events after `last`, up to a number or all."""
        while to_seq is None or self.last < to_seq:
            page = await self._parts.events.read_stretch(
                self._id,
                from_seq=self.last + 1,
                to_seq=to_seq,
                limit=_PAGE,
                max_bytes=PAGE_BYTES,
            )
            if not page:
                return
            for event in page:
                self.last = event.seq
                yield event
            # Neither a query nor a fast client suspends this task, so let others run here.
            await asyncio.sleep(0)


async def _within[T](seconds: float, items: Awaitable[list[T]]) -> list[T]:
    """Await items; return an empty list on timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await items
    except TimeoutError:
        return []
