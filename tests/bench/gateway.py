"""What the way through the gateway costs, against the direct call to the same upstream.

Long bodies also go through nginx, where it is installed: a proxy is a third process that moves
them, and on a machine with two cores no proxy is as fast as the direct call. All ways are measured
in turns, so that whatever else the machine does meets them all.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

from agentsvc.base.values import monotonic
from tests.bench.rig import MIB, Running, client_of, run, run_agent_server
from tests.http.gateway.steps import session
from tests.live import nginx
from tests.live.nginx import free_port

PART: Final = bytes(64 * 1024)
WARM_UP: Final = 100
KIB: Final = 1024
STALLED: Final = 100
STALL_SECONDS: Final = 0.3
_NGINX: Final = """
    upstream sandbox {{ server {upstream}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        client_body_buffer_size 256k;
        location / {{
            proxy_pass http://sandbox;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_buffer_size 64k;
            proxy_buffers 16 64k;
        }}
    }}
"""
"""It keeps no body in a file and none back, and its buffers are large."""


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """URLs of one server, and the key that opens the one through the gateway."""

    direct: str
    gateway: str
    key: str
    nginx: str = ""
    """Empty where it is not installed."""


@click.command()
@click.option("--requests", default=1500, help="Small requests each way.")
@click.option("--rounds", default=5, help="Large bodies each way and direction.")
@click.option("--mib", default=100, help="Size of a large body.")
def main(requests: int, rounds: int, mib: int) -> None:
    """Print what the gateway costs."""
    asyncio.run(measure(requests, rounds, mib * MIB))


async def measure(requests: int, rounds: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with run("tests.bench.upstream") as upstream, _serve(folder, upstream) as found:
            server, ways = found
            await _small("bare server, 1 KiB (no target)", ways, "/data", requests)
            async with _nginx(Path(folder, "nginx"), upstream) as url:
                beside = msgspec.structs.replace(ways, nginx=url)
                await _large(beside, (upstream, server), rounds, size)
            await _stalled(ways, server)
        async with run_agent_server(Path(folder)) as agent, _serve(folder, agent) as found:
            _, ways = found
            await _small(
                "agent server, /server_info (target: under 1.5)", ways, "/server_info", requests
            )
            await _small(
                "agent server, a search (target: under 1.5)",
                ways,
                "/api/conversations/search",
                requests,
            )


@asynccontextmanager
async def _serve(folder: str, upstream: Running) -> AsyncIterator[tuple[Running, Ways]]:
    """Run a server whose sandboxes are the upstream, and start one."""
    with tempfile.TemporaryDirectory(dir=folder) as data:
        async with run("tests.bench.server", data, upstream.url) as server:
            async with client_of(server) as client:
                answer = await client.post("/api/v1/sandboxes")
                assert answer.status == 200, answer.text
                found = await client.wait_for_sandbox(answer.json()["id"], "RUNNING")
            gateway = f"{server.url}/sandboxes/{found['id']}/agent"
            key = found["session_api_key"]
            yield server, Ways(direct=upstream.url, gateway=gateway, key=key)


@asynccontextmanager
async def _nginx(folder: Path, upstream: Running) -> AsyncIterator[str]:
    """Run nginx before the upstream and give its URL, nothing where it is not installed."""
    if nginx.program() is None:
        yield ""
        return
    await asyncio.to_thread(folder.mkdir)
    port = free_port()
    body = _NGINX.format(port=port, upstream=urlsplit(upstream.url).netloc)
    async with nginx.serving(folder, port, body):
        yield f"http://127.0.0.1:{port}"


async def _small(name: str, ways: Ways, path: str, count: int) -> None:
    async with session(ways.key) as asking:

        async def get(url: str) -> None:
            async with asking.get(url + path) as response:
                assert response.status == 200
                await response.read()

        took = await _in_turns((ways.direct, ways.gateway), get, WARM_UP + count)
    direct, gateway = ([seconds * 1000 for seconds in times[WARM_UP:]] for times in took)
    ratio = statistics.median(gateway) / statistics.median(direct)
    click.echo(
        f"{name}, {count} times: direct {_spread(direct, 'ms', 2)},"
        f" gateway {_spread(gateway, 'ms', 2)}: {ratio:.2f} times"
    )


async def _large(ways: Ways, running: tuple[Running, Running], rounds: int, size: int) -> None:
    upstream, server = running
    pids = {"client": os.getpid(), "upstream": upstream.pid, "server": server.pid}
    async with session(ways.key) as asking:

        async def download(url: str) -> None:
            seen = 0
            async with asking.get(f"{url}/big?bytes={size}") as response:
                async for part in response.content.iter_any():
                    seen += len(part)
            assert seen == size

        async def upload(url: str, headers: Mapping[str, str]) -> None:
            asked = asking.post(url + "/sink", data=_parts(size), headers=headers)
            async with asked as response:
                assert await response.json() == {"received": size}

        moves: dict[str, Callable[[str], Awaitable[None]]] = {
            "down": download,
            "up": partial(upload, headers={"Content-Length": str(size)}),
            "up in chunks": partial(upload, headers={}),
        }
        for name, move in moves.items():
            urls = [url for url in (ways.direct, ways.gateway, ways.nginx) if url]
            for url in urls:
                await move(url)
            before, used = server.memory(), _cpu_seconds(pids)
            took = await _in_turns(urls, move, rounds)
            after, used_then = server.memory(), _cpu_seconds(pids)
            click.echo(f"{size // MIB} MiB {name}, {rounds} times: {_compared(size, took)}")
            growth = (after.max_bytes - before.now_bytes) / MIB
            click.echo(
                f"  memory of the server: {before.now_bytes / MIB:.1f} MiB before,"
                f" {growth:.1f} MiB more at most"
            )
            per_gib = KIB / (size / MIB) / rounds
            spent = {name: (used_then[name] - used[name]) * per_gib for name in pids}
            click.echo(
                f"  seconds of a processor for 1 GiB: server {spent['server']:.2f}; for 1 GiB by each"
                f" of {len(urls)} ways: client {spent['client']:.2f}, upstream {spent['upstream']:.2f}"
            )


async def _stalled(ways: Ways, server: Running) -> None:
    """Print what uploads cost that a sandbox does not take."""
    parts = urlsplit(ways.gateway)
    before = server.memory()
    async with AsyncExitStack() as held:
        for _ in range(STALLED):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            held.callback(writer.close)
            # The handler of this path never reads a body.
            writer.write(
                f"GET {parts.path}/stream?type=text/plain HTTP/1.1\r\nHost: bench\r\n"
                f"X-Session-API-Key: {ways.key}\r\nContent-Length: {100 * MIB}\r\n\r\n".encode()
            )
            await _fill(writer)
        after = server.memory()
    growth = (after.max_bytes - before.now_bytes) / MIB
    click.echo(
        f"{STALLED} uploads that are not taken: {growth:.1f} MiB more memory of the server at most"
    )


async def _fill(writer: asyncio.StreamWriter) -> None:
    """Send until nothing more is taken."""
    with contextlib.suppress(TimeoutError):
        while True:
            writer.write(PART)
            async with asyncio.timeout(STALL_SECONDS):
                await writer.drain()


def _cpu_seconds(pids: dict[str, int]) -> dict[str, float]:
    """Return how much of a processor's time each process has used."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = {
        name: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        for name, pid in pids.items()
    }
    return {name: (int(found[11]) + int(found[12])) / ticks for name, found in fields.items()}


