"""Pauses of process sandboxes reach every process, and end as they began."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest
from process import groups, layers, sandbox_directory, tree

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded
from agentsvc.plugin.backend import PausedAs, Phase, StillFetching
from tests.plugins.process.rig import (
    BOTH_WAYS,
    core_rig,
    no_save,
    until,
)

DAEMONS = {
    "of another session": ["sh", "-c", "(setsid sleep 99 >/dev/null 2>&1 &)"],
    "without a mark": [
        "env",
        "-i",
        "/bin/sh",
        "-c",
        "(/usr/bin/setsid /bin/sleep 99 >/dev/null 2>&1 &)",
    ],
    "of tmux": ["tmux", "new-session", "-d", "sleep 99"],
}


@BOTH_WAYS
@pytest.mark.parametrize("daemon", DAEMONS)
async def test_pause_and_delete_reach_what_hides(
    tmp_path: Path, daemon: str, use_cgroups: bool
) -> None:
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        await bench.run(handle, *DAEMONS[daemon])
        shim = bench.state(handle)["shim"]
        whole = tree.Tree(mark="", root=(shim[0], shim[1]))
        await until(lambda: any(is_sleep(item) for item in whole.members()))
        [sleeper] = [item for item in whole.members() if is_sleep(item)]
        await bench.backend.pause(handle)
        assert is_still(sleeper)
        await bench.backend.resume(handle)
        assert not is_still(sleeper)
        await bench.backend.delete(handle)
        assert not tree.is_alive(sleeper.identity)


EVADE = """
import os, sys, time
if os.fork():
    time.sleep(100)
end = time.monotonic() + 8
while time.monotonic() < end:
    with open(sys.argv[1], "w") as file:
        file.write(str(time.monotonic()))
    if os.fork():
        os._exit(0)
