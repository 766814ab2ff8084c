"""Rate limits per key, per sandbox and per address.

What is left of a limit is told in the headers of the IETF's draft, `RateLimit` and
`RateLimit-Policy`.
"""

import asyncio
import math
from enum import StrEnum
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import Throttle, TooManyRequests
from agentsvc.config import LimitsConfig
from agentsvc.http.keys import REFUSED_FOR
from agentsvc.http.server.metrics_registry import Refusal
from agentsvc.http.wire import CALLBACK_BODY_BYTES

_WINDOW_SECONDS: Final = 60
_MISTAKES: Final = 30
_LONGEST_WAIT_SECONDS: Final = 10.0
"""Agent servers wait thirty seconds for an answer."""
_REFUSED: Final = {
    "key": (Refusal.KEY_RATE, "Too many requests with this key"),
    "address": (
        Refusal.ADDRESS_RATE,
        "Too many requests without a good key come from this address",
    ),
}
"""What is counted and told, by the name of the limit."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a limit to a caller, and in how many seconds all of it will be.

    One more request is taken after `retry_seconds`, which is 0 while there is something left.
    """

    name: str
    most: int
    left: int
    reset_seconds: int
    retry_seconds: int

    def headers(self) -> dict[str, str]:
        """Return what tells a client."""
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.most};w={_WINDOW_SECONDS}',
            "RateLimit": f'"{self.name}";r={self.left};t={self.reset_seconds}',
        }


class Budget(StrEnum):
    """What each sandbox has so much of."""

    REQUESTS = "requests"
    BYTES = "bytes of reports"


_REFUSALS: Final = {Budget.REQUESTS: Refusal.SANDBOX_RATE, Budget.BYTES: Refusal.SANDBOX_BYTES}


class RateLimit(Throttle):
    """So many requests a minute of each caller, which may come at once; 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most)
        self._name = name
        self._max_per_minute = most

    def take(self, caller: object) -> State | None:
        """Count a request, unless nothing is left; None without a limit."""
        if not self._max_per_minute:
            return None
        seconds, is_taken = self.reserve(caller, 1, max_wait_seconds=0)
        left, reset_seconds = self.left_to(caller)
        return State(
            name=self._name,
            most=self._max_per_minute,
            left=int(left),
            reset_seconds=math.ceil(reset_seconds),
            retry_seconds=0 if is_taken else max(1, math.ceil(seconds)),
        )


class RateLimits:
    """Every limit on what is sent: by keys, by sandboxes, by addresses that show no good key."""

    def __init__(self, config: LimitsConfig) -> None:
        self.keys = RateLimit("key", config.requests_per_minute)
        self.addresses = RateLimit("address", config.refused_per_minute)
        requests, size = config.sandbox_requests_per_minute, config.report_bytes_per_minute
        self.sandboxes = {
            Budget.REQUESTS: Throttle(requests),
            Budget.BYTES: Throttle(size, at_once=CALLBACK_BODY_BYTES),
        }


class SandboxAllowance:
    """What one request of a sandbox takes of what the sandbox may send.

    It waits rather than being refused: an agent server sends what was refused a few times only.
    """

    def __init__(self, request: web.Request, sandbox_id: str) -> None:
        self._request = request
        self._sandbox_id = sandbox_id
        self._max_wait_seconds = _LONGEST_WAIT_SECONDS

    async def spend(self, budget: Budget, count: int) -> None:
        """Wait until so much may be sent; raises TooManyRequests if that takes too long."""
        seconds, is_taken = (
            self._request.app[LIMITS]
            .sandboxes[budget]
            .reserve(self._sandbox_id, count, max_wait_seconds=self._max_wait_seconds)
        )
        if not is_taken:
            self._request[REFUSED_FOR] = _REFUSALS[budget]
            message = f"Too many {budget} from this sandbox"
            raise TooManyRequests(message, retry_after_seconds=math.ceil(seconds))
        self._max_wait_seconds -= seconds
        if seconds:
            await asyncio.sleep(seconds)


LIMITS: Final[web.AppKey[RateLimits]] = web.AppKey("limits", RateLimits)
STATE: Final[web.RequestKey[State]] = web.RequestKey("limit_state", State)
"""What the caller of a request has left, where that is limited."""


def is_many(state: State) -> bool:
    """Whether a caller has sent more, of what is limited, than a mistake explains."""
    return state.left < state.most - _MISTAKES


def enforce(request: web.Request, state: State | None) -> None:
    """Have the answer tell what is left; raises TooManyRequests if nothing is."""
    if state is None:
        return
    request[STATE] = state
    if state.retry_seconds:
        request[REFUSED_FOR], message = _REFUSED[state.name]
        extra = {"message": message}
        raise TooManyRequests(message, extra=extra, retry_after_seconds=state.retry_seconds)
