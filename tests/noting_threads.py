"""Threads that note what they are given to do, so that nobody has to measure who waits."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class NotingThreads(ThreadPoolExecutor):
    """The threads of an event loop, see `set_default_executor`."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[str] = []

    def submit[**P, T](self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        # What `asyncio.to_thread` calls stands first in what it hands over.
        self._given.append(repr(getattr(fn, "args", ())[:1]))
        return super().submit(fn, *args, **kwargs)

    def count(self, name: str) -> int:
        """Return how often something was given that is called so."""
        return sum(name in given for given in self._given)
