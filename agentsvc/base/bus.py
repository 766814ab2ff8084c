"""News inside the server: what was stored is announced, without waiting, to whoever listens.

An announcement names what has changed and is made once the change is durable; what it is now is
read from the store. So a listener that reads slowly misses nothing, and what waits for it stays
small. Only streaming deltas, which are nowhere else, are in the announcement itself.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Self

import msgspec

MAX_WAITING: Final = 1000
"""How many notices may wait for one listener."""

MAX_WAITING_BYTES: Final = 1024 * 1024
"""How many bytes of deltas may wait for one listener."""


class Subject(StrEnum):
    """What an announcement is about."""

    EVENTS = "events"
    """A conversation has new events."""
    DELTA = "delta"
    """A piece of what the model is saying in a conversation, passed on and not stored."""
    CONVERSATION = "conversation"
    START_TASK = "start_task"
    SANDBOX = "sandbox"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of a user's has changed, is new, or was deleted.

    `id` is that of the sandbox or the start task, and of the conversation for everything else.
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
"""Whose news are listened for, and those of which conversation, None for everything."""


class Overflow(Exception):
    """More was announced than may wait; what waited is lost, and the store has to be read."""


class EventBus:
    """Passes on what is announced to those who listen for it."""

    def __init__(self) -> None:
        self._listeners: defaultdict[_Topic, dict[object, Listener]] = defaultdict(dict)
        self._of_all: list[Listener] = []

    def announce(self, news: Notice) -> None:
        """Tell everyone who listens; call it after the transaction has committed."""
        for topic in _topics(news):
            for listener in self._listeners.get(topic, {}).values():
                listener(news)
        for listener in self._of_all:
            listener(news)

    def watch_all(self, listener: Listener) -> None:
        """Call a function with everybody's notices at once, from now on; it never waits."""
        self._of_all.append(listener)

    def subscribe(
        self,
        user_id: str,
        is_wanted: IsWanted,
        *,
        conversation_id: str | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> "Subscription":
        """Listen, from now on until `close`, for what of a user's is wanted.

        What is about other conversations costs nothing where only one is listened for.
        """
        topic = (user_id, conversation_id)
        subscription = Subscription(
            is_wanted,
            max_waiting_bytes=max_waiting_bytes,
            on_close=lambda ended: self._forget(topic, ended),
        )
        self._listeners[topic][subscription] = subscription.put
        return subscription

    def watch(self, user_id: str, listener: Listener) -> Callable[[], None]:
        """Call a function with all of a user's notices at once, and return what ends it.

        It never waits, and starts and ends no listening.
        """
        key = object()
        topic = (user_id, None)
        self._listeners[topic][key] = listener
        return lambda: self._forget(topic, key)

    def count(self) -> int:
        """Return how many listen."""
        return sum(map(len, self._listeners.values()))

    def _forget(self, topic: _Topic, key: object) -> None:
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
    """What one listener has not heard yet; a context that ends it.

    Of several notices of one thing only the last waits, deltas aside.
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
        self._waiting: dict[tuple[Subject, str, int], Notice] = {}
        self._bytes = 0
        self._deltas = 0
        self._is_overrun = False
        self._is_closed = False
        self._some = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, news: Notice) -> None:
        """Add an announcement, if it is wanted; never waits."""
        if self._is_overrun or not self._is_wanted(news):
            return
        if news.subject is Subject.DELTA:
            self._deltas += 1
            self._bytes += len(news.delta)
        key = (news.subject, news.id, self._deltas if news.subject is Subject.DELTA else 0)
        self._waiting.pop(key, None)
        self._waiting[key] = news
        if len(self._waiting) > MAX_WAITING or self._bytes > self._max_waiting_bytes:
            self._is_overrun = True
            self._clear()
        self._some.set()

    async def take(self) -> list[Notice]:
        """Wait until there is something, and return all of it in its order.

        Raises Overflow once when too much was waiting, and listens on. Returns nothing once the
        subscription is closed.
        """
        await self._some.wait()
        if not self._is_closed:
            self._some.clear()
        if self._is_overrun:
            self._is_overrun = False
            raise Overflow
        taken = list(self._waiting.values())
        self._clear()
        return taken

    def close(self) -> None:
        """Listen no more, which ends a wait, too; safe to call twice."""
        self._is_closed = True
        self._on_close(self)
        self._clear()
        self._some.set()

    def _clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0
