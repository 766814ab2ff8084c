"""Rate limits per caller and minute (token buckets); the least recently seen callers are evicted."""

from collections import OrderedDict
from typing import Final

from agentsvc.base.values import monotonic

_MINUTE_SECONDS: Final = 60
_MAX_CALLERS: Final = 10_000


class Throttle:
    """A rate limit per caller; bursts of up to `at_once`, by default `per_minute`; 0 is no limit."""

    def __init__(self, per_minute: int, *, at_once: int | None = None) -> None:
        self._at_once = per_minute if at_once is None else at_once
        self._rate = per_minute / _MINUTE_SECONDS
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admits(self, caller: object) -> bool:
        """Take one token if there is one, and return whether it was taken."""
        return self.reserve(caller, 1, max_wait_seconds=0)[1]

    def reserve(self, caller: object, count: int, *, max_wait_seconds: float) -> tuple[float, bool]:
        """Take tokens in advance; return the seconds until they are free, and whether they were taken.

        They are not taken if the wait exceeds `max_wait_seconds`, unless the caller's bucket is full: then
        any number is granted.
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

    def left_to(self, caller: object) -> tuple[float, float]:
        """Return the tokens left after a caller's last request, and the seconds from then to a full bucket.

        Raises KeyError for a caller that has not requested any, as every caller if there is no limit.
        """
        left, _ = self._left[caller]
        return left, (self._at_once - left) / self._rate
