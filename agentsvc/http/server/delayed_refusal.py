"""Answers that are kept back: who is turned away again and again waits for it.

A client that asks anew as soon as it is refused then costs little, however fast it is. What is kept
back is bounded; beyond that the connection ends.
"""

import asyncio
from typing import Final

from aiohttp import web

from agentsvc.base import Throttle, spread

HOLD_SECONDS: Final = 1.0
"""How long an answer is kept back at least. Some are for up to twice that, so that those who were turned
away together do not come back together."""
LINES_A_MINUTE: Final = 1
"""How often the log tells of one caller who is turned away."""


class RefusalDelay:
    """Delays answers to callers that are refused; only so many wait at a time."""

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


REFUSAL_DELAY: Final[web.AppKey[RefusalDelay]] = web.AppKey("refusal_delay", RefusalDelay)
LOG_THROTTLE: Final[web.AppKey[Throttle]] = web.AppKey("log_throttle", Throttle)
"""Admits a line of the log that tells of a caller, so that a flood does not fill the log."""
IS_HELD: Final[web.RequestKey[bool]] = web.RequestKey("is_held", bool)
"""Whether the answer to a request is to be kept back."""
