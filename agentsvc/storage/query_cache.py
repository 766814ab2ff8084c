"""A cache of query results, valid until the database changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

_MAX: Final = 4096
"""The maximum size of the cache, in KiB or rows."""


class QueryCache:
    """Cached results by key, all of one version of the database."""

    def __init__(self, find_version: Callable[[], int]) -> None:
        self._find_version = find_version
        self._cache = _Cache()
        self._is_checked = False

    async def get[T](
        self,
        key: tuple[object, ...],
        read: Callable[[], Awaitable[T]],
        weigh: Callable[[T], int] | None,
    ) -> T:
        """Return the cached result of a key, or read and cache it; see `Database.keep`."""
        cache = self._current()
        if key not in cache:
            result = await read()
            cache.add(key, result, weigh(result) if weigh else 1)
            return result
        kept: T = cache[key]
        return kept

    def forget(self) -> None:
        """Drop all cached results."""
        self._cache = _Cache()

    def _current(self) -> "_Cache":
        """Return the cache; empty it first if the database has changed.

        The version is read once per turn of the event loop: requests in one turn were sent before it.
        """
        if not self._is_checked:
            self._is_checked = True
            asyncio.get_running_loop().call_soon(self._check_version)
            version = self._find_version()
            if version != self._cache.version:
                self._cache = _Cache(version)
        return self._cache

    def _check_version(self) -> None:
        self._is_checked = False


class _Cache(dict[tuple[object, ...], Any]):
    """The results of one version of the database."""

    def __init__(self, version: int | None = None) -> None:
        super().__init__()
        self.version = version
        self._weight = 0

    def add(self, key: tuple[object, ...], result: object, weight: int) -> None:
        """Add a result, unless it is too large; may evict all others."""
        if self._weight + weight > _MAX:
            self.clear()
            self._weight = 0
        if weight <= _MAX:
            self[key] = result
            self._weight += weight + 1
