"""What a sandbox that bubblewrap holds can see, reach and do: tried from inside, seen from outside."""

import asyncio
import errno
import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from process import bubblewrap, landlock, seccomp
from process.backend import ProcessBackend
from process.files import ChildFiles
from process.settings import OpenNetwork, ProcessConfig

from agentsvc.base.errors import OrderRejected
from agentsvc.base.values import Secret
from agentsvc.plugin.backend import BackendContext, Cause, Handle, Isolation, Network, Phase, Report
from agentsvc.testing.rig import ask, web_url
from tests.plugins.process.rig import CoreRig, core_rig

CANARY = "canary-of-the-server"

CALL = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *(list(arguments) + [0] * (5 - len(arguments))))
    return ctypes.get_errno()
"""


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CoreRig]:
    found = await asyncio.to_thread(bubblewrap.find, tmp_path)
    if not found.program and os.environ.get("CI"):
        pytest.fail(found.reason)
    if not found.program:
        pytest.skip(found.reason)
    monkeypatch.setenv("SERVER_CANARY", CANARY)
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        yield bench


def directory_at(path: Path) -> Path:
    path.mkdir()
    return path


def exists(path: str) -> bool:
    return Path(path).exists()


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def inside(bench: CoreRig, handle: Handle, code: str, *arguments: object) -> Any:
    """Run Python in a sandbox; what it prints is JSON."""
    argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    result = await bench.backend.execute(handle, argv, env={}, time_limit=30, max_output=200_000)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)


def listener_at(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


async def test_a_sandbox_says_how_it_is_held(box: CoreRig) -> None:
    handle = await box.serve()
    report = await box.backend.inspect(handle)
    assert report.isolation is Isolation.BUBBLEWRAP
    assert (await box.backend.probe()).facts["isolation"] == "bubblewrap"
    assert await ask(web_url(report), "GET", "/")


async def test_files_of_the_server_the_user_and_other_sandboxes_do_not_exist_inside(
    box: CoreRig, tmp_path: Path
) -> None:
    other = await box.serve()
    handle = await box.serve()
    secret = tmp_path / "master.key"
    secret.write_text(CANARY)
    (box.directory(other) / "workspace" / "theirs").write_text(CANARY)
    with listener_at(tmp_path / "docker.sock"):
        hidden = [
            secret,
            tmp_path / "docker.sock",
            box.directory(other) / "workspace",
            box.directory(handle) / "record.json",
            box.directory(handle) / "state.json",
            box.directory(handle) / "log",
            Path.home() / ".ssh",
            Path.home() / ".bash_history",
            Path.home() / ".gitconfig",
            Path("/etc/shadow"),
            Path("/etc/ssh"),
            Path("/var/lib"),
            Path("/var/run/docker.sock"),
            Path("/run/docker.sock"),
            Path("/sys/kernel"),
            Path("/boot"),
            Path("/proc/kcore"),
        ]
        code = (
            "import json, os, sys\n"
            "def opens(path):\n"
            "    try: return bool(os.listdir(path) if os.path.isdir(path) else open(path).read(1))\n"
            "    except OSError: return False\n"
            "print(json.dumps([path for path in sys.argv[1:] if opens(path)]))"
        )
        assert await inside(box, handle, code, *hidden) == []


async def test_of_the_configuration_only_what_anybody_may_read_is_seen(box: CoreRig) -> None:
    handle = await box.serve()
    code = (
        "import json, os\n"
        "print(json.dumps([os.path.join(top, name) for top, *inner in os.walk('/etc')"
        " for names in inner for name in names]))"
    )
    found = {path for path in await inside(box, handle, code) if exists(path)}
    wanted = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/ssl/openssl.cnf")
    assert found >= {path for path in wanted if exists(path)}
    assert [path for path in found if not os.lstat(path).st_mode & 0o004] == []


async def test_no_process_but_its_own_is_seen_and_none_tells_of_the_server(box: CoreRig) -> None:
    handle = await box.serve(secret_env={"TOKEN": Secret("token-of-the-sandbox")})
    code = (
        "import json, os\n"
        "def read(path):\n"
        "    try: return open(path, errors='replace').read()\n"
        "    except OSError: return ''\n"
        "pids = [name for name in os.listdir('/proc') if name.isdigit()]\n"
        "print(json.dumps({name: read(f'/proc/{name}/environ') + read(f'/proc/{name}/cmdline')"
        " for name in pids}))"
    )
    seen = await inside(box, handle, code)
    assert "1" in seen
    assert len(seen) < 10
    assert CANARY not in str(seen)
    assert "token-of-the-sandbox" not in seen["1"]
    outer = box.state(handle)["command"][0]
    assert read(f"/proc/{outer}/environ") == b""
    assert read(f"/proc/{outer}/cmdline").split(b"\0")[1] == b"--args"


async def test_signals_do_not_leave_the_sandbox(box: CoreRig) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "100")
    try:
        handle = await box.serve()
        code = (
            "import json, os, signal, sys\n"
            "told = []\n"
            "for pid in (int(sys.argv[1]), int(sys.argv[2])):\n"
            "    try: os.kill(pid, signal.SIGKILL)\n"
            "    except ProcessLookupError: told.append('nobody')\n"
            "print(json.dumps(told))"
        )
        pids = (bystander.pid, box.state(handle)["shim"][0])
        assert await inside(box, handle, code, *pids) == ["nobody", "nobody"]
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()


async def test_a_project_is_where_containers_have_it_too(box: CoreRig) -> None:
    handle = await box.serve()
    code = (
        "import json\nopen('/workspace/project/here', 'w').write('yes')\nprint(json.dumps('done'))"
    )
    assert await inside(box, handle, code) == "done"
    assert (box.directory(handle) / "workspace" / "here").read_text() == "yes"


@pytest.mark.parametrize("shown", ["/workspace", "/workspace/project", "/workspace/project/data"])
def test_what_is_shown_where_containers_have_projects_stays_what_it_is(shown: str) -> None:
    assert bubblewrap.can_show_workspace([Path("/usr"), Path("/workspaces")])
    assert not bubblewrap.can_show_workspace([Path("/usr"), Path(shown)])


async def test_only_workspace_home_and_temp_can_be_written(box: CoreRig) -> None:
    handle = await box.serve()
    directory = box.directory(handle)
    code = (
        "import json, os, sys\n"
        "def writes(path):\n"
        "    try: open(os.path.join(path, 'written'), 'w').write('x')\n"
        "    except OSError: return False\n"
        "    return True\n"
        "print(json.dumps([path for path in sys.argv[1:] if writes(path)]))"
    )
    good = [str(directory / name) for name in ("workspace", "home", "agent")] + ["/tmp", "/dev/shm"]  # noqa: S108  # the sandbox's own
    good.append("/workspace/project")
    bad = [
        "/",
        "/workspace",
        "/usr",
        "/usr/bin",
        "/etc",
        "/run",
        "/var",
        "/proc/sys/kernel",
        sys.prefix,
    ]
    bad.append(str(Path(bubblewrap.__file__).parent))
    assert await inside(box, handle, code, *good, *bad) == good
    # What is above them is the sandbox's own, where it is at all.
    await inside(box, handle, code, directory, box.state_dir, box.state_dir.parent)
    assert not exists(f"{directory}/written")
    assert not exists(f"{box.state_dir}/written")
    # They are the server's to read and to remove, whoever wrote them inside.
    assert (directory / "workspace" / "written").read_text() == "x"
    owner = (directory / "workspace").stat().st_uid
    assert (directory / "workspace" / "written").stat().st_uid == owner
    assert (owner == os.getuid()) == (os.getuid() != 0)
    assert not exists("/tmp/written")  # noqa: S108  # where it would be if /tmp were shared


async def test_settings_of_the_kernel_cannot_be_changed(box: CoreRig) -> None:
    # By opening alone: a test that fails must not change this machine.
    handle = await box.serve()
    code = (
        "import json, os\n"
        "def opens(path):\n"
        "    try: os.close(os.open(path, os.O_WRONLY))\n"
        "    except OSError: return False\n"
        "    return True\n"
        "found = [os.path.join(top, name) for root in ('/proc/sys', '/proc/irq', '/sys')"
        " for top, _, names in os.walk(root) for name in names]\n"
        "found += ['/proc/sysrq-trigger', '/proc/self/oom_score_adj', '/dev/kmsg', '/dev/mem']\n"
        "print(json.dumps([len(found) > 100, [path for path in found if opens(path)]]))"
    )
    assert await inside(box, handle, code) == [True, []]


async def test_links_out_of_the_workspace_lead_nowhere_and_are_not_followed_at_removal(
    box: CoreRig, tmp_path: Path
) -> None:
    kept = directory_at(tmp_path / "kept")
    (kept / "file").write_text(CANARY)
    handle = await box.serve()
    code = (
        "import json, os, sys\n"
        "os.symlink(sys.argv[1], 'link')\n"
        "os.symlink('/etc/shadow', 'shadow')\n"
        "print(json.dumps([os.path.exists('link'), os.path.exists('shadow')]))"
    )
    assert await inside(box, handle, code, kept) == [False, False]
    await box.backend.delete(handle)
    assert (kept / "file").read_text() == CANARY


async def test_sockets_without_a_path_that_are_others_cannot_be_reached(tmp_path: Path) -> None:
    if landlock.abi() < 6:
        pytest.skip("this kernel cannot keep a process from abstract sockets")
    async with core_rig(tmp_path, use_bubblewrap=True, network=OpenNetwork.HOST) as box:
        await reaches_its_own_abstract_sockets_only(box)


async def reaches_its_own_abstract_sockets_only(box: CoreRig) -> None:
    handle = await box.serve()
    name = f"agentsvc-test-{handle.sandbox_id}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        code = (
            "import json, socket, sys\n"
            "def reaches(name):\n"
            "    with socket.socket(socket.AF_UNIX) as link:\n"
            "        return link.connect_ex(chr(0) + name)\n"
            "own = socket.socket(socket.AF_UNIX)\n"
            "own.bind(chr(0) + sys.argv[1] + 'own')\n"
            "own.listen()\n"
            "print(json.dumps([reaches(sys.argv[1]), reaches(sys.argv[1] + 'own')]))"
        )
        assert await inside(box, handle, code, name) == [errno.EPERM, 0]


async def test_dangerous_calls_are_refused_and_ordinary_ones_are_not(box: CoreRig) -> None:
    kind = seccomp.MACHINES.get(platform.machine())
    if kind is None:
        pytest.skip(f"there is no filter for {platform.machine()}")
    handle = await box.serve()
    names = ["keyctl", "add_key", "bpf", "mount", "umount2", "pivot_root", "unshare"]
    names += ["init_module", "kexec_load", "perf_event_open", "userfaultfd", "chroot", "io_setup"]
    numbers = {"setns": kind.calls["setns"], **{name: kind.refused[name] for name in names}}
    told = await inside(
        box,
        handle,
        CALL + "print(json.dumps({n: call(v) for n, v in json.loads(sys.argv[1]).items()}))",
        json.dumps(numbers),
    )
    assert told == dict.fromkeys(numbers, errno.EPERM)

    rest = (
        "clone, socket_call, ioctl = map(int, sys.argv[1:])\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(json.dumps({'namespace': call(clone, 0x10000000), 'family': call(socket_call, 40, 1),"
        " 'typing': call(ioctl, 0, 0x5412), 'ring': call(425), 'clone3': call(435),"
        " 'caps': int(status['CapEff'], 16), 'bounds': int(status['CapBnd'], 16),"
        " 'privileges': int(status['NoNewPrivs']), 'filter': int(status['Seccomp']),"
        " 'child': os.waitstatus_to_exitcode(os.system('exit 7'))}))"
    )
    asked = [kind.calls[name] for name in ("clone", "socket", "ioctl")]
    told = await inside(box, handle, CALL + rest, *asked)
    assert told == {
        "namespace": errno.EPERM,
        "family": errno.EAFNOSUPPORT,
        "typing": errno.EPERM,
        "ring": errno.ENOSYS,
        "clone3": errno.ENOSYS,
        "caps": 0,
        "bounds": 0,
        "privileges": 1,
        "filter": 2,
        "child": 7,
    }


async def test_a_sandbox_without_network_is_reached_and_reaches_the_server_only(
    tmp_path: Path, box: CoreRig
) -> None:
    del box  # which is there to see that bubblewrap works
    async with Greeters() as (port, other_port):
        context = BackendContext(
            instance_id="i" * 32,
            state_dir=tmp_path / "own",
            callback_url=f"http://127.0.0.1:{port}",
        )
        bench = CoreRig(tmp_path / "x")
        bench.instance_id, bench.state_dir = context.instance_id, context.state_dir
        bench.backend = ProcessBackend(ProcessConfig(), context)
        await bench.backend.open()
        handle = await bench.serve(network=Network.NONE)
        try:
            assert await ask(web_url(await bench.backend.inspect(handle)), "GET", "/")
            await reaches_the_server_only(bench, handle, port, other_port)
            # The next server opens the door again.
            await bench.backend.close()
            assert await told_by(bench, handle, port) == ""
            bench.backend = ProcessBackend(ProcessConfig(), context)
            await bench.backend.open()
            await reaches_the_server_only(bench, handle, port, other_port)
        finally:
            await bench.backend.delete(handle)
            await bench.backend.close()


class Greeters:
    """Two servers on this machine's loopback interface that say hello."""

    async def __aenter__(self) -> tuple[int, int]:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            await writer.drain()
            writer.close()

        self.servers = [await asyncio.start_server(greet, "127.0.0.1", 0) for _ in range(2)]
        one, two = (int(item.sockets[0].getsockname()[1]) for item in self.servers)
        return one, two

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()
            await server.wait_closed()


