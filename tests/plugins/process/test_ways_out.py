"""Ways out of a sandbox without the machine's network: what is let through, seen from inside."""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from process.backend import ProcessBackend
from process.proxy_sockets import ProxySockets
from process.sandbox_directory import OutboundNetwork, SandboxDirectory, new_record
from process.users import Users

from agentsvc.base.errors import BackendUnavailable, OrderRejected
from agentsvc.base.values import new_id
from agentsvc.plugin.backend import Handle, Network, Order, Phase
from tests.plugin.egress.rig import Target, open_target
from tests.plugins.process.rig import CoreRig, core_rig, no_save

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
ASK = """
import http.client, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
by_proxy = len(sys.argv) > 2
link = http.client.HTTPConnection(*(("127.0.0.1", 3128) if by_proxy else (url.netloc,)), timeout=20)
try:
    link.request("GET", sys.argv[1] if by_proxy else "/")
    answer = link.getresponse()
    print(answer.status, answer.read().decode())
except OSError as exc:
    print("nothing:", exc)
"""
PROXY = "by the proxy"
REFUSES_FILES = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 16)
"""Whether the kernel can refuse to pass open files through a unix socket."""


@asynccontextmanager
async def calling_back(directory: Path, url: str) -> AsyncIterator[CoreRig]:
    """Open a bench whose sandboxes are told that the server is at the URL."""
    async with core_rig(directory, callback=url, use_bubblewrap=True) as bench:
        yield bench
        await bench.backend.close()


async def ask(bench: CoreRig, handle: Handle, *arguments: str) -> str:
    result = await bench.backend.execute(
        handle, ["python3", "-Ic", ASK, *arguments], env={}, time_limit=40, max_output=10_000
    )
    assert result.exit_code == 0, result
    return result.stdout.decode()


def held(network: Network, target: Target, *listed: str, **fields: Any) -> dict[str, Any]:
    hosts = tuple(text.replace("PORT", str(target.port)) for text in listed)
    return {"network": network, "allow_hosts": hosts, **fields}


async def test_what_keeps_sandboxes_from_a_way_out_is_said_with_what_helps(tmp_path: Path) -> None:
    async with calling_back(tmp_path, "http://[::1]:4000") as bench:
        advice = (await bench.backend.probe()).advice
    [found] = [one for one in advice if one.subject == "network"]
    assert found.text.endswith("`internal_url` is not at 127.0.0.1 or localhost: ::1:4000")
    assert (
        found.remedy == "set server.internal_url to http://127.0.0.1 and the port, and listen there"
    )


async def test_a_listed_host_is_reached_through_the_proxy_and_no_other(tmp_path: Path) -> None:
    async with calling_back(tmp_path, "") as bench, open_target(ANSWER) as target:
        handle = await bench.create(
            "sleep", "100", **held(Network.ALLOWLIST, target, "127.0.0.1:PORT")
        )
        url = f"http://127.0.0.1:{target.port}/"
        assert await ask(bench, handle, url, PROXY) == "200 hello\n"
        assert (await ask(bench, handle, url)).startswith("nothing:")
        refused = await ask(bench, handle, "http://169.254.169.254/", PROXY)
        assert refused.startswith("403 ")
        assert "`allow_hosts`" in refused
        assert (await bench.run(handle, "printenv", "https_proxy")) == "http://127.0.0.1:3128\n"


async def test_without_a_network_the_server_and_the_model_are_where_they_always_are(
    tmp_path: Path,
) -> None:
    async with (
        open_target(ANSWER) as server,
        open_target(ANSWER) as model,
        open_target(ANSWER) as other,
        calling_back(tmp_path, f"http://127.0.0.1:{server.port}") as bench,
    ):
        fields = held(Network.NONE, other, reaches=(f"127.0.0.1:{model.port}",))
        handle = await bench.create("sleep", "100", **fields)
        for target in (server, model):
            url = f"http://127.0.0.1:{target.port}/"
            assert await ask(bench, handle, url) == "200 hello\n"
            assert await ask(bench, handle, url, PROXY) == "200 hello\n"
        refused = await ask(bench, handle, f"http://127.0.0.1:{other.port}/", PROXY)
        assert '`network = "none"`' in refused
        assert other.heads == []


