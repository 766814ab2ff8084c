"""A running server whose disk is full, or whose clients are slow."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.disks import Disk, mounted
from tests.live.installation import Installation, eventually
from tests.service import Answer

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

SECRETS = "/api/v1/secrets"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path / "data") as disk:
        yield disk


@pytest_asyncio.fixture(loop_scope="session")
async def on_disk(disk: Disk, tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Installation]:
    """Return a server with its data on the small disk."""
    installation = Installation(tmp_path, model, launcher=disk.launcher)
    await installation.start()
    yield installation
    await installation.close()


async def test_a_server_whose_disk_is_full_says_so_loses_nothing_and_goes_on(
    on_disk: Installation, disk: Disk
) -> None:
    client = on_disk.client()
    await client.save_settings()
    stored, refused = [], []
    disk.fill()
    for number in range(400):
        answer = await add_secret(client, f"S{number}")
        if answer.status == 507:
            check_refusal(answer)
            refused.append(f"S{number}")
        else:
            assert answer.status == 201, answer.text
            stored.append(f"S{number}")
        if len(refused) == 5:
            break
    assert len(refused) == 5
    body = {"initial_message": {"content": [{"type": "text", "text": "x" * 20_000}]}}
    check_refusal(await client.post("/api/v1/app-conversations", json=body))
    check_refusal(await client.post("/api/v1/sandboxes"))
    assert (await client.get("/api/settings")).status == 200
    assert (await client.get("/alive")).status == 200
    assert await secrets_of(client) == set(stored)

    disk.make_room()
    for number in range(400, 405):
        assert (await add_secret(client, f"S{number}")).status == 201
        stored.append(f"S{number}")
    assert await secrets_of(client) == set(stored)
    await on_disk.restart()
    assert await secrets_of(client) == set(stored)
    assert (await client.get("/api/v1/app-conversations/count")).json() == 0
    assert (await client.get("/api/v1/sandboxes/search")).json()["items"] == []


async def add_secret(client: LiveClient, name: str) -> Answer:
    return await client.post(SECRETS, json={"name": name, "value": "v" * 10_000})


async def secrets_of(client: LiveClient) -> set[str]:
    """Return the names of the secrets that are stored."""
    found: set[str] = set()
    page_id = ""
    while True:
        page = (await client.get(f"{SECRETS}/search{page_id}")).json()
        found |= {one["name"] for one in page["items"]}
        if page["next_page_id"] is None:
            return found
        page_id = f"?page_id={page['next_page_id']}"


def check_refusal(answer: Answer) -> None:
    assert answer.status == 507, answer.text
    assert answer.json()["code"] == "disk_full"
    assert "Retry-After" not in answer.headers


async def test_slow_clients_are_let_go_and_do_not_hold_up_others(
    make_installation: MakeInstallation,
) -> None:
    own = await make_installation(
        AGENTSVC_SERVER__IDLE_SECONDS="10", AGENTSVC_SERVER__STALL_SECONDS="5"
    )
    client = own.client()
    head = (
        f"GET /api/v1/settings/agent-schema HTTP/1.1\r\nHost: x\r\nX-Access-Token: {client.key}\r\n"
    )
    assert (await client.get("/api/settings")).status == 200
    files, memory = own.open_files(), own.memory_bytes
    async with Crowd(own) as crowd:
        for _ in range(50):
            await crowd.send(b"")
            await crowd.send(head.encode())
            # More than the network holds, and nobody takes it.
            await crowd.send(f"{head}\r\n".encode() * 400)
        await eventually(lambda: own.open_files() > files + 50, "they have come in")
        while crowd.is_there():
            assert (await client.get("/api/settings")).status == 200
            crowd.drip()
            await asyncio.sleep(0.05)
        await eventually(lambda: own.open_files() <= files + 5, "the connections are closed")
    assert own.memory_bytes < memory + 300 * 1024 * 1024


class Crowd:
    """Many connections whose clients send what they like and read nothing."""

    def __init__(self, installation: Installation) -> None:
        self._port = int(installation.url.rpartition(":")[2])
        self._transports: list[asyncio.Transport] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for transport in self._transports:
            transport.abort()

    async def send(self, data: bytes) -> None:
        """Connect and send something."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(Deaf, "127.0.0.1", self._port)
        self._transports.append(transport)
        transport.write(data)

    def drip(self) -> None:
        """Send one more byte on each connection."""
        for transport in self._transports:
            if not transport.is_closing():
                transport.write(b"x")

    def is_there(self) -> bool:
        """Say whether the server still has any of them."""
        return not all(transport.is_closing() for transport in self._transports)


class Deaf(asyncio.Protocol):
    """A client that takes nothing from its socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