async def told_by(bench: CoreRig, handle: Handle, port: int) -> str:
    code = (
        "import json, socket, sys\n"
        "try:\n"
        "    link = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)\n"
        "    print(json.dumps(link.recv(100).decode()))\n"
        "except OSError as exc: print(json.dumps(''))"
    )
    told: str = await inside(bench, handle, code, port)
    return told


async def reaches_the_server_only(bench: CoreRig, handle: Handle, port: int, other: int) -> None:
    assert await told_by(bench, handle, port) == "hello"
    assert await told_by(bench, handle, other) == ""


async def test_a_sandbox_with_an_open_network_says_that_it_is_its_own(box: CoreRig) -> None:
    own = "one of its own"
    assert (await box.backend.probe()).facts["open network"].startswith(own)
    async with Greeters() as (port, _):
        handle = await box.serve()
        assert (await box.backend.inspect(handle)).facts["network"].startswith(own)
        assert await told_by(box, handle, port) == ""
        alone = await box.serve(network=Network.NONE)
        assert "network" not in (await box.backend.inspect(alone)).facts
        assert await told_by(box, alone, port) == ""


async def test_nobody_inside_ends_what_leads_to_the_ports(box: CoreRig) -> None:
    handle = await box.serve()
    code = (
        "import os, signal\n"
        "for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGHUP): os.kill(1, number)\n"
        "print(1)"
    )
    assert await inside(box, handle, code) == 1
    assert await ask(web_url(await box.backend.inspect(handle)), "GET", "/")


