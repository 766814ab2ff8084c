"""Records what a request creates, in the transaction that creates it; see `accounts.idempotency`.

So the response to a request becomes durable together with its effects.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Final

from agentsvc.storage.database import Transaction

type Watcher = Callable[[Transaction, object], Awaitable[None]]

_WATCHER: Final[ContextVar[Watcher | None]] = ContextVar("watcher_of_effects", default=None)


@contextlib.contextmanager
def recording_effects(watcher: Watcher) -> Iterator[None]:
    """Report to `watcher` what is created inside the context, also by tasks started in it."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def is_watched() -> bool:
    """Return whether a watcher is set, so that effects have to be made in a transaction."""
    return _WATCHER.get() is not None


async def note_effect(tx: Transaction, made: object) -> None:
    """Report a created object to the watcher, if any; call it last in a transaction's body."""
    watcher = _WATCHER.get()
    if watcher is not None:
        await watcher(tx, made)
