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
from process import tree, uplink
from process.backend import ProcessBackend
from process.inspection import MACHINES_NETWORK, OWN_NETWORK, PROXIED_NETWORK
from process.settings import OpenNetwork, ProcessConfig
from process.specs import DEFAULT_SPEC

from agentsvc.plugin.backend import Handle, Phase
from tests.live.cables import Cable
from tests.plugin.egress.rig import open_target
from tests.plugins.process.rig import BOTH_WAYS, CoreRig, core_rig, is_there, no_save, until

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


BY_DEVICE = """
import socket, sys
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as link:
        link.settimeout(1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        try:
            link.connect((sys.argv[1], int(sys.argv[2])))
            link.send(b"hello")
            print("sent")
        except OSError as exc:
            print(exc)
"""
FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
except urllib.error.HTTPError as exc:
    print(exc.code)
except OSError as exc:
    print("nothing:", exc)
"""


@asynccontextmanager
async def in_own_network(directory: Path, callback: str = "") -> AsyncIterator[CoreRig]:
    async with core_rig(
        directory, callback=callback, use_bubblewrap=True, path="/usr/bin:/bin"
    ) as bench:
        yield bench
        await bench.backend.close()


async def connect(bench: CoreRig, handle: Handle, host: str, port: int) -> str:
    return await bench.run(handle, "python3", "-Ic", CONNECT, host, str(port))


async def test_it_reaches_nothing_of_this_machine_but_a_resolver(tmp_path: Path) -> None:
    mine = uplink.own_addresses()[0]
    with socket.create_server(("", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        async with in_own_network(tmp_path) as bench:
            handle = await bench.create("sleep", "100")
            for address in ("127.0.0.1", mine, "10.0.2.2"):
                assert (await connect(bench, handle, address, port)).startswith("nothing:")
            for told in ("169.254.169.254", "100.100.100.200", "168.63.129.16"):
                assert "No route to host" in await connect(bench, handle, told, 80)
            resolver = await bench.run(handle, "cat", "/etc/resolv.conf")
            assert resolver.splitlines()[0] == f"nameserver {uplink.NAMESERVER}"
            route = await bench.run(handle, "cat", "/proc/net/route")
            assert [line.split()[0] for line in route.splitlines()].count("tap0") == 2
            found = await bench.wait(handle, Phase.RUNNING)
            assert found.facts["network"] == "one of its own"


async def test_by_its_device_it_reaches_no_loopback_interface(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        port = listener.getsockname()[1]
        receiver.bind(("127.0.0.1", port))
        for one in (listener, receiver):
            one.setblocking(False)
        async with in_own_network(tmp_path) as bench:
            handle = await bench.create("sleep", "100")
            said = await bench.run(handle, "python3", "-Ic", BY_DEVICE, "127.0.0.1", str(port))
            assert said.splitlines() == ["sent", "timed out"]
            with pytest.raises(BlockingIOError):
                receiver.recv(100)
            with pytest.raises(BlockingIOError):
                listener.accept()


NEIGHBORS = """
import contextlib, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
    for last in range(1, 51):
        for network in ("10.0.2", "169.254.7"):
            with contextlib.suppress(OSError):
                link.sendto(b"x", (f"{network}.{last}", 9))
states = []
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
    kernel.send(struct.pack("=IHHIIB3xIHBB", 28, 30, 0x301, 1, 0, socket.AF_INET, 0, 0, 0, 0))
    kind = 30
    while kind != 3:
        data = kernel.recv(65536)
        while data and kind != 3:
            size, kind = struct.unpack_from("=IH", data)
            states += struct.unpack_from("=H", data, 24) if kind == 28 else ()
            data = data[size:]
