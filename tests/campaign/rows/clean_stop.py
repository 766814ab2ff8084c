"""A stop is clean: SIGTERM under load drains within its time, and nothing acknowledged is lost."""

import asyncio
from typing import Final

from agentsvc.values import monotonic
from tests.campaign.book import Figure, Ground, Half, Outcome, Row, zero
from tests.campaign.rows.kills import Journal, Writers, compare
from tests.campaign.server import serving

STOPS: Final = 200
SECONDS: Final = 10.0


async def run(ground: Ground) -> Outcome:
    stops = ground.count(STOPS, least=2)
    lost: list[str] = []
    half: list[str] = []
    faults: list[str] = []
    codes: list[str] = []
    slowest = 0.0
    directory = ground.place("server")
    async with serving(directory) as server:
        feeder = await server.feeder()
        journal = Journal(directory / "journal")
        writers = Writers(server, feeder, journal)
        for _ in range(stops):
            await writers.write(ground.chance.randint(20, 300))
            began = monotonic()
            code = await server.installation.stop()
            slowest = max(slowest, monotonic() - began)
            if code:
                codes.append(f"exit code {code}")
            await writers.end()
            found = await asyncio.to_thread(compare, server, feeder.conversation_id, journal)
            lost += found[0]
            half += found[1]
            faults += await asyncio.to_thread(server.faults)
            await server.start()
        journal.close()
    return Outcome(
        did="writers of events, secrets and titles without a pause; SIGTERM in the midst of them",
        figures=(
            Figure(what="stops", value=stops, at_least=stops),
            Figure(what="acknowledged writes", value=journal.acknowledged),
            Figure(
                what="s until it had ended at most",
                value=round(slowest, 2),
                at_most=SECONDS,
                is_time=True,
            ),
            zero("lost", lost),
            zero("half applied", half),
            zero("faults of the database", faults),
            zero("stops that said it went wrong", codes),
        ),
        problems=tuple(lost + half + faults + codes),
    )


ROW: Final = Row(name="stop", half=Half.LOST, promise="clean stop", run=run)
