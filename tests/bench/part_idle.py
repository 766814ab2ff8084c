"""What the server costs while nothing happens: with sandboxes that run and nobody uses."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from tests.bench.figures import Figure, Section, Target
from tests.bench.part_agents import begin_together, warm_server
from tests.bench.processes import cpu_of, serve_bare
from tests.bench.sizes import Sizes

_MAX_PERCENT: Final = 0.5
_HOLDS: Final = "agentsvc-"


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Begin conversations, and leave them alone once their agents are done."""
    async with warm_server(folder) as (server, client), serve_bare() as bare:
        await begin_together(client, sizes.idle)
        await asyncio.sleep(sizes.idle_seconds / 2)
        before = [cpu_of(server.pid), _held(), cpu_of(bare.pid)]
        await asyncio.sleep(sizes.idle_seconds)
        after = [cpu_of(server.pid), _held(), cpu_of(bare.pid)]
        ours, held, floor = (
            100 * (now - was) / sizes.idle_seconds for now, was in zip(after, before, strict=True)
        )
    return Section(
        title="Idle",
        about=f"A server with {sizes.idle} conversations in sandboxes of their own, with real agent"
        " servers that have nothing to do, at the usual times between two looks.",
        figures=(
            Figure(
                name=f"one core, with {sizes.idle} idle sandboxes",
                unit="%",
                ours=(ours,),
                floor=(floor,),
                target=Target(most=_MAX_PERCENT),
            ),
            Figure(name="of what holds these sandboxes", unit="%", ours=(held,)),
        ),
    )


def _held() -> float:
    """Return the time that the processes have used that hold sandboxes, in seconds."""
    spent = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().startswith(_HOLDS):
                spent += cpu_of(int(folder.name))
    return spent
