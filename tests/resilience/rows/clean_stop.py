"""A stop is clean: SIGTERM under load drains within its time, and nothing acknowledged is lost."""

import asyncio
from typing import Final

import msgspec

from agentsvc.base.values import monotonic
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.rows.kills import Journal, Writers, compare
from tests.resilience.server import serving

STOPS: Final = 200
SECONDS: Final = 10.0
_LANES: Final = 2


class Found(msgspec.Struct, kw_only=True):
    """What the stops of all servers have shown."""

    lost: list[str] = []
    half: list[str] = []
    faults: list[str] = []
    codes: list[str] = []
    stops: int = 0
    acknowledged: int = 0
    slowest_seconds: float = 0.0


async def run(ground: Ground) -> Outcome:
    stops = ground.count(STOPS, least=2)
    found = Found()
    async with asyncio.TaskGroup() as group:
        for lane, share in enumerate(shares(stops, _LANES)):
            group.create_task(_stop_often(ground, f"lane{lane}", share, found))
    return Outcome(
        did="writers of events, secrets and titles without a pause; SIGTERM in the midst of them",
        figures=(
            Figure(what="stops", value=found.stops, at_least=stops),
            Figure(what="acknowledged writes", value=found.acknowledged),
            Figure(
                what="s until it had ended at most",
                value=round(found.slowest_seconds, 2),
                at_most=SECONDS,
                is_time=True,
            ),
            zero("lost", found.lost),
            zero("half applied", found.half),
            zero("faults of the database", found.faults),
            zero("stops that said it went wrong", found.codes),
        ),
        problems=tuple(found.lost + found.half + found.faults + found.codes),
    )


async def _stop_often(ground: Ground, name: str, count: int, found: Found) -> None:
    directory = ground.place(name)
    async with serving(directory) as server:
        feeder = await server.feeder()
        journal = Journal(directory / "journal")
        writers = Writers(server, feeder, journal)
        for _ in range(count):
            await writers.write(ground.chance.randint(20, 300))
            began = monotonic()
            code = await server.installation.stop()
            found.slowest_seconds = max(found.slowest_seconds, monotonic() - began)
            found.codes += [f"exit code {code}"] if code else []
            await writers.end()
            lost, half = await asyncio.to_thread(compare, server, feeder.conversation_id, journal)
            found.lost += lost
            found.half += half
            found.faults += await asyncio.to_thread(server.faults)
            found.stops += 1
            await server.start()
        found.acknowledged += journal.acknowledged
        journal.close()


ROW: Final = Row(name="stop", half=Half.LOST, promise="clean stop", run=run)
