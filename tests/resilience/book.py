"""What a row of the resilience tests is, what it is given, and what it finds."""

import random
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class Half(StrEnum):
    """Which of its two promises the resilience tests tries."""

    LOST = "Nothing lost"
    IN = "Nobody in"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number a row has found, and what it may be."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    is_time: bool = False
    """Whether it says how long something took, which depends on the machine."""

    @property
    def is_met(self) -> bool:
        is_low = self.at_most is None or self.value <= self.at_most
        return is_low and (self.at_least is None or self.value >= self.at_least)

    def __str__(self) -> str:
        limits = [
            f"{sign} {_plain(limit)}"
            for sign, limit in (("at least", self.at_least), ("at most", self.at_most))
            if limit is not None
        ]
        aim = f" ({', '.join(limits)})" if limits else ""
        return f"{_plain(self.value)} {self.what}{aim}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a row has done and found; `problems` are for whoever mends what it has found."""

    did: str
    figures: tuple[Figure, ...]
    problems: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        return all(figure.is_met for figure in self.figures)


def _nobody() -> None:
    """Tell nobody."""


class Ground:
    """What a row runs on: a directory that is removed, chance that can be repeated, and a size."""

    def __init__(
        self, directory: Path, *, scale: float, seed: int, share: Callable[[], None] = _nobody
    ) -> None:
        self.directory = directory
        self.scale = scale
        self.seed = seed
        self.share = share
        """Says that a row which is alone at first has taken its times: others run beside the rest."""
        self.chance = random.Random(seed)  # noqa: S311  # chance that has to be repeatable

    def count(self, full: int, *, least: int = 1) -> int:
        """Return how many there are of something at this scale."""
        return max(least, round(full * self.scale))

    def place(self, name: str) -> Path:
        """Return a directory below that of the row, made if it is new."""
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return path


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One promise, and what tries to break it."""

    name: str
    half: Half
    promise: str
    run: Callable[[Ground], Coroutine[Any, Any, Outcome]]
    is_alone: bool = False
    """Whether it has the machine for itself, as its figures are times."""
    is_alone_at_first: bool = False
    """Whether it has the machine for itself until it has taken its times, and `share`s it."""


def shares(count: int, lanes: int) -> list[int]:
    """Divide something among lanes, of which each has at least one."""
    lanes = max(1, min(lanes, count))
    return [count // lanes + (lane < count % lanes) for lane in range(lanes)]


def zero(what: str, found: int | list[str]) -> Figure:
    """Return a figure that must be nothing."""
    return Figure(what=what, value=found if isinstance(found, int) else len(found), at_most=0)