"""


@BOTH_WAYS
async def test_a_process_that_keeps_becoming_another_does_not_get_away(
    tmp_path: Path, use_cgroups: bool
) -> None:
    beat = tmp_path / "beat"
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.create("{python}", "-Ic", EVADE, str(beat))
        await until(lambda: text_of(beat))
        await bench.backend.pause(handle)
        await check_that_it_rests(beat)
        await bench.backend.resume(handle)
        paused_at = text_of(beat)
        await until(lambda: text_of(beat) != paused_at)
        await bench.backend.delete(handle)
        await check_that_it_rests(beat)


async def check_that_it_rests(beat: Path) -> None:
    before = text_of(beat)
    await asyncio.sleep(0.1)
    assert text_of(beat) == before


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def is_sleep(process: tree.Process) -> bool:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


def is_still(process: tree.Process) -> bool:
    """Say whether a process is stopped or frozen."""
    for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines():
        if line.startswith("0::/") and "agentsvc-" in line:
            events = [
                path / "cgroup.events"
                for path in Path("/sys/fs/cgroup").glob("**/" + line.rpartition("/")[2])
            ]
            return any("frozen 1" in path.read_text() for path in events)
    return tree.is_stopped(process.identity)


@BOTH_WAYS
async def test_a_pause_that_was_cut_short_is_finished_by_a_look(
    tmp_path: Path, use_cgroups: bool
) -> None:
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        await bench.run(handle, "sh", "-c", "(sleep 99 >/dev/null 2>&1 &)")
        place = sandbox_directory.SandboxDirectory(directory=bench.directory(handle))
        place.write_pause(sandbox_directory.Pause(is_done=False))
        assert (await bench.backend.inspect(handle)).phase is Phase.PAUSED
        assert place.read_pause() == sandbox_directory.Pause(is_done=True)
        await bench.backend.resume(handle)
        await bench.wait(handle, Phase.RUNNING)


@BOTH_WAYS
async def test_a_stop_that_was_cut_short_is_finished_by_a_look_which_says_so(
    tmp_path: Path, use_cgroups: bool
) -> None:
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        place = sandbox_directory.SandboxDirectory(directory=bench.directory(handle))
        place.write_pause(sandbox_directory.Pause(is_done=False, ends=True))

        async def look() -> bool:
            report = await bench.backend.inspect(handle)
            assert report.phase is Phase.PAUSED
            return report.paused_as is PausedAs.STOPPED

        # Its processes are killed by one look, and seen to be gone by that or the next one.
        while not await look():
            assert place.read_pause() == sandbox_directory.Pause(is_done=False, ends=True)
        assert place.read_pause() == sandbox_directory.Pause(is_done=True, ends=True)


async def test_one_whose_stop_is_not_finished_yet_is_resumed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with core_rig(tmp_path) as bench:
        handle = await bench.serve()
        place = sandbox_directory.SandboxDirectory(directory=bench.directory(handle))
        place.write_pause(sandbox_directory.Pause(is_done=False, ends=True))
        with monkeypatch.context() as patched:
            patched.setattr(tree.Tree, "kill", lambda _self: True)
            with pytest.raises(BackendUnavailable):
                await bench.backend.resume(handle)


@pytest.mark.parametrize(
    ("step", "failure", "error"),
    [
        ((layers.Layers, "finish_rollback"), StillFetching("1 of 2 files"), StillFetching),
        ((groups.Groups, "make"), OSError(errno.ENOSPC, "No space left"), CapacityExceeded),
    ],
)
async def test_one_whose_new_start_was_cut_short_is_still_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[type, str],
    failure: Exception,
    error: type[Exception],
) -> None:
    def fail(*_: object) -> None:
        raise failure

    async with core_rig(tmp_path) as bench:
        handle = await bench.serve()
        await bench.backend.stop(handle)
        with monkeypatch.context() as patched:
            patched.setattr(*step, fail)
            with pytest.raises(error):
                await bench.backend.restart(bench.orders[handle.sandbox_id], handle, no_save)
        report = await bench.backend.inspect(handle)
        assert (report.phase, report.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)
        await bench.backend.restart(bench.orders[handle.sandbox_id], handle, no_save)
        await bench.wait(handle, Phase.RUNNING)


async def test_what_was_stopped_before_a_pause_stays_stopped_after_it(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_cgroups=False) as bench:
        handle = await bench.serve()
        await bench.run(handle, "sh", "-c", "(sleep 99 >/dev/null 2>&1 &)")
        await until(lambda: any(is_sleep(item) for item in bench.processes(handle)))
        [sleeper] = [item for item in bench.processes(handle) if is_sleep(item)]
        tree.send(sleeper, signal.SIGSTOP)
        await until(lambda: tree.is_stopped(sleeper.identity))
        await bench.backend.pause(handle)
        await bench.backend.resume(handle)
        assert tree.is_stopped(sleeper.identity)
        await bench.wait(handle, Phase.RUNNING)


SAVES_AT_THE_END = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path("begun").touch()
while True:
    time.sleep(1)
"""


@BOTH_WAYS
async def test_a_look_at_one_that_is_being_stopped_does_not_cut_its_end_short(
    tmp_path: Path, use_cgroups: bool
) -> None:
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.create("{python}", "-Ic", SAVES_AT_THE_END)
        agent = bench.directory(handle) / "agent"
        await until((agent / "begun").exists)
        place = sandbox_directory.SandboxDirectory(directory=bench.directory(handle))
        async with asyncio.TaskGroup() as group:
            group.create_task(bench.backend.stop(handle))
            await until(place.read_pause)
            assert (await bench.backend.inspect(handle)).phase is Phase.PAUSED
        assert (agent / "saved").exists()


@BOTH_WAYS
async def test_a_command_killed_while_paused_is_failed(tmp_path: Path, use_cgroups: bool) -> None:
    async with core_rig(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        await bench.backend.pause(handle)
        os.kill(bench.state(handle)["command"][0], signal.SIGKILL)
        await until(lambda: not tree.is_alive(tuple(bench.state(handle)["command"])))
        report = await bench.backend.inspect(handle)
        assert (report.phase, report.reason) == (Phase.FAILED, "the command was killed")
