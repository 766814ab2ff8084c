"""What the server costs while nothing happens: with sandboxes that run and nobody uses."""

import asyncio
from pathlib import Path
from typing import Final

from tests.bench.figures import Figure, Section, Target
from tests.bench.processes import cpu_of, serve_bare
from tests.bench.rig import client_of, run
from tests.bench.sizes import Sizes

_MOST_PERCENT: Final = 0.5


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Start sandboxes and leave them alone."""
    async with (
        run("tests.bench.upstream") as upstream,
        run("tests.bench.server", str(folder / "idle"), upstream.url) as server,
        client_of(server) as client,
        serve_bare() as bare,
    ):
        for _ in range(sizes.idle):
            answer = await client.post("/api/v1/sandboxes")
            assert answer.status == 200, answer.text
            await client.wait_for_sandbox(answer.json()["id"], "RUNNING")
        pids = (server.pid, bare.pid)
        before = [cpu_of(pid) for pid in pids]
        await asyncio.sleep(sizes.idle_seconds)
        ours, floor = (
            100 * (cpu_of(pid) - was) / sizes.idle_seconds
            for pid, was in zip(pids, before, strict=True)
        )
    return Section(
        title="Idle",
        about=f"A server with {sizes.idle} running sandboxes of a fake backend for which one other"
        " process answers, at the usual times between two looks; real ones would need the memory"
        " of as many agent servers.",
        figures=(
            Figure(
                name=f"one core, with {sizes.idle} idle sandboxes",
                unit="%",
                ours=(ours,),
                floor=(floor,),
                target=Target(most=_MOST_PERCENT),
            ),
        ),
    )
