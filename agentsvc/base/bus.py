"""The event bus: publishes changes inside the server to subscribers, without waiting for them.

A notice names what has changed and is published after the change was committed; subscribers read
the new state from the store. So a slow subscriber loses nothing, and its queue stays small. Only
streamed deltas, which are not stored, are part of their notice.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Self

import msgspec

MAX_WAITING: Final = 1000
"""The maximum number of queued notices per subscription."""

MAX_WAITING_BYTES: Final = 1024 * 1024
"""The maximum number of queued bytes of deltas per subscription."""


class Subject(StrEnum):
    """The subject of a notice."""

    EVENTS = "events"
    """A conversation has new events."""
    DELTA = "delta"
    """A piece of a streamed model answer in a conversation; passed on and not stored."""
    CONVERSATION = "conversation"
    START_TASK = "start_task"
    SANDBOX = "sandbox"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One of a user's records was created, changed or deleted.

    `id` is that of the sandbox or the start task, otherwise of the conversation.
    `seq` is the number of the last stored event: of the new ones, or before the delta.
    """

    subject: Subject
    user_id: str
    id: str
    conversation_id: str | None = None
    seq: int | None = None
    is_deleted: bool = False
    delta: bytes = b""


type IsWanted = Callable[[Notice], bool]
type Listener = Callable[[Notice], None]
type _Topic = tuple[str, str | None]
"""The user, and one conversation or None for all notices of the user."""


class Overflow(Exception):
    """The queue was full and has been dropped; the subscriber has to read the store."""


class EventBus:
    """Publishes notices to subscriptions and listeners."""

    def __init__(self) -> None:
        self._listeners: defaultdict[_Topic, dict[object, Listener]] = defaultdict(dict)
        self._global_listeners: list[Listener] = []

    def announce(self, news: Notice) -> None:
        """Publish a notice; call it after the transaction has committed."""
        for topic in _topics(news):
            for listener in self._listeners.get(topic, {}).values():
                listener(news)
        for listener in self._global_listeners:
            listener(news)

    def watch_all(self, listener: Listener) -> None:
        """Call `listener` synchronously with the notices of all users from now on."""
        self._global_listeners.append(listener)

    def subscribe(
        self,
        user_id: str,
        is_wanted: IsWanted,
        *,
        conversation_id: str | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> "Subscription":
        """Subscribe to the notices of a user for which `is_wanted` returns true, until `close`.

        With `conversation_id`, notices about other conversations cost nothing.
        """
        topic = (user_id, conversation_id)
        subscription = Subscription(
            is_wanted,
            max_waiting_bytes=max_waiting_bytes,
            on_close=lambda ended: self._unsubscribe(topic, ended),
        )
        self._listeners[topic][subscription] = subscription.put
        return subscription

    def watch(self, user_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` synchronously with all notices of a user; return a function that stops it.

        The listener must not block, subscribe or unsubscribe.
        """
        key = object()
        topic = (user_id, None)
        self._listeners[topic][key] = listener
        return lambda: self._unsubscribe(topic, key)

    def count(self) -> int:
        """Return the number of subscriptions and listeners of users."""
        return sum(map(len, self._listeners.values()))

    def _unsubscribe(self, topic: _Topic, key: object) -> None:
        listeners = self._listeners.get(topic, {})
        listeners.pop(key, None)
        if not listeners:
            self._listeners.pop(topic, None)


def _topics(news: Notice) -> tuple[_Topic, ...]:
    everything = (news.user_id, None)
    if news.conversation_id is None:
        return (everything,)
    return everything, (news.user_id, news.conversation_id)


class Subscription:
    """The queue of one subscriber; a context manager that closes it.

    Only the last of several notices about the same record is kept, except for deltas.
    """

    def __init__(
        self,
        is_wanted: IsWanted,
        *,
        max_waiting_bytes: int,
        on_close: "Callable[[Subscription], None]",
    ) -> None:
        self._is_wanted = is_wanted
        self._max_waiting_bytes = max_waiting_bytes
        self._on_close = on_close
        self._queue: dict[tuple[Subject, str, int], Notice] = {}
        self._bytes = 0
        self._deltas = 0
        self._has_overflowed = False
        self._is_closed = False
        self._has_notices = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, news: Notice) -> None:
        """Enqueue a notice if it is wanted; never waits."""
        if self._has_overflowed or not self._is_wanted(news):
            return
        if news.subject is Subject.DELTA:
            self._deltas += 1
            self._bytes += len(news.delta)
        key = (news.subject, news.id, self._deltas if news.subject is Subject.DELTA else 0)
        self._queue.pop(key, None)
        self._queue[key] = news
        if len(self._queue) > MAX_WAITING or self._bytes > self._max_waiting_bytes:
            self._has_overflowed = True
            self._clear()
        self._has_notices.set()

    async def take(self) -> list[Notice]:
        """Wait for notices, and return all that are queued, in order.

        Raises Overflow once if the queue was full; the subscription goes on. Returns an empty list once
        the subscription is closed.
        """
        await self._has_notices.wait()
        if not self._is_closed:
            self._has_notices.clear()
        if self._has_overflowed:
            self._has_overflowed = False
            raise Overflow
        taken = list(self._queue.values())
        self._clear()
        return taken

    def close(self) -> None:
        """Unsubscribe and wake up `take`; idempotent."""
        self._is_closed = True
        self._on_close(self)
        self._clear()
        self._has_notices.set()

    def _clear(self) -> None:
        self._queue.clear()
        self._bytes = 0
