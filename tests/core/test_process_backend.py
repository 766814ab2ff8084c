"""What the process backend promises beyond the contract: it is about real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentsvc.backend import BackendContext, Handle, Limits, Order, Phase, Port, Report, Spec
from agentsvc.backends import launch, places, tree
from agentsvc.backends.process import DEFAULT_SPEC, ProcessBackend, ProcessConfig
from agentsvc.errors import BackendUnavailable, Conflict, OrderRejected
from agentsvc.values import Secret, new_id

SERVE = (
    "import http.server, sys;"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])),"
    " http.server.SimpleHTTPRequestHandler).serve_forever()"
)
WEB = (Port(name="web"),)

BOTH_WAYS = pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroup", "signals"])


class Bench:
    """A backend, and a look at what it makes from outside."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.state_dir = directory / "state"
        self.instance_id = new_id()
        self.backend = ProcessBackend(ProcessConfig(**config), self.context())

    def context(self) -> BackendContext:
        return BackendContext(instance_id=self.instance_id, state_dir=self.state_dir)

    async def create(self, *command: str, **fields: Any) -> Handle:
        order = Order(**{"sandbox_id": new_id(), "command": command, **fields})
        return await self.backend.create(order, no_save)

    async def serve(self, before: str = "pass", **fields: Any) -> Handle:
        """Create a sandbox that first does something and then serves, and wait for that."""
        handle = await self.create(
            "{python}", "-Ic", f"{before};{SERVE}", "{port.web}", ports=WEB, **fields
        )
        await self.wait(handle, Phase.RUNNING)
        return handle

    async def wait(self, handle: Handle, phase: Phase) -> Report:
        while True:
            report = await self.backend.inspect(handle)
            if report.phase is phase:
                return report
            assert report.phase in (Phase.STARTING, Phase.RUNNING), report
            await asyncio.sleep(0.01)

    async def run(self, handle: Handle, *argv: str) -> str:
        result = await self.backend.execute(handle, argv, env={}, time_limit=5, max_output=100_000)
        assert result.exit_code == 0, result
        return result.stdout.decode()

    def directory(self, handle: Handle) -> Path:
        return self.state_dir / handle.sandbox_id

    def state(self, handle: Handle) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory(handle) / "state.json").read_text())
        return state

    def processes(self, handle: Handle) -> list[tree.Process]:
        """Return everything alive that was started in a sandbox, found by the mark alone."""
        mark = places.mark_of(self.instance_id, handle.sandbox_id)
        return tree.Tree(mark=mark).members()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with on_bench(tmp_path) as bench:
        yield bench


@asynccontextmanager
async def on_bench(directory: Path, **config: Any) -> AsyncIterator[Bench]:
    bench = Bench(directory, **config)
    await bench.backend.open()
    try:
        yield bench
    finally:
        for found in await bench.backend.scan():
            await bench.backend.delete(found.handle)


async def no_save(_handle: Handle) -> None:
    """Save nothing; what matters here is on disk anyway."""


async def until(is_so: Callable[[], object]) -> None:
    while True:
        if is_so():
            return
        await asyncio.sleep(0.01)


def environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().strip("\0").split("\0")
    return dict(line.split("=", 1) for line in lines)


def change_state(directory: Path, **fields: object) -> None:
    file = directory / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def make_directory(path: str) -> None:
    Path(path).mkdir(mode=0o700)


def is_there(path: str) -> bool:
    return Path(path).exists()


def rights(path: Path | str) -> int:
    return Path(path).stat().st_mode & 0o777


async def test_a_command_that_cannot_be_found_is_failed_and_says_so(bench: Bench) -> None:
    handle = await bench.create("no-such-command", "--port", "1")
    report = await bench.wait(handle, Phase.FAILED)
    assert report.exit_code == 127
    assert report.reason == (
        "the command exited with code 127: cannot run no-such-command: No such file or directory"
    )


async def test_a_missing_module_is_failed_with_the_last_line_of_the_log(bench: Bench) -> None:
    handle = await bench.create("{python}", "-Im", "no_such_module")
    report = await bench.wait(handle, Phase.FAILED)
    assert report.exit_code == 1
    assert report.reason.endswith("No module named no_such_module")


async def test_a_killed_command_is_failed_with_the_signal(bench: Bench) -> None:
    handle = await bench.serve()
    os.kill(bench.state(handle)["command"][0], signal.SIGKILL)
    report = await bench.wait(handle, Phase.FAILED)
    assert (report.exit_code, report.reason) == (137, "the command was ended by SIGKILL")