async def test_a_model_at_a_port_that_cannot_be_had_inside_costs_nothing_else(
    tmp_path: Path,
) -> None:
    async with open_target(ANSWER) as model, calling_back(tmp_path, "") as bench:
        odd = ("127.0.0.1:80", "127.0.0.1:3128", f"127.0.0.1:{model.port}")
        handle = await bench.create("sleep", "100", network=Network.NONE, reaches=odd)
        assert await ask(bench, handle, f"http://127.0.0.1:{model.port}/") == "200 hello\n"


FIND_DOOR = """
import os, pathlib, re, socket
doors = pathlib.Path("/run/agentsvc")
near = socket.create_connection(("127.0.0.1", 3128))
near.sendall(b"GET / ")
bound = re.findall(r"/\\S+$", pathlib.Path("/proc/net/unix").read_text(), re.MULTILINE)
found = []
for name in {"proxy", *(os.path.basename(one) for one in bound)}:
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(doors / name))
            found.append(f"connected to {name}")
        except OSError:
            pass
for look in (lambda: os.listdir(doors), lambda: doors.chmod(0o700),
             lambda: os.readlink("/proc/1/fd/0"), lambda: open("/proc/1/mem")):
    try:
        found.append(str(look()))
    except OSError:
        pass
print(found)
"""


@pytest.mark.parametrize("is_apart", [True, False])
async def test_nothing_inside_gets_to_the_door_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_apart: bool
) -> None:
    """An open file that is sent there is closed by the server, which may take as long as its sender likes."""
    if not is_apart:
        monkeypatch.setattr(Users, "assign", lambda *_: 0)
    async with calling_back(tmp_path, "http://127.0.0.1:9") as bench:
        handle = await bench.create("sleep", "100", network=Network.NONE)
        record = SandboxDirectory(directory=bench.directory(handle)).read_record()
        assert record is not None
        if REFUSES_FILES:
            directory = os.open(bench.directory(handle) / "doors", os.O_PATH)
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(f"/proc/self/fd/{directory}/{record.door}")
                with pytest.raises(PermissionError):
                    socket.send_fds(link, [b"GET / "], [0])
            os.close(directory)
        assert await bench.run(handle, "python3", "-Ic", FIND_DOOR) == "[]\n"


async def test_a_restarted_server_opens_the_door_again(tmp_path: Path) -> None:
    async with (
        open_target(ANSWER) as server,
        calling_back(tmp_path, f"http://127.0.0.1:{server.port}") as bench,
    ):
        handle = await bench.create("sleep", "100", network=Network.NONE)
        url = f"http://127.0.0.1:{server.port}/"
        await bench.backend.close()
        assert (await ask(bench, handle, url)).startswith("nothing:")
        bench.backend = ProcessBackend(bench.backend.config, bench.backend.context)
        await bench.backend.open()
        assert await ask(bench, handle, url) == "200 hello\n"


async def test_a_door_that_could_not_be_opened_is_opened_by_the_next_attempt(
    tmp_path: Path,
) -> None:
    async with open_target(ANSWER) as model, calling_back(tmp_path, "") as bench:
        reaches = (f"127.0.0.1:{model.port}",)
        order = Order(
            sandbox_id=new_id(), command=("sleep", "100"), network=Network.NONE, reaches=reaches
        )
        in_the_way = bench.state_dir / order.sandbox_id / "doors"
        in_the_way.parent.mkdir()
        in_the_way.touch()
        with pytest.raises(BackendUnavailable):
            await bench.backend.create(order, no_save)
        in_the_way.unlink()
        handle = await bench.backend.create(order, no_save)
        await bench.wait(handle, Phase.RUNNING)
        assert await ask(bench, handle, f"http://127.0.0.1:{model.port}/") == "200 hello\n"


async def test_a_door_whose_opening_is_cancelled_at_any_moment_is_not_left_open(
    tmp_path: Path,
) -> None:
    doors = ProxySockets()
    for moment in itertools.count():
        order = Order(sandbox_id=new_id(), network=Network.NONE)
        place = SandboxDirectory(directory=tmp_path / order.sandbox_id)
        record = new_record("bench", order, tmp_path).connected(OutboundNetwork.HOST, "")
        place.make(record)
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(doors.open(place, record))
            for _ in range(moment):
                await asyncio.sleep(0)
            opening.cancel()
        await doors.close(order.sandbox_id)
        # Nothing that goes on may be in the way of its removal, bring it back, or serve.
        place.remove()
        assert doors_held() == []
        assert not place.directory.exists()
        if not opening.cancelled():
            break
    assert moment > 2
    await doors.close_all()


