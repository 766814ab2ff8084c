"""What figures are taken of: a server and an upstream in processes of their own."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from process.specs import DEFAULT_SPEC

from tests.http.gateway.steps import session, until
from tests.http.v1.streaming import Feeder
from tests.live.nginx import free_port
from tests.service import Client

MIB: Final = 2**20
_START_SECONDS: Final = 60.0
_AGENT_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 20.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory a process has, and had at most."""

    now_bytes: int
    max_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Memory":
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, most = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return cls(now_bytes=now, max_bytes=most)


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves."""

    pid: int
    url: str
    key: str = ""

    def memory(self) -> Memory:
        return Memory.of(self.pid)


_running = msgspec.json.Decoder(Running)


@asynccontextmanager
async def run(module: str, *arguments: str) -> AsyncIterator[Running]:
    """Run a module that says where it serves and ends when its input does."""
    program = (sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline()
        yield _running.decode(line)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def run_agent_server(folder: Path) -> AsyncIterator[Running]:
    """Run a real agent server, which wants no key, in a folder of its own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    values = {"python": sys.executable, "port.agent": str(port)}
    program = [_filled(word, values) for word in DEFAULT_SPEC.command or ()]
    home = folder / "home"
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd=home,
        env={**DEFAULT_SPEC.env, "HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath},
        stdout=DEVNULL,
        stderr=DEVNULL,
    )

    async def is_up() -> bool:
        assert process.returncode is None, "it does not start"
        async with session() as client:
            try:
                async with client.get(f"{url}/ready") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

    try:
        await until(is_up, time_limit=_AGENT_SECONDS)
        yield Running(pid=process.pid, url=url)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


async def serve_until_told(running: Running) -> None:
    """Say where this process serves and wait for the end of its input."""
    sys.stdout.write(msgspec.json.encode(running).decode() + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[Client]:
    client = Client(running.url, running.key)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def feeder_of(client: Client) -> AsyncIterator[Feeder]:
    """Start a conversation in which nothing happens but what is sent."""
    await client.save_settings()
    conversation_id = await client.start_conversation(None)

    async def has_told() -> bool:
        return len(await client.events(conversation_id)) > 0

    await until(has_told)
    found = await client.conversation(conversation_id)
    sandbox = Client(client.base_url, found["session_api_key"])
    try:
        yield Feeder(conversation_id=conversation_id, sandbox=sandbox)
    finally:
        await sandbox.close()
