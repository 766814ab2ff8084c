"""Delays error responses to clients that are refused repeatedly.

The delay limits the cost of a client that retries immediately. The number of delayed responses is
bounded; beyond it, the connection is closed.
"""

import asyncio
from typing import Final

from aiohttp import web

from agentsvc.base import Throttle, spread

HOLD_SECONDS: Final = 1.0
"""Minimum delay of a response; a random part of up to the same length spreads the retries."""
LINES_A_MINUTE: Final = 1
"""Maximum number of log lines per minute about one refused caller."""


class RefusalDelay:
    """Delays responses to refused callers; at most `most` at a time."""

    def __init__(self, most: int, *, seconds: float = HOLD_SECONDS) -> None:
        self._slots = asyncio.Semaphore(most)
        self._seconds = seconds

    async def hold(self) -> bool:
        """Wait and return True; return False at once if too many responses are delayed."""
        if self._slots.locked():
            return False
        async with self._slots:
            await asyncio.sleep(spread(self._seconds))
        return True


REFUSAL_DELAY: Final[web.AppKey[RefusalDelay]] = web.AppKey("refusal_delay", RefusalDelay)
LOG_THROTTLE: Final[web.AppKey[Throttle]] = web.AppKey("log_throttle", Throttle)
"""Limits the log lines about one caller, so that a flood does not fill the log."""
IS_DELAYED: Final[web.RequestKey[bool]] = web.RequestKey("is_held", bool)
"""Whether to delay the error response to a request."""
