"""What sandboxes use: measured now and then, and shown without asking anybody."""

import asyncio
import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from process import meter
from process.sandbox_directory import State
from process.tree import boot_id, look_up

from agentsvc.plugin.backend import Usage
from tests.service import WAIT_SECONDS, Client, Service
from tests.troubles import TroubledWorld, reconfigure


async def shown(client: Client, sandbox_id: str, *, has_usage: bool) -> dict[str, Any]:
    """Return a sandbox once its use is shown, or no longer is."""
    async with asyncio.timeout(WAIT_SECONDS):
        for pause in itertools.repeat(0.05):
            seen = await client.sandbox(sandbox_id)
            if seen is not None and (seen["usage"] is not None) == has_usage:
                return seen
            await asyncio.sleep(pause)
    raise AssertionError


async def test_what_a_sandbox_uses_is_shown_as_it_was_last_seen(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox = (await client.post("/api/v1/sandboxes")).json()
    await client.wait_for_sandbox(sandbox["id"], "RUNNING")
    fake_world.usage = Usage(cpu_seconds=1.5, memory_bytes=4096, processes=3, disk_bytes=9)
    await reconfigure(service, sandboxes={"sweep_seconds": 0.1})
    seen = await shown(client, sandbox["id"], has_usage=True)
    assert seen["usage"].pop("measured_at") > sandbox["created_at"]
    assert seen["usage"] == {
        "cpu_seconds": 1.5,
        "memory_bytes": 4096,
        "processes": 3,
        "disk_bytes": 9,
    }
    path = f"/api/v1/sandboxes/{sandbox['id']}/usage"
    recent: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_SECONDS):
        for pause in itertools.repeat(0.05):
            recent = (await client.get(path)).json()
            if len(recent) > 1:
                break
            await asyncio.sleep(pause)
    assert {one["disk_bytes"] for one in recent} == {9}
    times = [one["measured_at"] for one in recent]
    assert times == sorted(times)
    assert (await client.get("/api/v1/sandboxes/unknown/usage")).status == 404
    # What cannot be asked now is not made up.
    fake_world.unreachable = True
    seen = await shown(client, sandbox["id"], has_usage=False)
    assert seen["status"] == "RUNNING"


def state_of(pid: int, group: str = "", joined: tuple[str, ...] = ()) -> State:
    process = look_up(pid)
    assert process is not None
    return State(
        version=1,
        boot=boot_id(),
        shim=process.identity,
        command=None,
        ports={},
        cgroup=group,
        exit=None,
        joined=joined,
    )


def test_without_groups_the_processes_are_counted() -> None:
    used = meter.Meter().measure(state_of(os.getpid()))
    assert used is not None
    assert used.cpu_seconds is not None
    assert used.cpu_seconds > 0
    assert used.memory_bytes is not None
    assert used.memory_bytes > 1024 * 1024
    assert used.processes is not None
    assert used.processes >= 1


@pytest.mark.parametrize(
    "files",
    [
        {
            "cpu.stat": "usage_usec 2500000\nuser_usec 1",
            "memory.current": "5000\n",
            "memory.stat": "anon 1\ninactive_file 1000\n",
        },
        {
            "cpuacct.usage": "2500000000",
            "memory.usage_in_bytes": "5000",
            "memory.stat": "total_inactive_file 1000",
        },
    ],
)
def test_what_groups_count_wins(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    used = meter.Meter().measure(state_of(os.getpid(), joined=(str(tmp_path),)))
    assert used is not None
    assert (used.cpu_seconds, used.memory_bytes) == (2.5, 4000)


def test_what_groups_do_not_say_is_counted_otherwise(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("max")
    (tmp_path / "cpu.stat").write_text("nr_periods")
    used = meter.Meter().measure(state_of(os.getpid(), group=str(tmp_path)))
    assert used is not None
    assert used.memory_bytes
    assert used.cpu_seconds


def test_a_sandbox_that_has_ended_uses_nothing() -> None:
    process = look_up(os.getpid())
    assert process is not None
    ended = State(
        version=1,
        boot=boot_id(),
        shim=(process.pid, process.start + 1),
        command=None,
        ports={},
        cgroup="",
        exit=None,
    )
    assert meter.Meter().measure(ended) is None


_GROWS: Final = """
print(flush=True); input()
kept = bytearray(b"x") * 2**23
print(flush=True); input()
"""


def test_memory_is_asked_for_again_of_those_only_that_have_changed() -> None:
    memories = meter.MemorySamples()
    with ExitStack() as opened:
        process = opened.enter_context(_python(_GROWS))
        found = look_up(process.pid)
        assert found is not None
        before = memories.measure({found.identity: 1.0})
        # With another one there is more that it shares, and has less of.
        other = opened.enter_context(_python(_GROWS))
        assert memories.measure({found.identity: 1.05}) == before > 1024 * 1024
        assert memories.measure({found.identity: 2.0}) != before
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert memories.measure({found.identity: 2.0}) > before + 2**22
        process.communicate(b"\n")
        other.communicate(b"\n\n")


def test_processes_of_a_sandbox_that_rests_are_not_counted_again(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000")
    (tmp_path / "memory.current").write_text("5000")
    with _python("print(flush=True); input()") as holder:
        state, kept = state_of(holder.pid, joined=(str(tmp_path),)), meter.Meter()
        before = kept.measure(state)
        assert before == Usage(cpu_seconds=2.5, memory_bytes=5000, processes=1)
        (tmp_path / "cgroup.procs").write_text(str(os.getpid()))
        state = msgspec.structs.replace(state, cgroup=str(tmp_path))
        (tmp_path / "memory.current").write_text("6000")
        assert kept.measure(state) == msgspec.structs.replace(before, memory_bytes=6000)
        (tmp_path / "cpu.stat").write_text("usage_usec 2600000")
        used = kept.measure(state)
        assert used is not None
        assert used.cpu_seconds == 2.6
        assert used.processes is not None
        assert used.processes > 1
        holder.communicate(b"\n")


def test_a_machine_that_is_out_of_descriptors_is_asked_again_who_it_is() -> None:
    program = (
        "import resource, tests; from process.tree import boot_id;"
        "found = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, found[1]));"
        "\ntry: print(repr(boot_id()))\nexcept OSError as exc: print(exc.errno)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, found); print(boot_id())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert told.decode().split() == [str(errno.EMFILE), boot_id()]


@contextmanager
def _python(program: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
