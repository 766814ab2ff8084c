"""What the process backend promises beyond the contract: it is about real processes."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from process import launch, tree
from process.backend import ProcessBackend
from process.settings import ProcessConfig
from process.specs import DEFAULT_SPEC

from agentsvc.base.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.base.values import Secret, new_id
from agentsvc.plugin.backend import BackendContext, Isolation, Order, Phase, Port, Spec
from tests.plugins.process.rig import (
    WEB,
    CoreRig,
    change_state,
    core_rig,
    environment,
    no_save,
    rights,
    until,
)

_MANY_FILES = 1100
"""More than `select` knows."""


async def test_a_command_that_cannot_be_found_is_failed_and_says_so(bench: CoreRig) -> None:
    handle = await bench.create("no-such-command", "--port", "1")
    report = await bench.wait(handle, Phase.FAILED)
    assert report.exit_code == 127
    assert report.reason == (
        "the command exited with code 127: cannot run no-such-command: No such file or directory"
    )


async def test_a_missing_module_is_failed_with_the_last_line_of_the_log(bench: CoreRig) -> None:
    handle = await bench.create("{python}", "-Im", "no_such_module")
    report = await bench.wait(handle, Phase.FAILED)
    assert report.exit_code == 1
    assert report.reason.endswith("No module named no_such_module")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Out of ideas", 'INFO 127.0.0.1:1 - "GET /alive HTTP/1.1" 200 x.py:4'], "Out of ideas"),
        (
            [
                "Out of",
                f"{'':9}ideas",
                'INFO 1 - "GET   x.py:4',
                f"{'':9}/e HTTP/1.1",
                f"{'':9}200",
            ],
            "ideas",
        ),
        ([r'{"message": "127.0.0.1:1 - \"GET /alive HTTP/1.1\" 200"}', "", "  "], ""),
        (
            [
                f"ERROR{'':4}Traceback (most recent call last):",
                f"{'':9}ModuleNotFoundError: No module named 'x'",
                "ERROR Application startup failed. Exiting.  on.py:59",
                "INFO Server terminated: SystemExit: 3",
                "INFO Process exiting via atexit handler  __main__.py:229",
            ],
            "ModuleNotFoundError: No module named 'x'",
        ),
        (
            [
                "ERROR address already in use",
                "INFO Waiting for application shutdown.",
                "INFO Application shutdown complete.",
            ],
            "ERROR address already in use",
        ),
    ],
)
async def test_requests_and_goodbyes_in_the_log_say_nothing_of_its_end(
    bench: CoreRig, lines: list[str], said: str
) -> None:
    handle = await bench.create("printf", "%s\\n", *lines)
    report = await bench.wait(handle, Phase.FAILED)
    ended = "the command exited with code 0"
    assert report.reason == (f"{ended}: {said}" if said else ended)


async def test_a_killed_command_is_failed_with_the_signal(bench: CoreRig) -> None:
    handle = await bench.serve()
    os.kill(bench.state(handle)["command"][0], signal.SIGKILL)
    report = await bench.wait(handle, Phase.FAILED)
    assert (report.exit_code, report.reason) == (137, "the command was ended by SIGKILL")


async def test_what_a_command_started_ends_with_it(bench: CoreRig) -> None:
    handle = await bench.serve()
    await bench.run(handle, "sh", "-c", "(setsid sleep 100 &)")
    os.kill(bench.state(handle)["command"][0], signal.SIGTERM)
    await bench.wait(handle, Phase.FAILED)
    await until(lambda: not bench.processes(handle))


async def test_a_sandbox_whose_holder_was_killed_is_failed_and_ended(bench: CoreRig) -> None:
    handle = await bench.serve()
    os.kill(bench.state(handle)["shim"][0], signal.SIGKILL)
    report = await bench.wait(handle, Phase.FAILED)
    assert report.reason == "the process that holds the sandbox was killed"
    await until(lambda: not bench.processes(handle))


async def test_after_a_restart_of_the_machine_pids_mean_nothing_and_files_are_kept(
    bench: CoreRig,
) -> None:
    handle = await bench.serve()
    await bench.run(handle, "touch", "kept")
    shim = bench.state(handle)["shim"][0]
    os.kill(shim, signal.SIGKILL)
    await bench.wait(handle, Phase.FAILED)
    stranger = tree.look_up(os.getpid())
    assert stranger is not None
    identity = list(stranger.identity)
    change_state(bench.directory(handle), boot="another", shim=identity, command=identity)
    report = await bench.backend.inspect(handle)
    assert (report.phase, report.reason) == (Phase.FAILED, "the machine was restarted")
    order = Order(sandbox_id=handle.sandbox_id, command=("sleep", "100"))
    again = await bench.backend.restart(order, handle, no_save)
    await bench.wait(again, Phase.RUNNING)
    assert await bench.run(again, "ls") == "kept\n"


def zombies() -> set[tree.Identity]:
    """Return the children of this process that have ended and that nobody has asked about."""
    own = [item for item in tree.snapshot().values() if item.parent == os.getpid()]
    return {item.identity for item in own if item.state == "Z"}


async def test_a_process_whose_name_is_no_text_is_in_nobodys_way(bench: CoreRig) -> None:
    rename = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff'); print(flush=True)"
    hostile = await bench.create("{python}", "-Ic", f"{rename}; time.sleep(100)")
    await until((bench.directory(hostile) / "log").read_bytes)
    other = await bench.serve()
    ended = await bench.backend.execute(
        other, ["sleep", "100"], env={}, time_limit=0.5, max_output=100
    )
    assert ended.timed_out
    await until(lambda: b"sleep" not in [command(one.pid) for one in bench.processes(other)])


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    return b""


async def test_an_ended_shim_is_not_left_as_a_zombie(bench: CoreRig) -> None:
    before = zombies()
    handle = await bench.create("true")
    await bench.wait(handle, Phase.FAILED)
    pid = bench.state(handle)["shim"][0]
    order = Order(sandbox_id=handle.sandbox_id, command=("true",))
    await bench.backend.create(order, no_save)
    while tree.look_up(pid) is not None:
        await bench.backend.inspect(handle)
    assert zombies() <= before


async def test_a_failed_sandbox_cannot_be_resumed_paused_or_told_to_execute(bench: CoreRig) -> None:
    handle = await bench.create("{python}", "-Ic", "raise SystemExit(4)")
    await bench.wait(handle, Phase.FAILED)
    calls: Sequence[Awaitable[object]] = (
        bench.backend.resume(handle),
        bench.backend.pause(handle),
        bench.backend.execute(handle, ["true"], env={}, time_limit=1, max_output=1),
    )
    for call in calls:
        with pytest.raises(Conflict, match="exited with code 4"):
            await call


async def test_a_sandbox_sees_an_explicit_environment_only(
    bench: CoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_SECRET", "of the server")
    handle = await bench.serve(
        env={"GIVEN": "{port.web}"}, secret_env={"TOKEN": Secret("of the sandbox")}
    )
    env = environment(bench.state(handle)["command"][0])
    home = bench.directory(handle)
    assert env.pop("PATH") == launch.search_path("")
    temp = env.pop("TMPDIR")
    assert env == {
        "AGENTSVC_SANDBOX": f"{bench.instance_id}/{handle.sandbox_id}",
        "GIVEN": str(bench.state(handle)["ports"]["web"]),
        "HOME": str(home / "home"),
        "LANG": "C.UTF-8",
        "LC_CTYPE": "C.UTF-8",
        "TMUX_TMPDIR": temp,
        "TOKEN": "of the sandbox",
    }
    assert rights(temp) == rights(home) == 0o700


async def test_named_variables_of_the_server_can_be_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    async with core_rig(
        tmp_path, pass_env=("HTTPS_PROXY", "NOT_SET"), path="/usr/bin:/bin"
    ) as bench:
        handle = await bench.serve()
        lines = await bench.run(handle, "env")
    assert "HTTPS_PROXY=http://proxy:3128" in lines
    assert "NOT_SET" not in lines
    assert "PATH=/usr/bin:/bin\n" in lines


async def test_the_path_is_without_the_servers_virtual_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{Path(sys.prefix, 'bin')}::/bin")
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    assert launch.search_path("") == "/usr/bin:/bin"


async def test_the_agent_works_in_the_workspace_and_the_command_beside_it(bench: CoreRig) -> None:
    handle = await bench.serve("open('left', 'w').close()", working_dir="project/inner")
    report = await bench.backend.inspect(handle)
    assert report.working_dir == str(bench.directory(handle) / "workspace/project/inner")
    assert (await bench.run(handle, "pwd")).strip() == report.working_dir
    assert (bench.directory(handle) / "agent/left").exists()
    assert report.isolation is Isolation.NONE


async def test_many_sandboxes_started_at_once_never_share_a_port(bench: CoreRig) -> None:
    ports = (Port(name="web"), Port(name="other", awaited=False))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bench.create("sleep", "100", ports=ports)) for _ in range(12)]
    given = [port for task in tasks for port in bench.state(task.result())["ports"].values()]
    assert len(set(given)) == len(given) == 24


async def test_an_ordered_port_that_is_taken_is_a_failure_that_says_so(bench: CoreRig) -> None:
    first = await bench.serve()
    number = bench.state(first)["ports"]["web"]
    second = await bench.create("sleep", "100", ports=(Port(name="web", number=number),))
    report = await bench.wait(second, Phase.FAILED)
    assert report.reason == "a port cannot be had: Address already in use"


async def test_ports_that_are_not_awaited_need_not_answer(bench: CoreRig) -> None:
    handle = await bench.create("sleep", "100", ports=(Port(name="worker", awaited=False),))
    report = await bench.wait(handle, Phase.RUNNING)
    [endpoint] = report.endpoints
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"


async def test_a_port_that_does_not_answer_keeps_a_sandbox_starting(bench: CoreRig) -> None:
    handle = await bench.create("sleep", "100", ports=WEB)
    for _ in range(3):
        assert (await bench.backend.inspect(handle)).phase is Phase.STARTING


async def test_secrets_in_the_output_are_masked_and_streams_told_apart(bench: CoreRig) -> None:
    script = "import os, sys; print('key', os.environ['KEY']); print('bad', file=sys.stderr)"
    handle = await bench.create(
        "{python}", "-Ic", script, secret_env={"KEY": Secret("very-secret-value")}
    )
    await bench.wait(handle, Phase.FAILED)
    lines = [line async for line in bench.backend.logs(handle, tail=10, follow=False)]
    assert {(line.stream, line.text) for line in lines} == {
        ("stdout", "key **********"),
        ("stderr", "bad"),
    }


async def test_a_log_is_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    async with core_rig(tmp_path, log_bytes=65536) as bench:
        handle = await bench.create("{python}", "-Ic", "for n in range(9000): print('line', n)")
        await bench.wait(handle, Phase.FAILED)
        lines = [line.text async for line in bench.backend.logs(handle, tail=500, follow=False)]
        assert lines == [f"line {number}" for number in range(8500, 9000)]
        sizes = [path.stat().st_size for path in bench.directory(handle).glob("log*")]
        assert sum(sizes) < 65536 + 2 * len("1700000000.000 o line 9000\n")


async def test_a_state_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context = BackendContext(instance_id="x", state_dir=tmp_path / "file" / "state")
    with pytest.raises(BackendUnavailable):
        await ProcessBackend(ProcessConfig(), context).open()


async def test_a_long_temporary_directory_is_not_used(tmp_path: Path) -> None:
    async with core_rig(tmp_path, temp_dir=str(tmp_path / ("long" * 25))) as bench:
        handle = await bench.serve()
        assert handle.data["temp"].startswith("/tmp/asvc-")  # noqa: S108  # what is checked


async def test_an_environment_that_cannot_be_is_a_failure_that_says_so(bench: CoreRig) -> None:
    handle = await bench.create("sleep", "1", env={"BAD": "nul\0byte"})
    report = await bench.wait(handle, Phase.FAILED)
    assert report.reason.endswith("cannot run sleep: embedded null byte")


async def test_a_shim_that_cannot_work_is_an_error_with_its_reason_in_the_log(
    bench: CoreRig,
) -> None:
    sandbox_id = new_id()
    (bench.state_dir / sandbox_id / "log").mkdir(parents=True)
    with pytest.raises(BackendUnavailable) as caught:
        await bench.create("sleep", "1", sandbox_id=sandbox_id)
    assert "IsADirectoryError" in caught.value.detail


async def test_a_launch_that_fails_leaves_no_file_open(bench: CoreRig) -> None:
    order = Order(sandbox_id=new_id(), command=("sleep", "100"))
    (bench.state_dir / order.sandbox_id / "shim.log").mkdir(parents=True)
    known: set[int] = set()
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            await bench.backend.create(order, no_save)
        known.add(len(os.listdir("/proc/self/fd")))  # noqa: PTH208  # names are enough
    assert len(known) == 1


async def test_a_server_with_very_many_open_files_starts_sandboxes(bench: CoreRig) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _MANY_FILES + 512:
        pytest.skip("this machine lets nobody open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _MANY_FILES + 512), hard))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(_MANY_FILES):
            files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        handle = await bench.create("sleep", "100")
        assert (await bench.wait(handle, Phase.RUNNING)).phase is Phase.RUNNING


async def test_a_probe_says_what_sandboxes_will_find(bench: CoreRig) -> None:
    health = await bench.backend.probe()
    assert health.ok
    assert health.facts["isolation"] == "none"
    assert health.facts["python"] == sys.executable
    assert int(health.facts["free disk bytes"]) > 0


REFUSED: dict[str, dict[str, Any]] = {
    "needs a command": {"command": None},
    "has no image": {"image": "debian"},
    "no option `gpu`": {"options": {"gpu": 1}},
    "inside the workspace": {"working_dir": "/etc"},
    "relative path": {"working_dir": "../other"},
    "same name": {"ports": (Port(name="web"), Port(name="web"))},
    "names a port": {"env": {"PORT": "{port.other}"}},
}


@pytest.mark.parametrize(("message", "fields"), REFUSED.items(), ids=REFUSED)
async def test_what_can_never_work_is_refused(
    bench: CoreRig, message: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(OrderRejected, match=message):
        bench.backend.check_spec(Spec(**{"id": "x", "command": ("true",), **fields}))
    with pytest.raises(OrderRejected, match=message):
        await bench.create(**{"command": ("true",), **fields})
    assert await bench.backend.scan() == []


async def test_an_id_that_is_no_file_name_is_refused(bench: CoreRig) -> None:
    with pytest.raises(OrderRejected, match="cannot name a directory"):
        await bench.create("true", sandbox_id="../../etc")


def test_the_default_spec_fits(tmp_path: Path) -> None:
    CoreRig(tmp_path).backend.check_spec(DEFAULT_SPEC)