TERMINALS = """
import errno, os, resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
try:
    while True:
        held.append(os.openpty())
except OSError as exc:
    print(len(held), errno.errorcode[exc.errno])
"""


async def test_a_sandbox_takes_few_of_the_terminals_that_all_share(box: CoreRig) -> None:
    handle = await box.create("sleep", "100")
    assert await box.run(handle, "python3", "-Ic", TERMINALS) == "256 ENOSPC\n"


async def test_a_command_that_ends_takes_everything_inside_with_it(box: CoreRig) -> None:
    handle = await box.create("/bin/sh", "-c", "setsid sleep 1000 & exit 9")
    report = await ended(box, handle)
    assert report.exit_code == 9
    while True:
        if not box.processes(handle):
            return
        await asyncio.sleep(0.02)


async def test_a_killed_command_is_told_as_such(box: CoreRig) -> None:
    handle = await box.create("/bin/sh", "-c", "kill -SEGV $$")
    report = await ended(box, handle)
    assert report.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV" in report.reason


async def ended(bench: CoreRig, handle: Handle) -> Report:
    while True:
        report = await bench.backend.inspect(handle)
        if report.phase is Phase.FAILED:
            return report
        await asyncio.sleep(0.02)


async def test_the_sockets_of_a_sandbox_are_out_of_its_sight(box: CoreRig) -> None:
    handle = await box.serve()
    path = unquote(web_url(await box.backend.inspect(handle)).removeprefix("http+unix://"))
    code = "import json, os, sys; print(json.dumps(os.path.lexists(sys.argv[1])))"
    assert exists(path)
    assert await inside(box, handle, code, path) is False


