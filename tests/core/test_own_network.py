"""Open sandboxes with a network of their own: what they reach, and what does not reach them."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from agentsvc.backend import Handle, Network, Phase
from agentsvc.backends import uplink
from agentsvc.errors import OrderRejected
from tests.core.bench import Bench, is_there, on_bench, until
from tests.core.egress.rig import open_target
from tests.live.cables import Cable

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
    pytest.mark.skipif(bool(uplink.why_not()), reason=uplink.why_not()),
]

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as link:
        link.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print(link.recv(12).decode())
except OSError as exc:
    print("nothing:", exc)
"""


@asynccontextmanager
async def in_own_network(directory: Path, callback: str = "") -> AsyncIterator[Bench]:
    async with on_bench(
        directory, callback=callback, use_bubblewrap=True, own_network=True
    ) as bench:
        yield bench
        await bench.backend.close()


async def connect(bench: Bench, handle: Handle, host: str, port: int) -> str:
    return await bench.run(handle, "python3", "-Ic", CONNECT, host, str(port))


async def test_it_reaches_nothing_of_this_machine_but_a_resolver(tmp_path: Path) -> None:
    mine = uplink.own_addresses()[0]
    with socket.create_server(("", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        async with in_own_network(tmp_path) as bench:
            handle = await bench.create("sleep", "100")
            for address in ("127.0.0.1", mine, "10.0.2.2"):
                assert (await connect(bench, handle, address, port)).startswith("nothing:")
            resolver = await bench.run(handle, "cat", "/etc/resolv.conf")
            assert resolver.splitlines()[0] == f"nameserver {uplink.NAMESERVER}"
            route = await bench.run(handle, "cat", "/proc/net/route")
            assert [line.split()[0] for line in route.splitlines()].count("tap0") == 2
            found = await bench.wait(handle, Phase.RUNNING)
            assert found.facts["network"] == "one of its own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay a cable")
async def test_it_reaches_what_is_beyond_this_machine(tmp_path: Path) -> None:
    with apart() as network, Cable(network, 3) as cable, served_at(cable.far, network):
        async with in_own_network(tmp_path) as bench:
            handle = await bench.create("sleep", "100")
            async with asyncio.timeout(30):
                while await connect(bench, handle, cable.far, 8000) != "HTTP/1.0 200\n":
                    pass
            assert (await connect(bench, handle, cable.near, 8000)).startswith("nothing:")


async def test_the_server_and_models_on_this_machine_are_where_they_always_are(
    tmp_path: Path,
) -> None:
    async with (
        open_target(ANSWER) as server,
        open_target(ANSWER) as model,
        open_target(ANSWER) as other,
        in_own_network(tmp_path, f"http://127.0.0.1:{server.port}") as bench,
    ):
        handle = await bench.create("sleep", "100", models=(f"127.0.0.1:{model.port}",))
        for target in (server, model):
            assert await connect(bench, handle, "127.0.0.1", target.port) == "HTTP/1.1 200\n"
        assert (await connect(bench, handle, "127.0.0.1", other.port)).startswith("nothing:")
        assert other.heads == []
        assert "proxy" not in (await bench.run(handle, "env")).lower()


async def test_what_carries_it_is_begun_again_and_ends_with_the_sandbox(tmp_path: Path) -> None:
    async with in_own_network(tmp_path) as bench:
        handle = await bench.create("sleep", "100")
        shim = bench.state(handle)["shim"][0]
        first = carriers_below(shim)
        assert len(first) == 1
        os.kill(first[0], signal.SIGKILL)
        async with asyncio.timeout(30):
            await until(lambda: set(carriers_below(shim)) - {*first})
            (second,) = carriers_below(shim)
            while "tap0" not in await bench.run(handle, "cat", "/proc/net/route"):
                pass
        await bench.backend.delete(handle)
        assert not is_there(f"/proc/{second}")


async def test_it_is_refused_where_nothing_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_own_network(tmp_path) as bench:
        handle = await bench.create("sleep", "100")
        await bench.backend.stop(handle)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(OrderRejected, match="install the package `slirp4netns`"):
            await bench.create("sleep", "100")
        await bench.create("sleep", "100", network=Network.NONE)


class Apart(msgspec.Struct, frozen=True):
    """A network of its own, and the process that keeps it."""

    keeper: int


@contextmanager
def apart() -> Iterator[Apart]:
    with subprocess.Popen(["unshare", "--net", "sleep", "600"]) as keeper:
        try:
            while name_of(str(keeper.pid)) != "sleep":
                time.sleep(0.01)
            yield Apart(keeper.pid)
        finally:
            keeper.kill()


@contextmanager
def served_at(address: str, network: Apart) -> Iterator[None]:
    inside = ["nsenter", "--target", str(network.keeper), "--net"]
    command = [sys.executable, "-m", "http.server", "--bind", address, "8000"]
    with subprocess.Popen([*inside, *command], stderr=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


def carriers_below(shim: int) -> list[int]:
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    return [int(pid) for pid in children if name_of(pid) == uplink.PROGRAM]


def name_of(pid: str) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
