"""An acknowledged write is not lost when power goes either: what was not synced is dropped.

Each cycle is a life of a server under writers, ended at any moment, also of its stop, of whose files
only that is left which `tests.resilience.disk` says a disk has then. A disk that says it has synced
and has not shows that the comparison would find what is lost.
"""

import asyncio
import signal
from pathlib import Path
from typing import Final

import msgspec

from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.disk import Disk, build, read_log
from tests.resilience.rows.kills import Journal, Writers, compare
from tests.resilience.server import Server, serving

CYCLES: Final = 200
_STOPS: Final = 4
"""In one cycle of so many the power goes while the server stops."""
_LYING_CYCLES: Final = 2
_LANES: Final = 2


class Cycles(msgspec.Struct, kw_only=True):
    """What the cycles have shown."""

    lost: list[str] = []
    half: list[str] = []
    faults: list[str] = []
    cycles: int = 0
    acknowledged: int = 0
    unsafe: int = 0


async def run(ground: Ground) -> Outcome:
    cycles = ground.count(CYCLES, least=2)
    found, lied_to = Cycles(), Cycles()
    async with asyncio.TaskGroup() as group:
        for lane, share in enumerate(shares(cycles, _LANES)):
            group.create_task(_fail_often(ground, share, f"lane{lane}", found))
    await _fail_often(ground, _LYING_CYCLES, "lied-to", lied_to, lies=True)
    return Outcome(
        did=(
            "writers of events, secrets and titles; the server killed at any moment, one time in"
            f" {_STOPS} of its stop; any part of the {found.unsafe} writes that no sync had made safe"
            " dropped, page by page or in part of a page's sectors, and names in order (an LD_PRELOAD"
            " library writes down what is done and synced); then the same on a disk that lies, to see that losses are found"
        ),
        figures=(
            Figure(what="cycles", value=found.cycles, at_least=cycles),
            Figure(what="acknowledged writes", value=found.acknowledged, at_least=cycles),
            Figure(what="writes not safe", value=found.unsafe, at_least=1),
            zero("lost", found.lost),
            zero("half applied", found.half),
            zero("faults of the database", found.faults),
            Figure(
                what="losses found on a disk that lies",
                value=len(lied_to.lost + lied_to.half + lied_to.faults),
                at_least=1,
            ),
        ),
        problems=tuple(found.lost + found.half + found.faults),
    )


async def _fail_often(
    ground: Ground, cycles: int, name: str, found: Cycles, *, lies: bool = False
) -> None:
    """Let the power fail so often; a disk that lies says it has synced and has not."""
    directory = ground.place(name)
    library = await asyncio.to_thread(build, directory)
    log = directory / "disk.log"
    environment = {
        "LD_PRELOAD": str(library),
        "DISK_DIR": str(directory / "data"),
        "DISK_LOG": str(log),
        **({"DISK_LIES": "1"} if lies else {}),
    }
    async with serving(directory, environment=environment) as server:
        feeder = await server.feeder()
        journal = Journal(directory / "journal")
        writers = Writers(server, feeder, journal)
        await server.installation.stop()
        disk = await _start(server, log)
        for number in range(cycles):
            await writers.write(ground.chance.randint(10, 150))
            if number % _STOPS == _STOPS - 1:
                server.installation.tell(signal.SIGTERM)
                await asyncio.sleep(ground.chance.uniform(0, 0.3))
            await server.kill()
            await writers.end()
            found.unsafe += await asyncio.to_thread(_fail, disk, log, ground)
            try:
                # What recovers it is itself the next to lose its power.
                disk = await _start(server, log)
            except AssertionError as exc:
                found.faults.append(f"no start: {exc}")
                break
            lost, half = await asyncio.to_thread(compare, server, feeder.conversation_id, journal)
            found.lost += lost
            found.half += half
            found.faults += await asyncio.to_thread(server.faults)
            found.cycles += 1
        found.acknowledged += journal.acknowledged
        journal.close()


async def _start(server: Server, log: Path) -> Disk:
    """Start the server, and write down what it does to the files that there are."""
    disk = await asyncio.to_thread(Disk, server.installation.data.path)
    await asyncio.to_thread(log.unlink, missing_ok=True)
    await server.start()
    return disk


def _fail(disk: Disk, log: Path, ground: Ground) -> int:
    disk.play(read_log(log))
    return disk.fail(ground.chance)


ROW: Final = Row(
    name="power",
    half=Half.LOST,
    promise="an acknowledged write is kept when power goes",
    run=run,
)
