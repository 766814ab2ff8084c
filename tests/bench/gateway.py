"""What the way through the gateway costs, against the direct call to the same upstream.

Both are measured in turns, so that whatever else the machine does meets both.
"""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import aiohttp
import click
import msgspec

from agentsvc.values import monotonic
from tests.bench.rig import MIB, Running, client_of, run
from tests.http.gateway.steps import session

PART: Final = bytes(64 * 1024)
WARM_UP: Final = 100


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """Two URLs of one upstream."""

    direct: str
    gateway: str


@click.command()
@click.option("--requests", default=1500, help="Small requests each way.")
@click.option("--rounds", default=4, help="Large bodies each way and direction.")
@click.option("--mib", default=100, help="Size of a large body.")
def main(requests: int, rounds: int, mib: int) -> None:
    """Print what the gateway costs."""
    asyncio.run(measure(requests, rounds, mib * MIB))


async def measure(requests: int, rounds: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            run("tests.bench.upstream") as upstream,
            run("tests.bench.server", str(Path(folder) / "data"), upstream.url) as server,
        ):
            ways, key = await _open(server, upstream)
            async with session(key) as asking:
                await _small(asking, ways, requests)
                await _large(asking, ways, server, rounds, size)


async def _open(server: Running, upstream: Running) -> tuple[Ways, str]:
    async with client_of(server) as client:
        answer = await client.post("/api/v1/sandboxes")
        assert answer.status == 200, answer.text
        found = await client.wait_for_sandbox(answer.json()["id"], "RUNNING")
    gateway = f"{server.url}/sandboxes/{found['id']}/agent"
    return Ways(direct=upstream.url, gateway=gateway), found["session_api_key"]


async def _small(asking: aiohttp.ClientSession, ways: Ways, count: int) -> None:
    async def get(url: str) -> float:
        began = monotonic()
        async with asking.get(url + "/data") as response:
            assert len(await response.read()) == 1024
        return monotonic() - began

    took: dict[str, list[float]] = {ways.direct: [], ways.gateway: []}
    for _ in range(WARM_UP + count):
        for url, times in took.items():
            times.append(await get(url))
    direct, gateway = (statistics.median(times[WARM_UP:]) for times in took.values())
    click.echo(
        f"1 KiB, median of {count}: direct {direct * 1000:.2f} ms,"
        f" gateway {gateway * 1000:.2f} ms, {gateway / direct:.2f} times (target: under 1.5)"
    )


async def _large(
    asking: aiohttp.ClientSession, ways: Ways, server: Running, rounds: int, size: int
) -> None:
    async def download(url: str) -> None:
        seen = 0
        async with asking.get(f"{url}/big?bytes={size}") as response:
            async for part in response.content.iter_any():
                seen += len(part)
        assert seen == size

    async def upload(url: str) -> None:
        async with asking.post(url + "/sink", data=_parts(size)) as response:
            assert await response.json() == {"received": size}

    for name, move in (("down", download), ("up", upload)):
        await move(ways.gateway)
        before = server.memory()
        took = await _in_turns(ways, move, rounds)
        after = server.memory()
        direct, gateway = (size / MIB / statistics.median(times) for times in took)
        click.echo(
            f"{size // MIB} MiB {name}, median of {rounds}: direct {direct:.0f} MiB/s,"
            f" gateway {gateway:.0f} MiB/s, {gateway / direct:.0%} (target: over 60%)"
        )
        click.echo(
            f"  memory of the server: before {before.now_bytes / MIB:.1f} MiB,"
            f" after {after.now_bytes / MIB:.1f} MiB, at most {after.most_bytes / MIB:.1f} MiB"
        )


async def _in_turns(
    ways: Ways, move: Callable[[str], Awaitable[None]], rounds: int
) -> tuple[list[float], list[float]]:
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for url, times in zip((ways.direct, ways.gateway), took, strict=True):
            began = monotonic()
            await move(url)
            times.append(monotonic() - began)
    return took


async def _parts(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(PART)):
        yield PART


if __name__ == "__main__":
    main()
