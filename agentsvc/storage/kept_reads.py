"""A cache of query results, valid until anything is stored."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

_MAX: Final = 4096
"""How much is kept, in KiB or rows."""


class KeptReads:
    """Results of reads by their keys, all of one version of the database."""

    def __init__(self, find_version: Callable[[], int]) -> None:
        self._find_version = find_version
        self._recent = _Recent()
        self._has_looked = False

    async def get[T](
        self,
        key: tuple[object, ...],
        read: Callable[[], Awaitable[T]],
        weigh: Callable[[T], int] | None,
    ) -> T:
        """Return what was read under a key, or read it; see `Database.keep`."""
        recent = self._now()
        if key not in recent:
            made = await read()
            recent.add(key, made, weigh(made) if weigh else 1)
            return made
        kept: T = recent[key]
        return kept

    def forget(self) -> None:
        """Keep nothing of what was read before now."""
        self._recent = _Recent()

    def _now(self) -> "_Recent":
        """Return what has been read since anything was stored.

        That is looked up once in each turn of the event loop: whoever asks in one has sent it before.
        """
        if not self._has_looked:
            self._has_looked = True
            asyncio.get_running_loop().call_soon(self._check_version)
            version = self._find_version()
            if version != self._recent.version:
                self._recent = _Recent(version)
        return self._recent

    def _check_version(self) -> None:
        self._has_looked = False


class _Recent(dict[tuple[object, ...], Any]):
    """What was read, all of one version of the database."""

    def __init__(self, version: int | None = None) -> None:
        super().__init__()
        self.version = version
        self._weight = 0

    def add(self, key: tuple[object, ...], made: object, weight: int) -> None:
        """Keep it unless it is too much; what else there is may have to go."""
        if self._weight + weight > _MAX:
            self.clear()
            self._weight = 0
        if weight <= _MAX:
            self[key] = made
            self._weight += weight + 1
