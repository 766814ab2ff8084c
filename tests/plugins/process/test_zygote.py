"""Forks of a loaded program: they are what a plain start gives, and know of nobody else."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from process import bubblewrap
from process.backend import ProcessBackend
from process.programs.shim import ZYGOTE
from process.settings import ProcessConfig
from process.zygote import Confinement, Zygote

import tests
from agentsvc.base.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import Handle, Order, Phase, Port, Report
from agentsvc.testing.rig import ask, web_url
from tests.plugins.process.rig import CoreRig, core_rig, no_save, until

pytestmark = pytest.mark.timeout(60)

PROGRAM = "tests.plugins.process.zygote_probe"
COMMAND = ("{python}", "-m", PROGRAM, "{port.web}")
CANARY = "canary-of-the-server"


class ProbeBackend(ProcessBackend):
    """Loads a program of ours instead of the agent server."""

    program: ClassVar[str] = PROGRAM
    preload: ClassVar[str] = "tests.plugins.process.zygote_preload"


class PatientBackend(ProcessBackend):
    """Loads one that only goes on once it is waited for."""

    program: ClassVar[str] = "tests.plugins.process.zygote_patient"
    preload: ClassVar[str] = program


class EndlessBackend(ProcessBackend):
    """Loads one that never gets to its end."""

    program: ClassVar[str] = "tests.plugins.process.zygote_endless"
    preload: ClassVar[str] = program


class Probes(CoreRig):
    """A backend that has a zygote of a program that tells all it is."""

    def __init__(
        self, directory: Path, backend: type[ProcessBackend] = ProbeBackend, **config: Any
    ) -> None:
        super().__init__(directory)
        fields = {
            "use_bubblewrap": True,
            "zygote": True,
            "readable": (str(Path(tests.__file__).parent),),
            **config,
        }
        self.backend = backend(ProcessConfig(**fields), self.context())

    async def probe(self, **fields: Any) -> "Probe":
        env = {"PROBE_NAME": "probe", **fields.pop("env", {})}
        handle = await self.create(*COMMAND, ports=(Port(name="web"),), env=env, **fields)
        report = await self.wait(handle, Phase.RUNNING)
        told = json.loads(await ask(web_url(report), "GET", "/", b""))
        return Probe(handle, report, told)

    async def zygote(self) -> int:
        """Return the pid of the zygote."""
        text = (await self.backend.probe()).facts["zygote"]
        assert text.startswith("pid "), text
        return int(text.removeprefix("pid "))

    async def loaded(self, but: int = 0) -> None:
        """Wait until there is a zygote, and not that one."""
        while True:
            text = (await self.backend.probe()).facts["zygote"]
            assert not text.startswith("it "), f"there will be none: {text}"
            if text.startswith("pid ") and text != f"pid {but}":
                return
            await asyncio.sleep(0.01)


class Probe:
    """One sandbox, and what its program told."""

    def __init__(self, handle: Handle, report: Report, told: dict[str, Any]) -> None:
        self.handle = handle
        self.report = report
        self.told = told
        self.how = report.facts.get("started by", "")


@asynccontextmanager
async def probes(
    directory: Path, backend: type[ProcessBackend] = ProbeBackend, **config: Any
) -> AsyncIterator[Probes]:
    bench = Probes(directory, backend, **config)
    if bench.backend.config.use_bubblewrap:
        found = await asyncio.to_thread(bubblewrap.find, bench.state_dir)
        if not found.program and os.environ.get("CI"):
            pytest.fail(found.reason)
        if not found.program:
            pytest.skip(found.reason)
    await bench.backend.open()
    try:
        yield bench
    finally:
        for found_one in await bench.backend.scan():
            await bench.backend.delete(found_one.handle)
        await bench.backend.close()


async def test_a_fork_is_what_a_plain_start_gives(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        limits = {"env": {"MORE": "than others"}, "working_dir": "project"}
        fork = await bench.probe(**limits)
        plain = await bench.probe(**limits, options={"zygote": False})
        assert fork.how == ZYGOTE
        assert plain.how == "a plain start: the spec has no zygote"
        assert nature(bench, fork) == nature(bench, plain)
        assert "MORE" not in fork.told["environ"]


async def test_forks_differ_in_all_that_is_left_to_chance(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        first, second, third = [(await bench.probe()).told["chance"] for _ in range(3)]
        for name in first:
            assert len({first[name], second[name], third[name]}) == 3, name


async def test_no_fork_knows_the_server_or_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_CANARY", CANARY)
    async with probes(tmp_path) as bench:
        first = await bench.probe(secret_env={"KEY": Secret("first-sandbox-key")})
        second = await bench.probe(secret_env={"KEY": Secret("second-sandbox-key")})
        members = [process.pid for process in bench.processes(second.handle)]
        (command,) = await asyncio.to_thread(forks_among, members)
        zygote = await bench.zygote()
        hidden = [CANARY, "first-sandbox-key"]
        assert first.told["nature"]["environment"]["KEY"] == "first-sandbox-key"
        assert await asyncio.to_thread(in_memory, command, ["second-sandbox-key"])
        assert not await asyncio.to_thread(in_memory, command, hidden)
        assert not await asyncio.to_thread(in_memory, zygote, [*hidden, "second-sandbox-key"])
        assert not {"KEY", "SERVER_CANARY", "PROBE_NAME"} & set(second.told["memory"])
        assert len(await asyncio.to_thread(open_files, zygote)) == 4


async def test_what_the_server_was_left_open_is_open_for_no_sandbox(tmp_path: Path) -> None:
    left, other_end = await asyncio.to_thread(inheritable_pipe)
    async with probes(tmp_path) as bench:
        for how in ({}, {"options": {"zygote": False}}):
            probe = await bench.probe(**how)
            pids = [process.pid for process in bench.processes(probe.handle)]
            found = {pid: await asyncio.to_thread(open_files, pid) for pid in pids}
            assert any(found.values())
            assert not [pid for pid, files in found.items() if left in files]
        assert left not in await asyncio.to_thread(open_files, await bench.zygote())
    os.close(other_end)


async def test_the_end_of_the_zygote_is_the_end_of_no_sandbox(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        before = await bench.probe()
        zygote = await bench.zygote()
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: not is_alive(zygote))
        after = await bench.probe()
        assert (await bench.wait(before.handle, Phase.RUNNING)).phase is Phase.RUNNING
        assert after.how == ZYGOTE or "the zygote has ended" in after.how
        assert (await bench.probe()).how == ZYGOTE
        assert await bench.zygote() != zygote


async def test_a_zygote_that_has_ended_is_replaced_by_itself(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        await bench.probe()
        zygote = await bench.zygote()
        os.kill(zygote, signal.SIGKILL)
        await bench.loaded(but=zygote)


async def test_a_zygote_that_hangs_costs_one_start_its_time_and_is_replaced(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        await bench.probe()
        zygote = await bench.zygote()
        os.kill(zygote, signal.SIGSTOP)
        handle = await bench.create(*COMMAND, ports=(Port(name="web"),))
        how = (await bench.backend.inspect(handle)).facts["started by"]
        assert how == "a plain start: the zygote does not answer"
        await until(lambda: not is_alive(zygote))
        assert (await bench.probe()).how == ZYGOTE


async def hung(bench: Probes) -> Handle:
    """Start a sandbox while the zygote hangs, and wait for the end of that."""
    zygote = await bench.zygote()
    os.kill(zygote, signal.SIGSTOP)
    handle = await bench.create(*COMMAND, ports=(Port(name="web"),))
    how = (await bench.backend.inspect(handle)).facts["started by"]
    assert how == "a plain start: the zygote does not answer"
    await until(lambda: not is_alive(zygote))
    return handle


async def test_a_zygote_that_hangs_keeps_nobody_from_starting_who_has_little_time(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path, launch_seconds=5, zygote_delay_seconds=0.01) as bench:
        await bench.loaded()
        await hung(bench)


async def test_a_zygote_is_not_replaced_for_what_was_noted_of_another(tmp_path: Path) -> None:
    async with probes(tmp_path, launch_seconds=5, zygote_delay_seconds=0.01) as bench:
        await bench.loaded()
        handle = await hung(bench)
        await bench.loaded()
        zygote = await bench.zygote()
        await bench.backend.create(bench.orders[handle.sandbox_id], no_save)
        assert await bench.zygote() == zygote


async def test_zygotes_that_hang_one_after_the_other_are_replaced_less_and_less_often(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path, launch_seconds=5, zygote_delay_seconds=0.01) as bench:
        for _ in range(2):
            await bench.loaded()
            await hung(bench)
        handle = await bench.create(*COMMAND, ports=(Port(name="web"),))
        how = (await bench.backend.inspect(handle)).facts["started by"]
        assert how == "a plain start: the zygote does not answer"
        assert (await bench.backend.probe()).facts["zygote"] == "the zygote does not answer"
        await bench.loaded()


async def test_a_zygote_is_there_before_the_first_sandbox(tmp_path: Path) -> None:
    async with probes(tmp_path, zygote_delay_seconds=0.01) as bench:
        await bench.loaded()


async def test_a_zygote_that_nobody_needs_ends_and_the_next_start_loads_another(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path, zygote_idle_seconds=2) as bench:
        before = await bench.probe()
        zygote = await bench.zygote()
        await until(lambda: not is_alive(zygote))
        reason = (await bench.backend.probe()).facts["zygote"]
        assert reason == "ended after 2 s without a start"
        assert (await bench.wait(before.handle, Phase.RUNNING)).phase is Phase.RUNNING
        assert (await bench.probe()).how == ZYGOTE


async def test_a_zygote_that_somebody_waits_for_is_not_slowed_down(tmp_path: Path) -> None:
    async with probes(tmp_path, PatientBackend) as bench:
        handle = await bench.create("{python}", "-m", PatientBackend.program)
        report = await bench.wait(handle, Phase.RUNNING)
        assert report.facts["started by"] == ZYGOTE


async def test_only_one_sandbox_is_started_plainly_beside_a_zygote_that_is_being_loaded(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path, EndlessBackend, zygote_seconds=1) as bench:
        command = ("{python}", "-m", EndlessBackend.program)
        orders = [Order(sandbox_id=new_id(), command=command) for _ in range(3)]
        begun = [bench.backend.create(order, no_save) for order in orders]
        found = await asyncio.gather(*begun, return_exceptions=True)
        errors = [str(one) for one in found if not isinstance(one, Handle)]
        assert errors == ["The fork server is still being loaded"] * 2
        # It has hung by now, for all that anybody knows.
        for order in orders:
            report = await bench.backend.inspect(await created(bench, order))
            assert report.facts["started by"] == "a plain start: the zygote is still being loaded"


async def created(bench: Probes, order: Order) -> Handle:
    """Ask for a sandbox until the backend makes it, as the server does."""
    while True:
        with contextlib.suppress(BackendUnavailable):
            return await bench.backend.create(order, no_save)


async def test_the_zygote_ends_with_the_backend_and_sandboxes_do_not(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        probe = await bench.probe()
        zygote = await bench.zygote()
        await bench.backend.close()
        assert not is_alive(zygote)
        bench.backend = ProbeBackend(bench.backend.config, bench.context())
        await bench.backend.open()
        assert (await bench.backend.inspect(probe.handle)).phase is Phase.RUNNING
        assert (await bench.run(probe.handle, "echo", "still here")) == "still here\n"


async def test_the_zygote_of_a_server_that_is_killed_ends(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from tests.plugins.process.test_zygote import *\n"
        "async def main():\n"
        "    bench = Probes(Path(sys.argv[1])); await bench.backend.open()\n"
        "    await bench.probe(); print(await bench.zygote(), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    zygote = int(await server.stdout.readline())
    assert is_alive(zygote)
    server.kill()
    await server.wait()
    await until(lambda: not is_alive(zygote))
    record = next((tmp_path / "state").glob("*/record.json"))
    bench = Probes(tmp_path)
    bench.instance_id = json.loads(await asyncio.to_thread(record.read_text))["instance_id"]
    bench.backend = ProbeBackend(bench.backend.config, bench.context())
    await bench.backend.open()
    (found,) = await bench.backend.scan()
    assert (await bench.backend.inspect(found.handle)).phase is Phase.RUNNING
    await bench.backend.delete(found.handle)
    await bench.backend.close()


async def test_a_zygote_that_is_being_loaded_ends_with_a_server_that_is_killed(
    tmp_path: Path,
) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from tests.plugins.process.test_zygote import *\n"
        "async def main():\n"
        "    bench = Probes(Path(sys.argv[1]), EndlessBackend); await bench.backend.open()\n"
        "    await bench.create('{python}', '-m', EndlessBackend.program)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(tmp_path)),
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        await until(lambda: zygotes_below(server.pid) != [])
        zygotes = zygotes_below(server.pid)
    finally:
        server.kill()
        await server.wait()
    await until(lambda: not any(map(is_alive, zygotes)))


async def test_a_zygote_that_could_not_be_started_is_started_later(tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    config = ProcessConfig(zygote_delay_seconds=0.01, zygote_seconds=0.1)
    loaded = Zygote(config, ProbeBackend.program, ProbeBackend.preload, {})
    loaded.confine(Confinement(program=str(bwrap)))
    assert "cannot be started" in (await loaded.lend()).reason
    bwrap.write_text("#!/bin/sh\nexec sleep 60")
    bwrap.chmod(0o700)
    await asyncio.sleep(config.zygote_delay_seconds)
    assert (await loaded.lend()).reason == "the zygote is still being loaded"
    await loaded.close()


async def test_a_change_of_what_is_installed_replaces_the_zygote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    await asyncio.to_thread(installed.mkdir)
    monkeypatch.syspath_prepend(installed)
    async with probes(tmp_path) as bench:
        await bench.probe()
        zygote = await bench.zygote()
        await bench.probe()
        assert await bench.zygote() == zygote
        await asyncio.to_thread((installed / "more").mkdir)
        assert (await bench.probe()).how == ZYGOTE
        assert await bench.zygote() != zygote
        assert not is_alive(zygote)


async def test_who_waits_for_a_zygote_that_is_dropped_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_debug(True)  # it refuses to be used by other threads
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\nexec sleep 60")
    bwrap.chmod(0o700)
    config = ProcessConfig(zygote_seconds=0.5)
    loaded = Zygote(config, ProbeBackend.program, ProbeBackend.preload, {})
    loaded.confine(Confinement(program=str(bwrap)))

    async def lend_after_a_change() -> str:
        await until(lambda: loaded.describe() == "being loaded")
        (installed / "other").touch()
        return (await loaded.lend()).reason

    first, second = await asyncio.gather(loaded.lend(), lend_after_a_change())
    assert (first.reason, second) == ("the zygote has ended", "the zygote is still being loaded")
    await loaded.close()


async def test_what_is_loaded_ahead_is_there_in_forks_only(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        fork = await bench.probe()
        plain = await bench.probe(options={"zygote": False})
        assert (fork.told["is loaded ahead"], plain.told["is loaded ahead"]) == (True, False)


async def test_each_fork_is_set_up_with_its_own_environment(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        for name in ("first", "second"):
            probe = await bench.probe(env={"PROBE_NAME": name, "PROBE_AGAIN_AND_AGAIN": name})
            assert (probe.how, probe.told["set up"]) == (ZYGOTE, [name])


async def test_a_zygote_that_takes_too_much_is_not_used(tmp_path: Path) -> None:
    async with probes(tmp_path, zygote_bytes=1) as bench:
        probe = await bench.probe()
        assert "more than it may" in probe.how


EARLY = {
    "PROBE_COUNTS_EARLY": ("x", "counts while the agent server is loaded"),
    "PYTHONDONTWRITEBYTECODE": ("1", "counts when Python starts"),
    "LC_ALL": ("C.UTF-8", "counts when Python starts"),
}


async def test_what_counts_before_a_fork_is_started_plainly(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        for name, (value, reason) in EARLY.items():
            probe = await bench.probe(env={name: value})
            assert probe.how == f"a plain start: `{name}` {reason}"
            assert probe.told["nature"]["environment"][name] == value


async def test_without_a_zygote_sandboxes_are_started_plainly(tmp_path: Path) -> None:
    async with probes(tmp_path, zygote=False) as bench:
        assert (await bench.probe()).how == "a plain start: the configuration has no zygote"
        assert (await bench.backend.probe()).facts["zygote"] == "off"


async def test_a_command_of_another_kind_has_no_zygote(tmp_path: Path) -> None:
    async with core_rig(tmp_path, zygote=True, use_bubblewrap=True) as bench:
        handle = await bench.serve()
        assert "started by" not in (await bench.backend.inspect(handle)).facts
        assert (await bench.backend.probe()).facts["zygote"] == "not loaded yet"
        await bench.backend.close()


async def test_the_option_of_a_spec_is_true_or_false(tmp_path: Path) -> None:
    async with core_rig(tmp_path) as bench:
        for options in ({"zygote": "no"}, {"other": 1}):
            with pytest.raises(OrderRejected):
                await bench.create(*COMMAND, options=options)


async def test_many_forks_at_once_all_work_and_end_with_their_code(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        found = await asyncio.gather(*(bench.probe() for _ in range(4)))
        assert [probe.how for probe in found] == [ZYGOTE] * 4
        lines = [line async for line in bench.backend.logs(found[0].handle, tail=9, follow=False)]
        assert lines[0].text == f"{found[0].told['pid']} logged by probe"
        with contextlib.suppress(Conflict):  # the end of the sandbox may be that of what ended it
            await bench.run(found[1].handle, "sh", "-c", f"kill -9 {found[1].told['pid']}")
        report = await bench.backend.inspect(found[1].handle)
        while report.phase is not Phase.FAILED:
            report = await bench.backend.inspect(found[1].handle)
        assert report.exit_code == 137
        await bench.backend.restart(order_of(found[1].handle), found[1].handle, no_save)
        assert (await bench.wait(found[1].handle, Phase.RUNNING)).facts == found[0].report.facts


def order_of(handle: Handle) -> Order:
    return Order(
        sandbox_id=handle.sandbox_id,
        command=COMMAND,
        ports=(Port(name="web"),),
        env={"PROBE_NAME": "probe"},
    )


def nature(bench: Probes, probe: Probe) -> dict[str, Any]:
    """Return what a program told of its nature, but for what is its sandbox's own."""
    record = json.loads((bench.directory(probe.handle) / "record.json").read_text())
    told = probe.told["nature"]
    port = told["arguments"][-1]
    namespaces = {
        name: link == os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115  # a text is wanted
        for name, link in told.pop("namespaces").items()
    }
    if namespaces["mnt"]:
        told.pop("mounts")  # the machine's own, which others change meanwhile
    text = json.dumps({**told, "namespaces": namespaces})
    for own in (probe.handle.sandbox_id, record["temp"], port, f"id={record['user']}"):
        text = text.replace(own, "OWN")
    shown: dict[str, Any] = json.loads(text)
    return shown


def forks_among(pids: list[int]) -> list[int]:
    """Return those whose command line is that of the fork server."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            found += [pid] * (b"process.programs.warm" in arguments)
    return found


def in_memory(pid: int, texts: list[str]) -> list[str]:
    """Return which texts a process has somewhere in its memory."""
    found = set()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            with contextlib.suppress(OSError, OverflowError):
                memory.seek(start)
                part = memory.read(end - start)
                found |= {text for text in texts if text.encode() in part}
    return sorted(found)


def open_files(pid: int) -> list[str]:
    """Return what a process has open, as far as it does not end or close it meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(file.readlink()))
    return found


def inheritable_pipe() -> tuple[str, int]:
    """Return what one end of a pipe is called that all children get, and that end."""
    reading, writing = os.pipe()
    os.close(reading)
    os.set_inheritable(writing, True)
    return os.readlink(f"/proc/self/fd/{writing}"), writing  # noqa: PTH115  # a text is wanted


def zygotes_below(pid: int) -> list[int]:
    """Return the descendants that are loading something."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                name = Path(f"/proc/{child}/comm").read_text().strip()
                found += [int(child)] * (name == "agentsvc-zygote") + zygotes_below(int(child))
    return found


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False
