"""Notes what a request has created, in the transaction that creates it; see `accounts.idempotency`.

So the answer to a request becomes durable together with what the request did.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Final

from agentsvc.storage.database import Transaction

type Watcher = Callable[[Transaction, object], Awaitable[None]]

_WATCHER: Final[ContextVar[Watcher | None]] = ContextVar("watcher_of_effects", default=None)


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Have this watcher told of what is made meanwhile, also by tasks that are begun meanwhile."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def is_watched() -> bool:
    """Whether what is done now has to be done in a transaction, since somebody watches."""
    return _WATCHER.get() is not None


async def note_effect(tx: Transaction, made: object) -> None:
    """Tell what a transaction makes, last of all in its body; nobody may be watching."""
    watcher = _WATCHER.get()
    if watcher is not None:
        await watcher(tx, made)
