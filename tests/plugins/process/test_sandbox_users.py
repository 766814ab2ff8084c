"""A server that is root gives each sandbox in bubblewrap a user of its own, inside and outside."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from process import bubblewrap, sandbox_directory, tree
from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded
from agentsvc.plugin.backend import Handle, Limits, Network, Phase
from tests.plugins.process.rig import CoreRig, core_rig, no_save, until
from tests.plugins.process.test_zygote import Probes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give users away")

FIRST = 1_900_000_000
COUNT = 65_536


@pytest.fixture(scope="module", autouse=True)
def users_can_be_given_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = bubblewrap.find(tmp_path_factory.mktemp("trial"), user=FIRST)
    reason = found.reason or found.shared
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[CoreRig]:
    async with on_boxes(tmp_path) as bench:
        yield bench


@asynccontextmanager
async def on_boxes(directory: Path, **config: Any) -> AsyncIterator[CoreRig]:
    async with core_rig(directory, use_bubblewrap=True, **config) as bench:
        yield bench


async def next_server(bench: CoreRig, **config: Any) -> None:
    """Have another server take over what there is, with another configuration."""
    await bench.backend.close()
    bench.backend = ProcessBackend(ProcessConfig(**config), bench.context())
    await bench.backend.open()


async def restarted(bench: CoreRig, handle: Handle) -> Handle:
    await bench.backend.stop(handle)
    handle = await bench.backend.restart(bench.orders[handle.sandbox_id], handle, no_save)
    await bench.wait(handle, Phase.RUNNING)
    return handle


async def answer_at_the_door(bench: CoreRig, handle: Handle) -> str:
    code = (
        "import socket\n"
        "link = socket.create_connection(('127.0.0.1', 3128), 20)\n"
        "link.sendall(b'CONNECT host.invalid:443 HTTP/1.1\\r\\nHost: host.invalid\\r\\n\\r\\n')\n"
        "print(link.recv(12).decode(), end='')"
    )
    return await bench.run(handle, sys.executable, "-I", "-S", "-c", code)


@pytest.fixture
def foreign() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a process of another user, with a mark."""
    with ExitStack() as stack:

        def begin(mark: str) -> subprocess.Popen[bytes]:
            argv = ["sleep", "60"]
            process = subprocess.Popen(argv, env={tree.MARK: mark}, user=1234)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


async def test_a_process_of_another_user_is_none_of_a_sandbox_whatever_its_mark(
    box: CoreRig, foreign: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    handle = await box.serve()
    own = box.processes(handle)
    process = foreign(sandbox_directory.mark_of(box.instance_id, handle.sandbox_id))
    await until(lambda: process.pid in [item.pid for item in box.processes(handle)])
    await box.backend.stop(handle)
    assert not any(tree.is_alive(item.identity) for item in own)
    await box.backend.delete(handle)
    # Nor of one that is gone.
    assert list(await box.backend.scan()) == []
    assert (await box.backend.inspect(handle)).phase is Phase.GONE
    await box.backend.delete(handle)
    assert process.poll() is None


def owners(directory: Path) -> set[tuple[int, int]]:
    found = [directory, *directory.rglob("*")]
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in found}


def users_of(bench: CoreRig, handle: Handle) -> set[tuple[int, ...]]:
    """Return the real, effective, saved and file system users and groups of what runs, outside."""
    shim = bench.state(handle)["shim"][0]
    pids = [process.pid for process in bench.processes(handle) if process.pid != shim]
    assert len(pids) >= 3
    return {ids for pid in pids for ids in ids_of(pid)}


def ids_of(pid: int) -> list[tuple[int, ...]]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended meanwhile
        return []
    return [tuple(map(int, line.split()[1:])) for line in lines if line[:4] in ("Uid:", "Gid:")]


def user_of(bench: CoreRig, handle: Handle) -> int:
    record = json.loads((bench.directory(handle) / "record.json").read_text())
    user: int = record["user"]
    return user


