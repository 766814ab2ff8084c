"""What readers cost that do not read: memory of the server, and time of one who does read."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import click

from agentsvc.base.values import monotonic
from tests.bench.rig import MIB, client_of, feeder_of, run
from tests.http.v1.streaming import Feeder, deltas, events
from tests.http.v1.test_streams_slow import stalled
from tests.service import Client
from tests.streams import open_lines, path_of

ROUND: Final = 400
"""Events of a round, 20 kB each."""


@click.command()
@click.option("--readers", default=100, help="Readers that do not read.")
def main(readers: int) -> None:
    """Print what stalled readers cost."""
    asyncio.run(measure(readers))


async def measure(readers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            run("tests.bench.server", str(Path(folder) / "data"), "") as server,
            client_of(server) as client,
            feeder_of(client) as feeder,
            AsyncExitStack() as held,
        ):
            await _round(client, feeder, 0)
            alone = await _round(client, feeder, 1)
            before = server.memory()
            path = path_of(feeder.conversation_id)
            for i in range(readers):
                await held.enter_async_context(stalled(client, path, is_socket=i % 2 == 0))
            beside = await _round(client, feeder, 2)
            after = server.memory()
    grown = (after.max_bytes - before.max_bytes) / MIB
    click.echo(
        f"{readers} stalled readers, {ROUND} events of 20 kB: memory of the server"
        f" {before.now_bytes / MIB:.1f} MiB, then {after.now_bytes / MIB:.1f} MiB;"
        f" at most {grown:.1f} MiB more than before (target: under 64)"
    )
    click.echo(
        f"one who reads: {alone:.2f} s alone, {beside:.2f} s beside them, {beside / alone:.2f} times"
    )


async def _round(client: Client, feeder: Feeder, number: int) -> float:
    """Return how long it takes to write events, and to read all of them meanwhile."""
    first = 1 + number * ROUND
    last = str(len(await client.events(feeder.conversation_id)) - 1)
    began = monotonic()
    async with open_lines(client, path_of(feeder.conversation_id), last_id=last) as stream:
        await stream.until("ready")
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(feeder, first))
            left = ROUND
            while left:
                one = await stream.read()
                assert one is not None
                left -= one.type == "event"
    return monotonic() - began


async def _feed(feeder: Feeder, first: int) -> None:
    for begin in range(first, first + ROUND, 10):
        await feeder.send(events(10, first=begin, text="x" * 20_000))
        await feeder.send(deltas(20, first=begin * 2, text="x" * 1000))


if __name__ == "__main__":
    main()
