"""Two sandboxes of two users, one of which takes every port of the other's that it can."""

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process.specs import GUEST

from agentsvc.accounts.keys import Role
from agentsvc.base.values import monotonic
from agentsvc.config.schema import Config
from agentsvc.http.keys import BACKENDS, SANDBOXES
from agentsvc.plugin.backend import Phase
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.live.nginx import free_port
from tests.service import Client, Service

TAKER = Path(__file__).with_name("port_taker.py")
AGENT = """
import http.server, sys, time
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"agent")
time.sleep(float(sys.argv[2]))
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""
PASSED = """
import http.server, os, socket, sys, time
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"agent")
time.sleep(1.5)
number = os.environ.get("AGENTSVC_LISTENER")
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Agent, number is None)
if number is not None:
    server.socket = socket.socket(fileno=int(number))
    server.server_activate()
server.serve_forever()
"""
COOKIE = "visitor=of-the-owner"
PORTS: list[dict[str, Any]] = [{"name": "agent"}, {"name": "worker_1", "awaited": False}]
NETWORKS = pytest.mark.parametrize("table", [{}, {"network": "host"}], ids=["default", "host"])


@asynccontextmanager
async def serving(directory: Path, **table: Any) -> AsyncIterator[Service]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bubblewrap")
    readable = [str(TAKER.parent)]
    numbers = [free_port(), free_port()]
    ports = [{**port, "number": number} for port, number in zip(PORTS, numbers, strict=True)]
    command = ["{python}", "-I", str(TAKER), "{port.agent}", "told", *map(str, numbers)]
    agent = ["{python}", "-Ic", AGENT, "{port.agent}"]
    passed = ["{python}", "-Ic", PASSED, "--import-modules", GUEST, "--port", "{port.agent}"]
    values = {
        "backends": {"process": {"zygote": "false", "readable": readable, **table}},
        "specs": {
            "taker": {"id": "taker", "command": command, "ports": PORTS},
            "quick": {"id": "quick", "command": [*agent, "0"], "ports": ports},
            "passed": {"id": "passed", "command": passed, "ports": ports},
            "slow": {"id": "slow", "command": [*agent, "1.5"], "ports": ports},
        },
    }
    config = msgspec.convert(values, Config)
    service = Service(directory / "data", config, lambda: PluginHost.load(dirs=[], disable=[]))
    await service.start()
    try:
        yield service
    finally:
        backend = service.app[BACKENDS].get("process")
        for found in await backend.scan():
            await backend.delete(found.handle)
        await service.close()


async def begin(client: Client, spec: str) -> str:
    answer = await client.post(f"/api/v1/sandboxes?sandbox_spec_id={spec}")
    assert answer.status == 200, answer.text
    return str(answer.json()["id"])


async def told_to(service: Service, sandbox_id: str) -> str:
    """Return what came to the one that takes ports."""
    file = service.data_dir / "backends" / "process" / sandbox_id / "agent" / "told"
    return await asyncio.to_thread(lambda: file.read_text() if file.exists() else "")


async def reach(client: Client, sandbox_id: str, port: str) -> tuple[int, str]:
    path = f"/sandboxes/{sandbox_id}/{port}/"
    answer = await client.get(path, headers={"Cookie": COOKIE})
    return answer.status, answer.text


@NETWORKS
async def test_who_listens_first_at_the_port_of_anothers_agent_is_told_nothing(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    async with serving(tmp_path, **table) as service:
        mine = await service.make_client("attacker", Role.MEMBER)
        theirs = await service.make_client("owner", Role.MEMBER)
        taker = await begin(mine, "taker")
        await mine.wait_for_sandbox(taker, "RUNNING")
        owners = await begin(theirs, "slow")
        status, text = 0, ""
        end = monotonic() + 5
        while status != 200 and monotonic() < end:
            await asyncio.sleep(0.05)
            status, text = await reach(theirs, owners, "agent")
        found = await service.app[SANDBOXES].find_any(owners)
        assert found is not None
        said = await told_to(service, taker)
        assert text != "stolen"
        assert found.session_key.reveal() not in said
        assert COOKIE not in said
        if not table:
            assert (status, text) == (200, "agent")
            assert "TOOK" not in said


@NETWORKS
async def test_who_takes_a_worker_port_of_anothers_sandbox_is_told_nothing(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    async with serving(tmp_path, **table) as service:
        mine = await service.make_client("attacker", Role.MEMBER)
        theirs = await service.make_client("owner", Role.MEMBER)
        owners = await begin(theirs, "quick")
        await theirs.wait_for_sandbox(owners, "RUNNING")
        taker = await begin(mine, "taker")
        await mine.wait_for_sandbox(taker, "RUNNING")
        await asyncio.sleep(1)
        assert await reach(theirs, owners, "agent") == (200, "agent")
        status, text = await reach(theirs, owners, "worker_1")
        assert status == 502
        said = await told_to(service, taker)
        assert COOKIE not in said
        if table:
            assert "does not belong to the sandbox" in text
            assert "TOOK" in said
        else:
            assert "TOOK" not in said


async def test_nobody_takes_the_port_of_an_agent_that_is_passed_its_socket(tmp_path: Path) -> None:
    async with serving(tmp_path, network="host") as service:
        mine = await service.make_client("attacker", Role.MEMBER)
        theirs = await service.make_client("owner", Role.MEMBER)
        taker = await begin(mine, "taker")
        await mine.wait_for_sandbox(taker, "RUNNING")
        owners = await begin(theirs, "passed")
        refused = (await tries_at_agent(service, taker, 1))[-1]
        found = await service.app[SANDBOXES].find_any(owners)
        assert found is not None
        assert found.phase is not Phase.RUNNING
        await theirs.wait_for_sandbox(owners, "RUNNING")
        assert await reach(theirs, owners, "agent") == (200, "agent")
        before = len(await tries_at_agent(service, taker, 1))
        tries = await tries_at_agent(service, taker, before + 8)
        assert set(tries) == {refused}
        assert refused.startswith("REFUSED ")
        assert refused.endswith(f" {errno.EADDRINUSE}")


async def tries_at_agent(service: Service, taker: str, count: int) -> list[str]:
    """Return what came of each try to take the port of the agent, once there are so many."""
    port = str(service.config.specs["passed"].ports[0].number)
    while True:
        lines = (await told_to(service, taker)).splitlines()
        found = [line for line in lines if line.split()[1:2] == [port]]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.02)
