"""Requests in numbers: one after the other, as many as can be, or so many a second."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from agentsvc.base.values import monotonic

_WARM_UP: Final = 20

type Work = Callable[[], Awaitable[object]]


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """How long each of some requests took, from when it was due, and how many were done a second."""

    took_seconds: tuple[float, ...]
    per_second: float


async def one_by_one(work: Work, count: int) -> list[float]:
    """Return how long each of so many calls takes, behind some that do not count."""
    took = []
    for number in range(_WARM_UP + count):
        began = monotonic()
        await work()
        if number >= _WARM_UP:
            took.append(monotonic() - began)
    return took


async def in_turns(works: list[Work], count: int) -> list[list[float]]:
    """Do the same for several works at a time, so that what else the machine does meets all."""
    took: list[list[float]] = [[] for _ in works]
    for number in range(_WARM_UP + count):
        for work, times in zip(works, took, strict=True):
            began = monotonic()
            await work()
            if number >= _WARM_UP:
                times.append(monotonic() - began)
    return took


async def as_many_as_can_be(work: Work, *, seconds: float, at_once: int) -> float:
    """Return how many calls a second are answered, so many being under way at any time."""
    done = 0
    began = monotonic()

    async def go_on() -> None:
        nonlocal done
        while monotonic() - began < seconds:
            await work()
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(go_on())
    return done / (monotonic() - began)


async def paced(work: Work, *, per_second: float, seconds: float) -> Paced:
    """Begin so many calls a second, whether earlier ones have been answered or not."""
    took: list[float] = []
    began = monotonic()

    async def once(due: float) -> None:
        await work()
        took.append(monotonic() - due)

    async with asyncio.TaskGroup() as group:
        for number in range(max(1, int(per_second * seconds))):
            due = began + number / per_second
            await asyncio.sleep(max(0.0, due - monotonic()))
            group.create_task(once(due))
    return Paced(took_seconds=tuple(took), per_second=len(took) / (monotonic() - began))