async def test_a_box_that_breaks_is_a_failure_with_its_reason(box: CoreRig, tmp_path: Path) -> None:
    gone = directory_at(tmp_path / "gone")
    async with core_rig(tmp_path / "b", use_bubblewrap=True, readable=(str(gone),)) as bench:
        gone.rmdir()
        handle = await bench.create("true")
        report = await ended(bench, handle)
    assert "bubblewrap could not be set up" in report.reason
    assert "gone" in report.reason


async def test_nothing_starts_without_bubblewrap_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = directory_at(tmp_path / "tools")
    program = tools / "bwrap"
    shutil.copy(str(shutil.which("bwrap")), program)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        program.unlink()
        mark = tmp_path / "it-ran"
        handle = await bench.create("touch", str(mark), isolation=Isolation.BUBBLEWRAP)
        report = await bench.backend.inspect(handle)
        assert (report.phase, report.cause) == (Phase.FAILED, Cause.NOT_STARTED)
        assert "bubblewrap" in report.reason
        assert not mark.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [("", "not installed"), ("echo no namespaces for you >&2; exit 1", "no namespaces for you")],
)
async def test_without_bubblewrap_sandboxes_run_and_say_that_they_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    tools = directory_at(tmp_path / "tools")
    if script:
        (tools / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "bwrap").chmod(0o755)
    (tools / "sh").symlink_to(str(shutil.which("sh")))
    monkeypatch.setenv("PATH", str(tools))
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        assert reason in (await bench.backend.probe()).facts["bubblewrap"]
        handle = await bench.serve()
        report = await bench.backend.inspect(handle)
        assert not report.isolation or not report.isolation.meets(Isolation.BUBBLEWRAP)
        with pytest.raises(OrderRejected, match=f"at least `bubblewrap` is required; .*{reason}"):
            await bench.create("true", isolation=Isolation.BUBBLEWRAP)


