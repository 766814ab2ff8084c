"""Rate limits per key, per sandbox and per address.

What is left of a limit is told in the headers of the IETF's draft, `RateLimit` and
`RateLimit-Policy`. What is counted is bounded: who was not seen for longest is forgotten.
"""

import asyncio
import math
from collections import OrderedDict
from enum import StrEnum
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import TooManyRequests, monotonic
from agentsvc.config import LimitsConfig
from agentsvc.http.keys import REFUSED_FOR
from agentsvc.http.server.metrics_registry import Refusal
from agentsvc.http.wire import CALLBACK_BODY_BYTES

_WINDOW_SECONDS: Final = 60
_MAX_CALLERS: Final = 10_000
_MISTAKES: Final = 30
_LONGEST_WAIT_SECONDS: Final = 10.0
"""Agent servers wait thirty seconds for an answer."""
_REFUSED: Final = {
    "key": "Too many requests with this key",
    "address": "Too many requests without a good key come from this address",
}


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


class Throttle:
    """So much a minute of each caller, of which some may come at once; 0 is no limit."""

    def __init__(self, per_minute: int, *, at_once: int) -> None:
        self._at_once = at_once
        self._rate = per_minute / _WINDOW_SECONDS
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def reserve(self, caller: object, count: int, *, max_wait_seconds: float) -> tuple[float, bool]:
        """Take so much ahead; return in how many seconds it may be had, and whether it was taken.

        It was not if that takes too long. However much it is, it is taken from whoever has not had
        anything for a while.
        """
        if not self._rate or not count:
            return 0.0, True
        moment = monotonic()
        left, at = self._left.pop(caller, (float(self._at_once), moment))
        left = min(self._at_once, left + (moment - at) * self._rate)
        seconds = max(0.0, (count - left) / self._rate)
        is_taken = seconds <= max_wait_seconds or left >= self._at_once
        self._left[caller] = left - count if is_taken else left, moment
        if len(self._left) > _MAX_CALLERS:
            self._left.popitem(last=False)
        return min(seconds, max_wait_seconds) if is_taken else seconds, is_taken


class RateLimit(Throttle):
    """So many requests a minute of each caller, which may come at once; 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most, at_once=most)
        self._name = name

    def take(self, caller: object) -> State | None:
        """Count a request, unless nothing is left; None without a limit."""
        if not self._rate:
            return None
        seconds, is_taken = self.reserve(caller, 1, max_wait_seconds=0)
        left, _ = self._left[caller]
        return State(
            name=self._name,
            most=self._at_once,
            left=int(left),
            reset_seconds=math.ceil((self._at_once - left) / self._rate),
            retry_seconds=0 if is_taken else max(1, math.ceil(seconds)),
        )


class Limits:
    """Every limit on what is sent: by keys, by sandboxes, by addresses that show no good key."""

    def __init__(self, config: LimitsConfig) -> None:
        self.keys = RateLimit("key", config.requests_per_minute)
        self.addresses = RateLimit("address", config.refused_per_minute)
        requests, size = config.sandbox_requests_per_minute, config.report_bytes_per_minute
        self.sandboxes = {
            Budget.REQUESTS: Throttle(requests, at_once=requests),
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


LIMITS: Final[web.AppKey[Limits]] = web.AppKey("limits", Limits)
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
        raise TooManyRequests(_REFUSED[state.name], retry_after_seconds=state.retry_seconds)