async def test_what_a_command_started_ends_with_it(bench: Bench) -> None:
    handle = await bench.serve()
    await bench.run(handle, "sh", "-c", "(setsid sleep 100 &)")
    os.kill(bench.state(handle)["command"][0], signal.SIGTERM)
    await bench.wait(handle, Phase.FAILED)
    await until(lambda: not bench.processes(handle))


async def test_a_sandbox_whose_holder_was_killed_is_failed_and_ended(bench: Bench) -> None:
    handle = await bench.serve()
    os.kill(bench.state(handle)["shim"][0], signal.SIGKILL)
    report = await bench.wait(handle, Phase.FAILED)
    assert report.reason == "the process that holds the sandbox was killed"
    await until(lambda: not bench.processes(handle))


async def test_after_a_restart_of_the_machine_pids_mean_nothing_and_files_are_kept(
    bench: Bench,
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


async def test_an_ended_shim_is_not_left_as_a_zombie(bench: Bench) -> None:
    handle = await bench.create("true")
    await bench.wait(handle, Phase.FAILED)
    pid = bench.state(handle)["shim"][0]
    order = Order(sandbox_id=handle.sandbox_id, command=("true",))
    await bench.backend.create(order, no_save)
    while tree.look_up(pid) is not None:
        await bench.backend.inspect(handle)
    own = [item for item in tree.snapshot().values() if item.parent == os.getpid()]
    assert not [item for item in own if item.state == "Z"]


async def test_a_failed_sandbox_cannot_be_resumed_paused_or_told_to_execute(bench: Bench) -> None:
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
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
    async with on_bench(
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


async def test_the_agent_works_in_the_workspace_and_the_command_beside_it(bench: Bench) -> None:
    handle = await bench.serve("open('left', 'w').close()", working_dir="project/inner")
    report = await bench.backend.inspect(handle)
    assert report.working_dir == str(bench.directory(handle) / "workspace/project/inner")
    assert (await bench.run(handle, "pwd")).strip() == report.working_dir
    assert (bench.directory(handle) / "agent/left").exists()
    assert report.facts["isolation"] == "none"


async def test_many_sandboxes_started_at_once_never_share_a_port(bench: Bench) -> None:
    ports = (Port(name="web"), Port(name="other", awaited=False))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bench.create("sleep", "100", ports=ports)) for _ in range(12)]
    given = [port for task in tasks for port in bench.state(task.result())["ports"].values()]
    assert len(set(given)) == len(given) == 24


async def test_an_ordered_port_that_is_taken_is_a_failure_that_says_so(bench: Bench) -> None:
    first = await bench.serve()
    number = bench.state(first)["ports"]["web"]
    second = await bench.create("sleep", "100", ports=(Port(name="web", number=number),))
    report = await bench.wait(second, Phase.FAILED)
    assert report.reason == "a port cannot be had: Address already in use"


async def test_ports_that_are_not_awaited_need_not_answer(bench: Bench) -> None:
    handle = await bench.create("sleep", "100", ports=(Port(name="worker", awaited=False),))
    report = await bench.wait(handle, Phase.RUNNING)
    [endpoint] = report.endpoints
    assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"


