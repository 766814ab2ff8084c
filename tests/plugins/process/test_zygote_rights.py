"""What the process that loads the agent server for all sandboxes may do."""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from process import landlock
from process.programs.shim import ZYGOTE

from agentsvc.plugin.backend import Limits
from tests.plugins.process.rig import CoreRig
from tests.plugins.process.test_zygote import Probe, ProbeBackend, is_alive, probes
from tests.users import plain_user

pytestmark = pytest.mark.timeout(60)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="others have no rights to lose")

TOP = Path(__file__).parents[3]
FIRST, LAST = 1_900_000_000, 1_900_065_535
INSTANCES = Path("/proc/sys/user/max_inotify_instances")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NAMESPACES = ("mnt", "net", "ipc", "uts", "cgroup")


class HostileBackend(ProbeBackend):
    """Loads a package ahead that takes what it can get."""

    preload: ClassVar[str] = "tests.plugins.process.zygote_hostile"


@contextlib.contextmanager
def prey(directory: Path) -> Iterator[Path]:
    """Listen in the usual ways, and return a directory with a secret that says where."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        port = listener.getsockname()[1]
        abstract.bind(f"\0agentsvc-{port}")
        abstract.listen()
        target = directory / "data" / f"{port}-{os.getpid()}"
        target.mkdir(parents=True)
        (target / "master.key").write_text("the master key")
        yield target


@AS_ROOT
async def test_a_package_that_is_hostile_when_it_is_loaded_gets_nothing(tmp_path: Path) -> None:
    with prey(tmp_path) as target:
        path = f"{os.environ['PATH']}:{target}"
        async with probes(tmp_path, HostileBackend, path=path) as bench:
            probe = await bench.probe()
            assert probe.how == ZYGOTE
            assert probe.told["hostile"]["got"] == {}
            status = probe.told["hostile"]["status"]
    assert len({*status["Uid"].split(), *status["Gid"].split()}) == 1
    assert FIRST <= int(status["Uid"].split()[0]) <= LAST
    assert status["Groups"].split() == []
    assert {int(status[name], 16) for name in CAPABILITIES} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_it_gets_nothing_either_from_a_server_that_is_not_root(tmp_path: Path) -> None:
    found = seen_by_user(tmp_path)
    assert found["uid"] != 0
    assert found["how"] == [ZYGOTE] * 2
    assert found["hostile"]["got"] == {}
    status = found["hostile"]["status"]
    assert {int(status[name], 16) for name in CAPABILITIES} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert found["own"] == ["user", *NAMESPACES]


def test_a_server_that_is_not_root_has_no_zygote_that_could_send_it_signals(tmp_path: Path) -> None:
    found = seen_by_user(tmp_path, "without Landlock")
    why = "it could send signals to the server, which Linux prevents since 6.12"
    assert found["zygote"] == f"none: {why}"
    assert found["how"] == [f"a plain start: {why}"] * 2


async def test_there_is_no_zygote_that_nothing_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with probes(tmp_path, use_bubblewrap=False, zygote_delay_seconds=0.01) as bench:
        probe = await bench.probe()
        why = "bubblewrap does not work here, and the zygote needs it"
        assert probe.how == f"a plain start: {why}"
        assert (await bench.backend.probe()).facts["zygote"] == f"none: {why}"
    (line,) = [one for one in caplog.records if one.message.startswith("fork server not used")]
    assert (line.levelname, vars(line)["reason"]) == ("WARNING", why)


@AS_ROOT
async def test_the_zygote_is_a_user_of_its_own_in_namespaces_of_its_own(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        ones = [await bench.probe() for _ in range(2)]
        zygote = await bench.zygote()
        users = {user_of(bench, one) for one in ones}
        assert [one.how for one in ones] == [ZYGOTE] * 2
        assert len(users) == 2
        assert owner(zygote) not in {0, *users}
        for name in NAMESPACES:
            assert space(zygote, name) != space(os.getpid(), name)
        # The kernel lets none but a descendant's pid namespace be joined.
        assert space(zygote, "pid") == space(os.getpid(), "pid")


@AS_ROOT
async def test_a_sandbox_reaches_neither_the_zygote_nor_another_sandbox_through_it(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path) as bench:
        one, other = await bench.probe(), await bench.probe()
        zygote = await bench.zygote()
        pids = [zygote, *(process.pid for process in bench.processes(other.handle))]
        code = (
            "import os, sys\n"
            "for pid in map(int, sys.argv[1:]):\n"
            "    for act in (lambda: os.kill(pid, 9), lambda: os.listdir(f'/proc/{pid}')):\n"
            "        try:\n"
            "            act()\n"
            "            print('reached', pid)\n"
            "        except OSError:\n"
            "            pass\n"
            "print('done')"
        )
        told = [str(pid) for pid in pids if pid > 1000]
        assert (
            await bench.run(one.handle, sys.executable, "-I", "-S", "-c", code, *told) == "done\n"
        )
        assert is_alive(zygote)
        # Whoever is the zygote's user has no rights over a sandbox from where that is itself.
        assert one.told["nature"]["rights"]["CapEff"] == "0" * 16


@AS_ROOT
async def test_a_fork_is_limited_as_its_sandbox_is(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        limits = Limits(open_files=333, pids=50)
        fork = await bench.probe(limits=limits)
        plain = await bench.probe(limits=limits, options={"zygote": False})
        assert fork.how == ZYGOTE
        assert limits_of(fork) == limits_of(plain)
        assert fork.told["nature"]["limits"][resource.RLIMIT_NOFILE] == [333, 333]


USE_UP = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
tries = (libc.inotify_init, lambda: libc.sigqueue(os.getpid(), signal.SIGRTMIN, None))
print(*(next(count for count in range(1_000_000) if use() < 0) for use in tries))
"""


