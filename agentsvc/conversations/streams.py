"""Contents of live streams: the events of a conversation, or the changes of a user's objects.

A stream reads the store and is only woken by notices. So it tells everything that is stored
once and in order, whenever it begins and however slowly it is read, and little waits for it.
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
"""How much of a log is read at once, if not a single event is larger."""

MAX_WAITING_BYTES: Final = 128 * 1024
"""How many bytes of deltas may wait for one stream."""

_BATCH: Final = 50
_PAGE: Final = 100
_CHANGING: Final = (Subject.CONVERSATION, Subject.START_TASK, Subject.SANDBOX)


type _Find = Callable[
    [str, list[str]], Awaitable[Sequence[ConversationView | StartTask | Sandbox | None]]
]


class Mark(StrEnum):
    """What a stream says of itself."""

    READY = "ready"
    """All that was there has been told; what follows is new."""
    BEAT = "beat"
    """Nothing has happened for a while."""
    RESYNC = "resync"
    """The last: something may be missing from here on, so the reader has to begin anew."""
    DELETED = "deleted"
    """The last: there is nothing left to tell of."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of what the model is saying, which is not stored."""

    body: bytes


class StreamedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What something of a user's is now; None if it was deleted."""

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
        """Return the events behind a number, -1 for all, or `latest` of them; raises NotFound."""
        await self.conversations.get(user_id, conversation_id, include_starting=True)
        if latest is not None:
            last = await self.events.find_last(conversation_id)
            after = max(-1, (-1 if last is None else last) - latest)
        return ConversationStream(self, user_id, conversation_id, after)

    async def of_user(self, user_id: str) -> AsyncGenerator[StreamedChange | Mark, None]:
        """Tell what changes of a user's conversations, start tasks and sandboxes.

        Be READY at once, then tell each change; of several of one thing perhaps only the last. A
        conversation is told of when its sandbox changes, too, and not before it is ready.
        """
        with self.event_bus.subscribe(user_id, lambda news: news.subject in _CHANGING) as news:
            yield Mark.READY
            while True:
                try:
                    notices = await _within(self.beat_seconds, news.take())
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
        left = [one for one in notices if not one.is_deleted]
        finders: dict[Subject, _Find] = {
            Subject.SANDBOX: self.sandboxes.find_many,
            Subject.START_TASK: self.conversations.starts.find_many,
            Subject.CONVERSATION: self.conversations.find_many,
        }
        changes = []
        for subject, find in finders.items():
            ids = [one.id for one in left if one.subject is subject]
            for changed_id, value in zip(ids, await find(user_id, ids), strict=True):
                if value is not None:
                    changes.append(StreamedChange(subject=subject, id=changed_id, value=value))
        told = {one.id for one in left if one.subject is Subject.CONVERSATION}
        for sandbox_id in [one.id for one in left if one.subject is Subject.SANDBOX]:
            changes += [
                each for each in await self._inside(user_id, sandbox_id) if each.id not in told
            ]
        return changes + gone

    async def _inside(self, user_id: str, sandbox_id: str) -> list[StreamedChange]:
        """Return the conversations that live in a sandbox."""
        query = ConversationQuery(sandbox_id=sandbox_id, include_children=True)
        views, _ = await self.conversations.search(user_id, query, page_id=None, limit=_PAGE)
        return [
            StreamedChange(subject=Subject.CONVERSATION, id=view.conversation.id, value=view)
            for view in views
        ]


class ConversationStream:
    """The events of a conversation, and the deltas between them once it is READY."""

    def __init__(self, parts: Streams, user_id: str, conversation_id: str, after: int) -> None:
        self.last = after
        """The number of the last event that was told, -1 before the first."""
        self._parts = parts
        self._user_id = user_id
        self._id = conversation_id
        self._is_live = False

    async def read(self) -> AsyncGenerator[StoredEvent | Delta | Mark, None]:
        """Tell everything; may be called once.

        A reader that is ahead of the log, since that was restored from a copy, is told to RESYNC
        behind its `last` event.
        """
        with self._parts.event_bus.subscribe(
            self._user_id,
            self._is_wanted,
            conversation_id=self._id,
            max_waiting_bytes=MAX_WAITING_BYTES,
        ) as news:
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
                    async for item in self._read_notices(news):
                        yield item
                        if item in (Mark.RESYNC, Mark.DELETED):
                            return

    def _is_wanted(self, news: Notice) -> bool:
        if news.subject is Subject.DELTA:
            return self._is_live
        is_end = news.subject is Subject.CONVERSATION and news.is_deleted
        return is_end or news.subject is Subject.EVENTS

    async def _read_notices(
        self, news: Subscription
    ) -> AsyncGenerator[StoredEvent | Delta | Mark, None]:
        try:
            notices = await _within(self._parts.beat_seconds, news.take())
        except Overflow:
            yield Mark.RESYNC
            return
        for one in notices:
            if one.subject is Subject.CONVERSATION:
                yield Mark.DELETED
                return
            async for event in self._replay(one.seq):
                yield event
            # One that is older belongs to what has been told whole.
            if one.subject is Subject.DELTA and one.seq == self.last:
                yield Delta(body=one.delta)
        if not notices:
            yield Mark.BEAT

    async def _replay(self, to_seq: int | None) -> AsyncGenerator[StoredEvent, None]:
        """Tell what is stored, up to a number or all of it."""
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
            # Neither a query nor a client that reads fast is waited for: others have their turn here.
            await asyncio.sleep(0)


async def _within[T](seconds: float, items: Awaitable[list[T]]) -> list[T]:
    """Return what comes, nothing if that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            return await items
    except TimeoutError:
        return []