def _spread(figures: list[float], unit: str, digits: int) -> str:
    """Return median, least and most of some figures."""
    shown = [statistics.median(figures), min(figures), max(figures)]
    median, least, most = (f"{figure:.{digits}f}" for figure in shown)
    return f"{median} {unit} ({least} to {most})"


def _compared(size: int, took: list[list[float]]) -> str:
    """Return how fast each way was, and the gateway beside the others."""
    rates = [[size / MIB / seconds for seconds in times] for times in took]
    direct, gateway, *others = (statistics.median(rate) for rate in rates)
    shown = [f"direct {_spread(rates[0], 'MiB/s', 0)}, gateway {_spread(rates[1], 'MiB/s', 0)}"]
    shown += [f"nginx {_spread(rate, 'MiB/s', 0)}" for rate in rates[2:]]
    ratios = [f"{gateway / direct:.0%} of direct (target: over 60%)"]
    ratios += [f"{gateway / other:.0%} of nginx, which is {other / direct:.0%}" for other in others]
    return f"{', '.join(shown)}: {', '.join(ratios)}"


async def _in_turns(
    urls: Sequence[str], move: Callable[[str], Awaitable[None]], rounds: int
) -> list[list[float]]:
    took: list[list[float]] = [[] for _ in urls]
    for _ in range(rounds):
        for url, times in zip(urls, took, strict=True):
            began = monotonic()
            await move(url)
            times.append(monotonic() - began)
    return took


async def _parts(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(PART)):
        yield PART


if __name__ == "__main__":
    main()