async def test_what_the_trial_of_a_killed_server_left_is_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with core_rig(tmp_path) as bench:
        left = directory_at(bench.state_dir / ".trial-left")
        (left / "file").touch()
        await bench.backend.open()
        assert list(bench.state_dir.iterdir()) == []


async def test_the_trial_of_another_process_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    async with core_rig(tmp_path) as bench:
        alive = directory_at(bench.state_dir / ".trial-alive")
        other = os.open(bench.state_dir, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_SH)
            await bench.backend.open()
            assert alive.exists()
        finally:
            os.close(other)
        await bench.backend.open()
        assert not alive.exists()


def test_a_python_that_shares_its_directory_with_the_data_is_not_shown(tmp_path: Path) -> None:
    found = bubblewrap.find(tmp_path / "data", (tmp_path,))
    assert not found.program
    assert "sandboxes would see too much" in found.reason or "not installed" in found.reason


def test_a_user_without_a_home_has_bubblewrap_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = bubblewrap.find(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert bubblewrap.find(tmp_path) == known


def test_data_in_what_every_sandbox_sees_of_the_system_is_not_shown() -> None:
    found = bubblewrap.find(Path("/usr/local/share/data-of-a-server"))
    assert not found.program
    assert "sandboxes would see too much" in found.reason or "not installed" in found.reason


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_is_held_too() -> None:
    program = shutil.which("bwrap")
    if program is None:
        pytest.skip("bubblewrap is not installed")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        work = directory_at(Path(name) / "work")
        for path in (Path(name), work):
            os.chown(path, 65534, 65534)
        view = bubblewrap.View(mark="x/y", writable=(work,), temp=None, home=work)
        with ChildFiles() as files:
            for key, data in bubblewrap.data(view).items():
                files.add(key, data)
            number = files.add_arguments(bubblewrap.arguments(view))
            said = subprocess.run(
                [program, "--args", str(number), "/bin/sh", "-c", f"id -u; >{work}/made; ls /root"],
                user=65534,
                group=65534,
                extra_groups=(),
                env={},
                capture_output=True,
                pass_fds=files.numbers(),
                check=False,
            )
        assert said.stdout == b"1000\n", said
        assert (work / "made").stat().st_uid == 65534
