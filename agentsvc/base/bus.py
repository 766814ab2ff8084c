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
type Tell = Callable[[Notice], None]
type _Place = tuple[str, str | None]
"""Whose news are listened for, and those of which conversation, None for everything."""


class Overflow(Exception):
    """More was announced than may wait; what waited is lost, and the store has to be read."""


class EventBus:
    """Passes on what is announced to those who listen for it."""

    def __init__(self) -> None:
        self._listeners: defaultdict[_Place, dict[object, Tell]] = defaultdict(dict)
        self._of_all: list[Tell] = []

    def announce(self, news: Notice) -> None:
        """Tell everyone who listens; call it after the transaction has committed."""
        for place in _places(news):
            for tell in self._listeners.get(place, {}).values():
                tell(news)
        for tell in self._of_all:
            tell(news)

    def watch_all(self, tell: Tell) -> None:
        """Have everybody's notices told at once, from now on; `tell` never waits."""
        self._of_all.append(tell)

    def subscribe(
        self,
        user_id: str,
        is_wanted: IsWanted,
        *,
        conversation_id: str | None = None,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> "Subscription":
        """Listen, from now on until `close`, for what of a user's is wanted.

        What is about other conversations costs nothing where only one is listened for.
        """
        place = (user_id, conversation_id)
        subscription = Subscription(
            is_wanted,
            max_waiting=max_waiting,
            max_waiting_bytes=max_waiting_bytes,
            on_close=lambda ended: self._forget(place, ended),
        )
        self._listeners[place][subscription] = subscription.put
        return subscription

    def watch(self, user_id: str, tell: Tell) -> Callable[[], None]:
        """Have all of a user's notices told at once, and return what ends it.

        `tell` never waits, and starts and ends no listening.
        """
        key = object()
        place = (user_id, None)
        self._listeners[place][key] = tell
        return lambda: self._forget(place, key)

    def count(self) -> int:
        """Return how many listen."""
        return sum(map(len, self._listeners.values()))

    def _forget(self, place: "_Place", key: object) -> None:
        listeners = self._listeners.get(place, {})
        listeners.pop(key, None)
        if not listeners:
            self._listeners.pop(place, None)


def _places(news: Notice) -> tuple["_Place", ...]:
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
        max_waiting: int,
        max_waiting_bytes: int,
        on_close: "Callable[[Subscription], None]",
    ) -> None:
        self._is_wanted = is_wanted
        self._max_waiting = max_waiting
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
        if len(self._waiting) > self._max_waiting or self._bytes > self._max_waiting_bytes:
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
