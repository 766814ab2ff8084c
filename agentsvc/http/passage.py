"""The rest of a request's body on its way to whoever takes it, past the parser and its queue.

It is followed as it comes, so that its end is known to the byte; nothing of it is kept.
"""

from collections.abc import Sequence
from typing import Protocol


class Taker(Protocol):
    """Who takes the rest of a body."""

    def take(self, parts: Sequence[memoryview]) -> None:
        """Take what has come, which is not kept for anybody else."""

    def end(self, failure: Exception | None) -> None:
        """Take in that all of it has come, or why no more of it will."""


class Rest(Protocol):
    """Knows where a body ends."""

    def feed(self, data: bytes) -> tuple[list[tuple[int, int]], int | None]:
        """Return where the parts of the body are, and where it ends if it does.

        Raises BadChunks.
        """


class SizedRest:
    """What is left of a body of a known length."""

    def __init__(self, length: int) -> None:
        self.left = length

    def feed(self, data: bytes) -> tuple[list[tuple[int, int]], int | None]:
        """Return where the part of the body is, and where the body ends if it does."""
        stop = min(len(data), self.left)
        self.left -= stop
        return [(0, stop)], None if self.left else stop


class Passage:
    """One body that is being passed on."""

    def __init__(self, rest: Rest, taker: Taker) -> None:
        self._rest = rest
        self._taker: Taker | None = taker

    @property
    def left_bytes(self) -> int:
        """How much has not come yet; 0 if that is not known."""
        return self._rest.left if isinstance(self._rest, SizedRest) else 0

    def skip(self, count: int) -> bool:
        """Take in that so much went another way, and return whether that was all."""
        if isinstance(self._rest, SizedRest):
            self._rest.left -= count
        return not self.left_bytes

    def feed(self, data: bytes) -> int | None:
        """Pass on what has come, and return where the body ends if it does; raises BadChunks."""
        spans, end = self._rest.feed(data)
        if self._taker is not None and spans:
            view = memoryview(data)
            self._taker.take([view[start:stop] for start, stop in spans])
        return end

    def end(self, failure: Exception | None = None) -> None:
        """Tell who takes it that nothing more comes, and why if that is too early."""
        if self._taker is not None:
            self._taker.end(failure)

    def leave(self) -> None:
        """Let whatever still comes be lost: who took it has gone."""
        self._taker = None