async def test_each_sandbox_is_somebody_else_and_nobody_is_root(box: CoreRig) -> None:
    one, other = await box.serve(), await box.serve()
    users = [user_of(box, handle) for handle in (one, other)]
    assert len({*users}) == 2
    for handle, user in zip((one, other), users, strict=True):
        assert user in range(FIRST, FIRST + COUNT)
        assert users_of(box, handle) == {(user,) * 4}
        for name in ("workspace", "home", "agent"):
            assert owners(box.directory(handle) / name) == {(user, user)}
        told = await box.run(
            handle, "sh", "-c", "id -u; id -g; id -G; cut -b-10 /proc/self/uid_map"
        )
        assert told.split() == ["1000"] * 4
        assert (await box.backend.inspect(handle)).facts["user outside"] == "its own"
    assert (await box.backend.probe()).facts["users"] == f"one each of {FIRST}-{FIRST + COUNT - 1}"


async def test_what_root_alone_may_read_is_not_read_inside_even_where_it_is_seen(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    shown.chmod(0o755)
    for name, mode in (("secret", 0o600), ("open", 0o644)):
        (shown / name).write_text(name)
        (shown / name).chmod(mode)
    async with on_boxes(tmp_path / "boxes", readable=(str(shown),)) as bench:
        handle = await bench.serve()
        code = (
            f"cat {shown}/open; cat {shown}/secret || echo refused; setpriv --reuid 0 id || echo no"
        )
        assert await bench.run(handle, "sh", "-c", code) == "openrefused\nno\n"


async def test_nothing_leads_back_to_the_namespaces_it_was_made_in(box: CoreRig) -> None:
    handle = await box.serve()
    code = "for d in /proc/[0-9]*/fd/*; do readlink $d; done | grep -c user:"
    result = await box.backend.execute(
        handle, ["sh", "-c", code], env={}, time_limit=10, max_output=1000
    )
    assert result.stdout == b"0\n"


async def test_its_output_can_be_opened_by_name(box: CoreRig) -> None:
    handle = await box.create("sh", "-c", "echo to-out >/dev/stdout; echo to-err >/dev/stderr")
    await until(lambda: box.state(handle)["exit"])
    lines = {line.text async for line in box.backend.logs(handle, tail=10, follow=False)}
    assert lines == {"to-out", "to-err"}


async def test_all_of_it_ends_with_what_holds_it(box: CoreRig) -> None:
    handle = await box.serve()
    os.kill(box.state(handle)["shim"][0], signal.SIGKILL)
    await until(lambda: not box.processes(handle))


async def test_files_are_handed_over_when_it_starts_again_after_an_upgrade(tmp_path: Path) -> None:
    async with on_boxes(tmp_path, uids="") as bench:
        handle = await bench.serve(network=Network.NONE)
        work = bench.directory(handle) / "workspace"
        await bench.run(
            handle, "sh", "-c", "mkdir -p a/b; echo 1 >a/b/file; ln -s /etc/passwd link"
        )
        assert owners(work) == {(0, 0)}
        assert (await bench.backend.inspect(handle)).facts["user outside"] == "root"

        await next_server(bench)
        # What runs is left alone.
        assert owners(work) == {(0, 0)}
        assert await bench.run(handle, "cat", "a/b/file") == "1\n"
        assert await answer_at_the_door(bench, handle) == "HTTP/1.1 403"
        passwd = os.lstat("/etc/passwd").st_uid

        handle = await restarted(bench, handle)
        user = user_of(bench, handle)
        assert owners(work) == {(user, user)}
        await bench.run(handle, "sh", "-c", "echo 2 >>a/b/file; echo 3 >a/b/other")
        assert os.lstat("/etc/passwd").st_uid == passwd
        assert await answer_at_the_door(bench, handle) == "HTTP/1.1 403"

        # And back, where the configuration no longer has users.
        await next_server(bench, uids="")
        handle = await restarted(bench, handle)
        assert owners(work) == {(0, 0)}
        await bench.run(handle, "sh", "-c", "echo 4 >>a/b/file")
        assert (work / "a/b/file").read_text() == "1\n2\n4\n"


async def test_how_many_processes_run_is_limited_without_control_groups(tmp_path: Path) -> None:
    code = (
        "import json, os, time\n"
        "def child():\n"
        "    pid = os.fork()\n"
        "    if pid == 0: time.sleep(1000)\n"
        "    return pid\n"
        "made = []\n"
        "try:\n"
        "    while len(made) < 100: made.append(child())\n"
        "except BlockingIOError: pass\n"
        "for pid in made: os.kill(pid, 9)\n"
        "print(len(made))"
    )
    async with on_boxes(tmp_path, use_cgroups=False) as bench:
        one, other = [await bench.serve(limits=Limits(pids=20)) for _ in range(2)]
        assert (await bench.backend.inspect(one)).enforced == ("pids",)
        for handle in (one, other):
            count = int(await bench.run(handle, sys.executable, "-I", "-S", "-c", code))
            assert 5 <= count < 20


async def test_it_stays_who_it_is_over_restarts_of_both(box: CoreRig) -> None:
    handle = await box.serve()
    user = user_of(box, handle)
    await next_server(box)
    handle = await restarted(box, handle)
    assert user_of(box, handle) == user
    assert users_of(box, handle) == {(user,) * 4}


async def test_a_working_directory_that_is_gone_is_made_anew_for_it(box: CoreRig) -> None:
    handle = await box.serve(working_dir="project/deep")
    await box.run(handle, "sh", "-c", "cd ../.. && rm -r project")
    assert not (box.directory(handle) / "workspace/project").exists()
    handle = await restarted(box, handle)
    await box.run(handle, "sh", "-c", "echo here >file && echo >../file")
    assert (box.directory(handle) / "workspace/project/deep/file").read_text() == "here\n"


async def test_numbers_that_are_used_up_are_said_and_come_back(tmp_path: Path) -> None:
    async with on_boxes(tmp_path, uids=f"{FIRST}-{FIRST}") as bench:
        handle = await bench.serve()
        with pytest.raises(CapacityExceeded, match="uids"):
            await bench.serve()
        await bench.backend.delete(handle)
        assert user_of(bench, await bench.serve()) == FIRST


async def test_a_number_is_not_lost_where_nothing_can_be_stored(tmp_path: Path) -> None:
    async with on_boxes(tmp_path, uids=f"{FIRST}-{FIRST}") as bench:
        away = bench.state_dir.rename(tmp_path / "away")
        with pytest.raises(BackendUnavailable):
            await bench.serve()
        away.rename(bench.state_dir)
        assert user_of(bench, await bench.serve()) == FIRST


async def test_where_not_everybody_may_read_what_it_needs_it_is_root_outside_and_says_so(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    async with on_boxes(tmp_path / "boxes", readable=(str(closed),)) as bench:
        said = (await bench.backend.probe()).facts["users"]
        assert said == f"the server's: other users may not read {closed}"
        handle = await bench.serve()
        assert users_of(bench, handle) == {(0,) * 4}
        assert (await bench.backend.inspect(handle)).facts["user outside"] == "root"


async def test_where_root_alone_may_run_bubblewrap_it_is_root_outside_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").symlink_to(str(shutil.which("bwrap")))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with on_boxes(tmp_path / "boxes") as bench:
        assert (await bench.backend.probe()).facts["users"] == "the server's: Permission denied"
        assert users_of(bench, await bench.serve()) == {(0,) * 4}


@pytest.mark.timeout(60)
async def test_a_fork_of_a_loaded_program_is_its_user_too(tmp_path: Path) -> None:
    bench = Probes(tmp_path, use_bubblewrap=True)
    await bench.backend.open()
    try:
        probe = await bench.probe()
        assert probe.report.facts["started by"] == "zygote"
        user = user_of(bench, probe.handle)
        assert users_of(bench, probe.handle) == {(user,) * 4}
        status = "Cap[A-Za-z]*:.*[1-9a-f]|Seccomp:.*2|NoNewPrivs:.*1|Groups:.*[0-9]"
        pids = "for p in /proc/[0-9]*; do grep -E '%s' $p/status; done | sort -u" % status  # noqa: UP031
        told = await bench.run(probe.handle, "sh", "-c", pids)
        assert told.split() == ["NoNewPrivs:", "1", "Seccomp:", "2"]
    finally:
        for found in await bench.backend.scan():
            await bench.backend.delete(found.handle)
        await bench.backend.close()