def doors_held() -> list[str]:
    """Name the sockets of doors that this process has."""
    own = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(link.readlink()))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [line[7] for line in lines if line[7:] and line[7].endswith("/proxy")
            and f"socket:[{line[6]}]" in own]  # fmt: skip


async def test_a_server_whose_sandbox_has_a_door_that_cannot_be_opened_has_the_others(
    tmp_path: Path,
) -> None:
    async with open_target(ANSWER) as model, calling_back(tmp_path, "") as bench:
        reaches = (f"127.0.0.1:{model.port}",)
        url = f"http://127.0.0.1:{model.port}/"
        stuck, other = [
            await bench.create("sleep", "100", network=Network.NONE, reaches=reaches)
            for _ in range(2)
        ]
        await bench.backend.close()
        doors = bench.directory(stuck) / "doors"
        aside = doors.rename(doors.with_name("aside"))
        doors.touch()
        bench.backend = ProcessBackend(bench.backend.config, bench.backend.context)
        await bench.backend.open()
        assert await ask(bench, other, url) == "200 hello\n"
        assert (await bench.wait(other, Phase.RUNNING)).reason == ""
        reason = (await bench.wait(stuck, Phase.RUNNING)).reason
        assert reason == "its proxy socket cannot be opened: File exists"
        # As soon as it can be opened, it is.
        doors.unlink()
        aside.rename(doors)
        assert (await bench.wait(stuck, Phase.RUNNING)).reason == ""
        assert await ask(bench, stuck, url) == "200 hello\n"


async def test_programs_keep_finding_what_runs_in_their_own_sandbox(tmp_path: Path) -> None:
    async with calling_back(tmp_path, "") as bench:
        handle = await bench.serve(network=Network.ALLOWLIST, allow_hosts=("pypi.org",))
        port = bench.state(handle)["ports"]["web"]
        fetch = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).status)"
        url = f"http://localhost:{port}/"
        assert await bench.run(handle, "python3", "-Ic", fetch, url) == "200\n"


@pytest.mark.parametrize("entry", ["http://pypi.org", "*.org", "10.0.0.0/99", "a b"])
async def test_an_entry_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, entry: str) -> None:
    async with calling_back(tmp_path, "") as bench:
        order = Order(
            sandbox_id=new_id(),
            command=("true",),
            network=Network.ALLOWLIST,
            allow_hosts=("pypi.org", entry),
        )
        with pytest.raises(OrderRejected) as raised:
            await bench.backend.create(order, no_save)
        assert f"`{entry}` cannot be allowed" in raised.value.message


@pytest.mark.parametrize("network", [Network.NONE, Network.ALLOWLIST])
async def test_without_bubblewrap_a_network_is_refused_by_name(
    tmp_path: Path, network: Network
) -> None:
    async with core_rig(tmp_path, use_bubblewrap=False) as bench:
        with pytest.raises(OrderRejected, match=f"cannot enforce the network `{network}`"):
            await bench.create("true", network=network)


async def test_connections_through_the_door_are_bounded(tmp_path: Path) -> None:
    hold = (
        "import socket, time\n"
        "links = []\n"
        "for _ in range(700):\n"
        "    link = socket.create_connection(('127.0.0.1', 3128))\n"
        "    link.settimeout(30)\n"
        "    links.append(link)\n"
        "answers = [link.recv(12) for link in links[300:]]\n"
        "print(len(links), sum(answer in (b'', b'HTTP/1.1 503') for answer in answers))\n"
    )
    async with calling_back(tmp_path, "") as bench:
        handle = await bench.create("sleep", "100", network=Network.NONE)
        result = await bench.backend.execute(
            handle, ["python3", "-Ic", hold], env={}, time_limit=50, max_output=10_000
        )
        assert result.stdout == b"700 400\n", result
        # Once they are gone there is room again.
        async with asyncio.timeout(40):
            while not (await ask(bench, handle, "http://example.org/", PROXY)).startswith("403"):
                pass