async def test_a_port_that_does_not_answer_keeps_a_sandbox_starting(bench: Bench) -> None:
    handle = await bench.create("sleep", "100", ports=WEB)
    for _ in range(3):
        assert (await bench.backend.inspect(handle)).phase is Phase.STARTING


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
    async with on_bench(tmp_path, use_cgroups=use_cgroups) as bench:
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
    async with on_bench(tmp_path, use_cgroups=use_cgroups) as bench:
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
    async with on_bench(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        await bench.run(handle, "sh", "-c", "(sleep 99 >/dev/null 2>&1 &)")
        place = places.Place(directory=bench.directory(handle))
        place.write_pause(places.Pause(is_done=False))
        assert (await bench.backend.inspect(handle)).phase is Phase.PAUSED
        assert place.read_pause() == places.Pause(is_done=True)
        await bench.backend.resume(handle)
        await bench.wait(handle, Phase.RUNNING)


async def test_what_was_stopped_before_a_pause_stays_stopped_after_it(tmp_path: Path) -> None:
    async with on_bench(tmp_path, use_cgroups=False) as bench:
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


@BOTH_WAYS
async def test_a_command_killed_while_paused_is_failed(tmp_path: Path, use_cgroups: bool) -> None:
    async with on_bench(tmp_path, use_cgroups=use_cgroups) as bench:
        handle = await bench.serve()
        await bench.backend.pause(handle)
        os.kill(bench.state(handle)["command"][0], signal.SIGKILL)
        await until(lambda: not tree.is_alive(tuple(bench.state(handle)["command"])))
        report = await bench.backend.inspect(handle)
        assert (report.phase, report.reason) == (Phase.FAILED, "the command was killed")


async def test_secrets_in_the_output_are_masked_and_streams_told_apart(bench: Bench) -> None:
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
    async with on_bench(tmp_path, log_bytes=65536) as bench:
        handle = await bench.create("{python}", "-Ic", "for n in range(9000): print('line', n)")
        await bench.wait(handle, Phase.FAILED)
        lines = [line.text async for line in bench.backend.logs(handle, tail=500, follow=False)]
        assert lines == [f"line {number}" for number in range(8500, 9000)]
        sizes = [path.stat().st_size for path in bench.directory(handle).glob("log*")]
        assert sum(sizes) < 65536 + 2 * 65536  # one read may go beyond each file


async def test_a_sandbox_outlives_a_killed_server_and_is_adopted(bench: Bench) -> None:
    script = (
        "import asyncio, sys, pathlib\n"
        "from agentsvc.backend import *\n"
        "from agentsvc.backends.process import *\n"
        "async def save(handle): pass\n"
        "async def main():\n"
        "    context = BackendContext(instance_id=sys.argv[1], state_dir=pathlib.Path(sys.argv[2]))\n"
        "    backend = ProcessBackend(ProcessConfig(), context)\n"
        "    await backend.open()\n"
        "    order = Order(sandbox_id=sys.argv[3], command=('{python}', '-Ic', sys.argv[4],"
        " '{port.web}'), ports=(Port(name='web'),))\n"
        "    await backend.create(order, save)\n"
        "    print('made', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    sandbox_id = new_id()
    argv = [bench.instance_id, str(bench.state_dir), sandbox_id, SERVE]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *argv, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert await server.stdout.readline() == b"made\n"
    server.kill()
    await server.wait()
    [found] = await bench.backend.scan()
    assert found.handle.sandbox_id == sandbox_id
    await bench.wait(found.handle, Phase.RUNNING)
    await bench.backend.delete(found.handle)
    assert not bench.processes(found.handle)


@pytest.mark.parametrize("with_temp", [False, True], ids=["record", "record and temp"])
async def test_a_create_that_was_cut_short_is_finished_by_the_next(
    bench: Bench, with_temp: bool
) -> None:
    sandbox_id = new_id()
    place = places.Place(directory=bench.state_dir / sandbox_id)
    record = places.new_record(
        bench.instance_id, sandbox_id, root=places.temp_root(""), working_dir="", ports=()
    )
    place.make(lambda: record)
    if with_temp:
        make_directory(record.temp)
    [found] = await bench.backend.scan()
    assert found.handle.sandbox_id == sandbox_id
    assert (await bench.backend.inspect(found.handle)).reason == "it was never started"
    again = await bench.create("sleep", "100", sandbox_id=sandbox_id)
    await bench.wait(again, Phase.RUNNING)
    assert bench.state(again)["shim"][0] in [item.pid for item in bench.processes(again)]


async def test_a_temporary_directory_of_somebody_else_is_neither_used_nor_removed(
    bench: Bench,
) -> None:
    sandbox_id = new_id()
    place = places.Place(directory=bench.state_dir / sandbox_id)
    record = places.new_record(
        bench.instance_id, sandbox_id, root=places.temp_root(""), working_dir="", ports=()
    )
    place.make(lambda: record)
    places.make_temp(record.temp, "another/sandbox")
    with pytest.raises(BackendUnavailable):
        await bench.create("sleep", "100", sandbox_id=sandbox_id)
    [found] = await bench.backend.scan()
    await bench.backend.delete(found.handle)
    assert places.temp_mark(Path(record.temp)) == "another/sandbox"
    places.remove_directory(Path(record.temp))


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_mark_that_is_not_text_breaks_no_scan(tmp_path: Path, is_directory: bool) -> None:
    top = Path(places.new_temp_name(tmp_path))
    good = Path(places.new_temp_name(tmp_path))
    places.make_temp(str(good), "this/one")
    top.mkdir()
    if is_directory:
        (top / tree.MARK).mkdir()
    else:
        (top / tree.MARK).write_bytes(b"\xff\xfe/x")
    marks = dict(places.list_temps(tmp_path))
    assert marks.pop(good) == "this/one"
    assert marks == ({} if is_directory else {top: "\ufffd\ufffd/x"})


async def test_what_is_left_without_its_directory_is_found_and_removed(bench: Bench) -> None:
    handle = await bench.serve()
    group = handle.data["cgroup"]
    places.remove_directory(bench.directory(handle))
    [found] = await bench.backend.scan()
    assert found.handle.sandbox_id == handle.sandbox_id
    report = await bench.backend.inspect(found.handle)
    assert (report.phase, report.reason) == (Phase.FAILED, "its files are gone")
    with pytest.raises(Conflict, match="its files are gone"):
        await bench.backend.restart(
            Order(sandbox_id=handle.sandbox_id, command=("true",)), handle, no_save
        )
    await bench.backend.delete(found.handle)
    assert places.temp_mark(Path(handle.data["temp"])) is None
    assert not group or not is_there(group)
    assert not bench.processes(handle)


async def test_a_directory_that_was_made_read_only_is_deleted(bench: Bench) -> None:
    handle = await bench.serve()
    script = (
        "mkdir -p deep/er/st && touch deep/er/file && ln -s / deep/er/link && chmod 0 deep/er deep"
    )
    await bench.run(handle, "sh", "-c", script)
    await bench.backend.delete(handle)
    assert not bench.directory(handle).exists()


async def test_other_instances_directories_are_not_listed(bench: Bench) -> None:
    await bench.serve()
    other = ProcessBackend(
        ProcessConfig(), BackendContext(instance_id="other", state_dir=bench.state_dir)
    )
    assert await other.scan() == []


async def test_a_state_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context = BackendContext(instance_id="x", state_dir=tmp_path / "file" / "state")
    with pytest.raises(BackendUnavailable):
        await ProcessBackend(ProcessConfig(), context).open()


async def test_a_long_temporary_directory_is_not_used(tmp_path: Path) -> None:
    async with on_bench(tmp_path, temp_dir=str(tmp_path / ("long" * 25))) as bench:
        handle = await bench.serve()
        assert handle.data["temp"].startswith("/tmp/asvc-")  # noqa: S108  # what is checked


async def test_an_environment_that_cannot_be_is_a_failure_that_says_so(bench: Bench) -> None:
    handle = await bench.create("sleep", "1", env={"BAD": "nul\0byte"})
    report = await bench.wait(handle, Phase.FAILED)
    assert report.reason.endswith("cannot run sleep: embedded null byte")


async def test_a_shim_that_cannot_work_is_an_error_with_its_reason_in_the_log(
    bench: Bench,
) -> None:
    sandbox_id = new_id()
    (bench.state_dir / sandbox_id / "log").mkdir(parents=True)
    with pytest.raises(BackendUnavailable) as caught:
        await bench.create("sleep", "1", sandbox_id=sandbox_id)
    assert "IsADirectoryError" in caught.value.detail


async def test_a_probe_says_what_sandboxes_will_find(bench: Bench) -> None:
    health = await bench.backend.probe()
    assert health.ok
    assert health.facts["isolation"] == "none"
    assert health.facts["python"] == sys.executable
    assert int(health.facts["free disk bytes"]) > 0


REFUSED: dict[str, dict[str, Any]] = {
    "needs a command": {"command": None},
    "has no image": {"image": "debian"},
    "cannot enforce limits": {"limits": Limits(pids=1)},
    "no option `gpu`": {"options": {"gpu": 1}},
    "inside the workspace": {"working_dir": "/etc"},
    "relative path": {"working_dir": "../other"},
    "same name": {"ports": (Port(name="web"), Port(name="web"))},
    "names a port": {"env": {"PORT": "{port.other}"}},
}


@pytest.mark.parametrize(("message", "fields"), REFUSED.items(), ids=REFUSED)
async def test_what_can_never_work_is_refused(
    bench: Bench, message: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(OrderRejected, match=message):
        bench.backend.check_spec(Spec(**{"id": "x", "command": ("true",), **fields}))
    with pytest.raises(OrderRejected, match=message):
        await bench.create(**{"command": ("true",), **fields})
    assert await bench.backend.scan() == []


async def test_an_id_that_is_no_file_name_is_refused(bench: Bench) -> None:
    with pytest.raises(OrderRejected, match="id cannot name a directory"):
        await bench.create("true", sandbox_id="../../etc")


def test_the_default_spec_fits(tmp_path: Path) -> None:
    Bench(tmp_path).backend.check_spec(DEFAULT_SPEC)
