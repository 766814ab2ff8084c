"""Servers as processes of their own, and what the system says of them."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from agentsvc.base.values import monotonic
from tests.live.nginx import free_port

_POLL_SECONDS: Final = 0.002
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A server that has answered for the first time."""

    pid: int
    url: str
    took_seconds: float

    @property
    def cpu_seconds(self) -> float:
        """How much of a processor's time it has used."""
        return cpu_of(self.pid)

    @property
    def memory_bytes(self) -> int:
        """How much memory it has in use now."""
        return memory_of(self.pid)


def cpu_of(pid: int) -> float:
    """Return the time of processors that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int) -> int:
    """Return how many bytes of memory a process has in use."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@asynccontextmanager
async def serve_bare() -> AsyncIterator[Started]:
    """Run the bare server."""
    port = free_port()
    program = (sys.executable, "-m", "tests.bench.bare", str(port))
    async with _run(program, port, {}) as started:
        yield started


@asynccontextmanager
async def serve_ours(data_dir: Path, environment: Mapping[str, str]) -> AsyncIterator[Started]:
    """Run `agentsvc serve`."""
    port = free_port()
    options = ("--port", str(port), "--data-dir", str(data_dir))
    program = (sys.executable, "-m", "agentsvc", "serve", *options)
    async with _run(program, port, environment) as started:
        yield started


@asynccontextmanager
async def _run(
    program: tuple[str, ...], port: int, environment: Mapping[str, str]
) -> AsyncIterator[Started]:
    # What is compiled anew at each start is no part of what a start costs.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = monotonic()
    process = await asyncio.create_subprocess_exec(
        *program, env={**inherited, **environment}, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await _until_alive(process, f"{url}/alive")
        yield Started(pid=process.pid, url=url, took_seconds=monotonic() - began)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_alive(process: asyncio.subprocess.Process, url: str) -> None:
    async with asyncio.timeout(_START_SECONDS), aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None, "it does not start"
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(_POLL_SECONDS)