print(states.count(0x01), states.count(0x80))
"""


async def test_who_is_asked_for_on_its_link_and_not_there_takes_no_room_of_the_machines(
    tmp_path: Path,
) -> None:
    """The kernel keeps those that wait for an answer of all networks in one table of 1,024."""
    async with in_own_network(tmp_path) as bench:
        handle = await bench.create("sleep", "100")
        said = await bench.run(handle, "python3", "-Ic", NEIGHBORS)
    assert said == "0 2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay a cable")
async def test_it_does_not_reach_addresses_that_this_machine_gets_later(tmp_path: Path) -> None:
    async with in_own_network(tmp_path) as bench:
        handle = await bench.create("sleep", "100")
        with apart() as network, Cable(network, 3) as cable, served_at(cable.near):
            async with asyncio.timeout(30):
                while "No route" not in await connect(bench, handle, cable.near, 8000):
                    pass


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


def test_what_carries_it_leaves_no_file_open_where_there_is_no_process_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = os.fork
    forks: list[int] = []

    def fork_once() -> int:
        if forks:
            raise BlockingIOError
        forks.append(0)
        return fork()

    def open_files() -> set[int]:
        return {int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists()}

    argv = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            pytest.skip("there is no other network here")
        before = open_files()
        link = uplink.OutboundLink("none", holder.pid, 0)
        its_own = open_files() - before
        monkeypatch.setattr(os, "fork", fork_once)
        with pytest.raises(BlockingIOError):
            link.start()
        monkeypatch.undo()
        assert open_files() - before == its_own
        for number in its_own:
            os.close(number)
        holder.communicate()


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


@BOTH_WAYS
@pytest.mark.parametrize("is_held", [True, False], ids=["with its shim", "without"])
async def test_what_carries_it_ends_where_the_rest_was_killed_while_paused(
    tmp_path: Path, use_cgroups: bool, is_held: bool
) -> None:
    async with core_rig(
        tmp_path, use_bubblewrap=True, path="/usr/bin:/bin", use_cgroups=use_cgroups
    ) as bench:
        handle = await bench.create("sleep", "100")
        await bench.wait(handle, Phase.RUNNING)
        shim, command = (tuple(bench.state(handle)[name]) for name in ("shim", "command"))
        (carrier,) = filter(None, map(tree.look_up, carriers_below(shim[0])))
        await bench.backend.pause(handle)
        for pid, _ in (command, *(() if is_held else (shim,))):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not tree.is_alive(command))
        assert (await bench.backend.inspect(handle)).phase is Phase.FAILED
        async with asyncio.timeout(10):
            await until(lambda: not any(map(tree.is_alive, (shim, carrier.identity))))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay a cable")
async def test_without_slirp4netns_a_proxy_leads_out_and_never_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with apart() as network, Cable(network, 3) as cable, served_at(cable.far, network):
        async with open_target(ANSWER) as model, in_own_network(tmp_path) as bench:
            with monkeypatch.context() as patched:
                patched.setenv("PATH", str(tmp_path))
                facts = (await bench.backend.probe()).facts
                handle = await bench.create("sleep", "100", models=(f"localhost:{model.port}",))
            assert (await bench.wait(handle, Phase.RUNNING)).facts["network"] == PROXIED_NETWORK
            assert "install the package `slirp4netns`" in facts["open network"]
            async with asyncio.timeout(30):
                while await fetch(bench, handle, f"http://{cable.far}:8000/") != "200\n":
                    pass
            for mine in (cable.near, "127.0.0.2", "0.0.0.0", "[::]", "169.254.169.254"):  # noqa: S104  # asked for
                assert await fetch(bench, handle, f"http://{mine}:{model.port}/") == "403\n"
            assert (await connect(bench, handle, cable.far, 8000)).startswith("nothing:")
            assert await fetch(bench, handle, f"http://localhost:{model.port}/") == "200\n"


async def test_the_network_of_the_machine_is_had_by_choice_only_and_said_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True, network=OpenNetwork.HOST) as bench:
        handle = await bench.create("sleep", "100")
        assert "share the network of this machine" in caplog.text
        assert (await bench.backend.probe()).facts["open network"] == MACHINES_NETWORK
        assert (await bench.wait(handle, Phase.RUNNING)).facts["network"] == MACHINES_NETWORK
        assert namespace(bench, handle) == here()
        # By default what runs keeps what it has until it is started again.
        other = ProcessBackend(ProcessConfig(zygote=False), bench.context())
        await other.open()
        assert (await other.inspect(handle)).facts["network"] == MACHINES_NETWORK
        await other.stop(handle)
        await other.restart(bench.orders[handle.sandbox_id], handle, no_save)
        assert (await other.inspect(handle)).facts["network"] == OWN_NETWORK
        assert namespace(bench, handle) != here()
        await other.close()


async def test_who_has_a_model_on_this_machine_gets_no_sandbox_that_was_there_before(
    tmp_path: Path,
) -> None:
    near = msgspec.structs.replace(DEFAULT_SPEC, models=("localhost:11434",))
    far = msgspec.structs.replace(DEFAULT_SPEC, models=("models.example.org:443",))
    async with in_own_network(tmp_path) as bench:
        assert bench.backend.why_no_pool(near) == "localhost:11434 is on this machine"
        assert [bench.backend.why_no_pool(spec) for spec in (far, DEFAULT_SPEC)] == ["", ""]


async def fetch(bench: CoreRig, handle: Handle, url: str) -> str:
    return await bench.run(handle, "python3", "-Ic", FETCH, url)


def here() -> Path:
    return Path("/proc/self/ns/net").readlink()


def namespace(bench: CoreRig, handle: Handle) -> Path:
    inside = [
        one.pid for one in bench.processes(handle) if name_of(str(one.pid)).endswith("inside")
    ]
    return Path(f"/proc/{inside[0]}/ns/net").readlink()


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
def served_at(address: str, network: Apart | None = None) -> Iterator[None]:
    inside = ["nsenter", "--target", str(network.keeper), "--net"] if network else []
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
    """Return the name of a process, or nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
