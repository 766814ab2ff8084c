"""Limits what each caller may do in a minute; the callers not seen for longest are forgotten."""

from collections import OrderedDict
from typing import Final

from agentsvc.base.values import monotonic

_MINUTE_SECONDS: Final = 60
_MAX_CALLERS: Final = 10_000


class Throttle:
    """A limit for each caller and minute, of which `at_once`, else all, may come together; 0 is no limit."""

    def __init__(self, per_minute: int, *, at_once: int | None = None) -> None:
        self._at_once = per_minute if at_once is None else at_once
        self._rate = per_minute / _MINUTE_SECONDS
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admits(self, caller: object) -> bool:
        """Take one if it may be had now, and return whether it was."""
        return self.reserve(caller, 1, max_wait_seconds=0)[1]

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

    def left_to(self, caller: object) -> tuple[float, float]:
        """Return what was left to a caller who has just asked, and in how many seconds all will be.

        Raises KeyError for one who has not asked, as everybody does where there is no limit.
        """
        left, _ = self._left[caller]
        return left, (self._at_once - left) / self._rate
