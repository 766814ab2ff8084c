"""Rate limits per key, per sandbox and per address.

Responses report the remaining requests in the headers of the IETF draft, `RateLimit` and
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
from agentsvc.http.keys import REFUSAL_REASON
from agentsvc.http.server.metrics_registry import Refusal
from agentsvc.http.wire import CALLBACK_BODY_BYTES

_WINDOW_SECONDS: Final = 60
_ACCIDENTAL_REQUESTS: Final = 30
_MAX_WAIT_SECONDS: Final = 10.0
"""Maximum delay of a sandbox's request; agent servers time out after thirty seconds."""
_EXCEEDED: Final = {
    "key": (Refusal.KEY_RATE, "Too many requests with this key"),
    "address": (
        Refusal.ADDRESS_RATE,
        "Too many requests without a good key come from this address",
    ),
}
"""Metric reason and error text by the name of the limit."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The remaining requests of a caller, and the seconds until the limit is fully replenished.

    The next request is accepted after `retry_seconds`; 0 if this one was accepted.
    """

    name: str
    most: int
    left: int
    reset_seconds: int
    retry_seconds: int

    def headers(self) -> dict[str, str]:
        """Return the response headers of the limit."""
        return {
            "RateLimit-Policy": f'"{self.name}";q={self.most};w={_WINDOW_SECONDS}',
            "RateLimit": f'"{self.name}";r={self.left};t={self.reset_seconds}',
        }


class Budget(StrEnum):
    """The budgets of each sandbox; the values are for error texts."""

    REQUESTS = "requests"
    BYTES = "bytes of reports"


_REFUSALS: Final = {Budget.REQUESTS: Refusal.SANDBOX_RATE, Budget.BYTES: Refusal.SANDBOX_BYTES}


class RateLimit(Throttle):
    """A limit on requests per minute of each caller; bursts are allowed, and 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most)
        self._name = name
        self._max_per_minute = most

    def take(self, caller: object) -> State | None:
        """Count a request if the limit allows it; returns the state, or None without a limit."""
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
    """All rate limits: per key, per sandbox, and per address without a valid key."""

    def __init__(self, config: LimitsConfig) -> None:
        self.keys = RateLimit("key", config.requests_per_minute)
        self.addresses = RateLimit("address", config.refused_per_minute)
        requests, size = config.sandbox_requests_per_minute, config.report_bytes_per_minute
        self.sandboxes = {
            Budget.REQUESTS: Throttle(requests),
            Budget.BYTES: Throttle(size, at_once=CALLBACK_BODY_BYTES),
        }


class SandboxAllowance:
    """The consumption of a sandbox's budgets by one request.

    Requests are delayed rather than rejected, because an agent server retries only a few times.
    """

    def __init__(self, request: web.Request, sandbox_id: str) -> None:
        self._request = request
        self._sandbox_id = sandbox_id
        self._max_wait_seconds = _MAX_WAIT_SECONDS

    async def spend(self, budget: Budget, count: int) -> None:
        """Wait until a budget allows `count` more; raises TooManyRequests if it takes too long."""
        seconds, is_taken = (
            self._request.app[LIMITS]
            .sandboxes[budget]
            .reserve(self._sandbox_id, count, max_wait_seconds=self._max_wait_seconds)
        )
        if not is_taken:
            self._request[REFUSAL_REASON] = _REFUSALS[budget]
            message = f"Too many {budget} from this sandbox"
            raise TooManyRequests(message, retry_after_seconds=math.ceil(seconds))
        self._max_wait_seconds -= seconds
        if seconds:
            await asyncio.sleep(seconds)


LIMITS: Final[web.AppKey[RateLimits]] = web.AppKey("limits", RateLimits)
STATE: Final[web.RequestKey[State]] = web.RequestKey("limit_state", State)
"""The state of the caller's limit, if there is one."""


def is_flood(state: State) -> bool:
    """Whether a caller has used more of the limit than accidental requests explain."""
    return state.left < state.most - _ACCIDENTAL_REQUESTS


def enforce(request: web.Request, state: State | None) -> None:
    """Add the limit to the response headers; raises TooManyRequests if it is exceeded."""
    if state is None:
        return
    request[STATE] = state
    if state.retry_seconds:
        request[REFUSAL_REASON], message = _EXCEEDED[state.name]
        extra = {"message": message}
        raise TooManyRequests(message, extra=extra, retry_after_seconds=state.retry_seconds)
