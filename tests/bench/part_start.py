"""How long the server takes to answer, what memory it has then, and what is installed for it."""

from pathlib import Path
from typing import Final

from tests.bench.figures import Figure, Section, Target
from tests.bench.installed import closure, disk_bytes
from tests.bench.processes import Started, serve_bare, serve_ours
from tests.bench.rig import MIB
from tests.bench.sizes import Sizes

_MB: Final = 10**6
_TWICE: Final = Target(most=2.0, of_floor=True)


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Start the server and the bare one in turns; the first start of each does not count."""
    ours, floor = [], []
    for number in range(sizes.starts + 1):
        async with serve_bare() as bare:
            told = _told(bare)
        async with serve_ours(folder / "started", {}) as started:
            if number:
                floor.append(told)
                ours.append(_told(started))
    names = (("exec to the first answer", "s"), ("processor time until then", "s"))
    figures = [
        Figure(name=name, unit=unit, ours=mine, floor=bare_ones, target=_TWICE)
        for (name, unit), mine, bare_ones in zip(
            (*names, ("memory in use then", "MiB")), _turned(ours), _turned(floor), strict=True
        )
    ]
    return Section(
        title="Start",
        about="`agentsvc serve` on a data directory that is there, with compiled bytecode, against"
        " a bare aiohttp server; and what is installed without extras, against aiohttp.",
        figures=(*figures, *_installed()),
    )


def _told(started: Started) -> tuple[float, float, float]:
    return started.took_seconds, started.cpu_seconds, started.memory_bytes / MIB


def _turned(rows: list[tuple[float, float, float]]) -> list[tuple[float, ...]]:
    return list(zip(*rows, strict=True))


def _installed() -> list[Figure]:
    ours, floor = closure("agentsvc"), closure("aiohttp")
    return [
        Figure(
            name="distributions",
            unit="",
            ours=(len(ours),),
            floor=(len(floor),),
            target=Target(most=41),
        ),
        Figure(
            name="on disk",
            unit="MB",
            ours=(disk_bytes(ours) / _MB,),
            floor=(disk_bytes(floor) / _MB,),
            target=Target(most=60),
        ),
    ]