@AS_ROOT
async def test_a_sandbox_leaves_others_most_of_what_the_kernel_counts_for_the_zygote(
    tmp_path: Path,
) -> None:
    async with probes(tmp_path) as bench:
        probe = await bench.probe()
        assert probe.how == ZYGOTE
        watches, signals = map(
            int, (await bench.run(probe.handle, "python3", "-Ic", USE_UP)).split()
        )
    most = await asyncio.to_thread(INSTANCES.read_text)
    assert 0 < watches <= int(most) // 4
    assert 0 < signals <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] // 4


@AS_ROOT
async def test_root_has_no_zygote_where_it_would_be_root(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with probes(tmp_path, uids="", zygote_delay_seconds=0.01) as bench:
        probe = await bench.probe()
        why = "it would run as root: sandboxes have no users of their own here"
        assert probe.how == f"a plain start: {why}"
        assert (await bench.backend.probe()).facts["zygote"] == f"none: {why}"
    (line,) = [one for one in caplog.records if one.message.startswith("fork server not used")]
    assert (line.levelname, vars(line)["reason"]) == ("WARNING", why)


@AS_ROOT
async def test_a_way_out_of_its_own_leads_out_of_a_sandbox_with_a_fork(tmp_path: Path) -> None:
    async with probes(tmp_path) as bench:
        probe = await bench.probe()
        shown = await bench.run(
            probe.handle, "sh", "-c", "ls /sys/class/net 2>&1; cat /proc/net/dev"
        )
        assert probe.how == ZYGOTE
        assert "tap0" in shown


def seen_by_user(directory: Path, *arguments: str) -> dict[str, Any]:
    """Return what `zygote_of_user` tells."""
    if landlock.abi() < 6:
        pytest.skip("this kernel cannot keep a process from signals to others of its user")
    top = Path(tempfile.mkdtemp(prefix="agentsvc-rights-"))  # where anybody may get to
    try:
        before = plain_user(top)
        command = [
            sys.executable,
            "-B",
            "-m",
            "tests.plugins.process.zygote_of_user",
            str(top),
            *arguments,
        ]
        done = subprocess.run(
            [*before, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            cwd=TOP,
        )
    finally:
        shutil.rmtree(top)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def user_of(bench: CoreRig, probe: Probe) -> int:
    record = json.loads((bench.directory(probe.handle) / "record.json").read_text())
    user: int = record["user"]
    return user


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def limits_of(probe: Probe) -> tuple[object, str]:
    """Return the limits of a process, and the groups it is in but for its sandbox's name."""
    told = probe.told["nature"]
    return told["limits"], told["groups"].replace(probe.handle.sandbox_id, "ID")


def space(pid: int, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())
