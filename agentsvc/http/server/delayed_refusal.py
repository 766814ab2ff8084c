"""Answers that are kept back: who is turned away again and again waits for it.

A client that asks anew as soon as it is refused then costs little, however fast it is. What is kept
back is bounded; beyond that the connection ends.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from aiohttp import web

from agentsvc.base import monotonic, spread

HOLD_SECONDS: Final = 1.0
"""How long an answer is kept back at least. Some are for up to twice that, so that those who were turned
away together do not come back together."""
_TOLD_EVERY_SECONDS: Final = 60.0
_MAX_CALLERS: Final = 1000


class RefusalDelay:
    """Where those sit who wait to be refused; there are so many places."""

    def __init__(self, most: int, *, seconds: float = HOLD_SECONDS) -> None:
        self._places = asyncio.Semaphore(most)
        self._seconds = seconds

    async def hold(self) -> bool:
        """Wait, and return True; return False at once if there is no place."""
        if self._places.locked():
            return False
        async with self._places:
            await asyncio.sleep(spread(self._seconds))
        return True


class LogThrottle:
    """Says of a caller now and then only, so that a flood does not fill the log."""

    def __init__(self, *, every_seconds: float = _TOLD_EVERY_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._told: OrderedDict[str, float] = OrderedDict()

    def is_due(self, caller: str) -> bool:
        """Return whether to tell of a caller now; who was told of longest ago is forgotten."""
        moment = monotonic()
        if moment - self._told.get(caller, -self._every_seconds) < self._every_seconds:
            return False
        self._told.pop(caller, None)
        self._told[caller] = moment
        if len(self._told) > _MAX_CALLERS:
            self._told.popitem(last=False)
        return True


REFUSAL_DELAY: Final[web.AppKey[RefusalDelay]] = web.AppKey("refusal_delay", RefusalDelay)
LOG_THROTTLE: Final[web.AppKey[LogThrottle]] = web.AppKey("log_throttle", LogThrottle)
IS_HELD: Final[web.RequestKey[bool]] = web.RequestKey("is_held", bool)
"""Whether the answer to a request is to be kept back."""
