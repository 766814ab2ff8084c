"""A look at many sandboxes: each is seen once, and never all of them at the same time."""

import asyncio
from typing import ClassVar

from agentsvc.plugin.backend import Handle, Report
from agentsvc.testing.backend import FakeBackend, FakeWorld
from tests.bench.reconcile import fleet_of, growth, lines, measure

COUNT = 300


class BusyWorld(FakeWorld):
    """A FakeWorld that notes how many sandboxes were looked at at the same time.

    Each look takes so many seconds.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.now = 0
        self.most = 0

    def backend_type(self) -> type[FakeBackend]:
        return type("FakeBackend", (BusyBackend,), {"world": self})


class BusyBackend(FakeBackend):
    world: ClassVar[BusyWorld]

    async def inspect(self, handle: Handle) -> Report:
        self.world.now += 1
        self.world.most = max(self.world.most, self.world.now)
        try:
            await asyncio.sleep(self.world.seconds)
            return await super().inspect(handle)
        finally:
            self.world.now -= 1


async def test_many_sandboxes_are_looked_at_once_and_not_all_at_the_same_time() -> None:
    world = BusyWorld(seconds=0.01)
    async with fleet_of(COUNT, world) as fleet:
        await fleet.look()
    seen = [sandbox_id for method, sandbox_id in world.calls if method == "inspect"]
    assert len(seen) == len(set(seen)) == COUNT
    assert 1 < world.most < COUNT


async def test_where_a_look_takes_long_more_are_looked_at_together() -> None:
    world = BusyWorld(seconds=0.2)
    async with fleet_of(COUNT, world) as fleet:
        await fleet.look()
    assert 32 < world.most < COUNT


async def test_the_bench_of_many_sandboxes_tells_what_each_costs() -> None:
    found = {count: await measure(count) for count in (2, 4)}
    told = "\n".join(lines(found))
    for look in ("nothing has changed", "the backend is away", "everything has changed"):
        assert look in told
        assert growth(found, look) > 0
