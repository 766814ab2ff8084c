"""Process sandboxes outlive their server, and what is left of them is found."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process import sandbox_directory, tree
from process.backend import ProcessBackend
from process.handles import HANDLE_VERSION
from process.sandbox_directory import OutboundNetwork
from process.settings import ProcessConfig

from agentsvc.base.errors import Conflict
from agentsvc.base.values import monotonic, new_id
from agentsvc.plugin import remove_directory
from agentsvc.plugin.backend import BackendContext, Handle, Order, Phase
from tests.plugins.process.rig import (
    SERVE,
    CoreRig,
    is_there,
    make_directory,
    no_save,
)


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path: Path) -> None:
    place = sandbox_directory.SandboxDirectory(directory=tmp_path)
    (tmp_path / "pause.json").mkdir()
    with pytest.raises(IsADirectoryError):
        place.write_pause(sandbox_directory.Pause(is_done=False))
    assert [path.name for path in tmp_path.iterdir()] == ["pause.json"]


async def test_what_is_removed_while_all_is_listed_ends_no_list(bench: CoreRig) -> None:
    handle = await bench.serve()
    # As a link to nowhere a name is there, and what is behind it is not.
    removed = bench.state_dir / ("b" * 32)
    removed.symlink_to(bench.state_dir / "gone")
    assert [one.handle.sandbox_id for one in await bench.backend.scan()] == [handle.sandbox_id]
    removed.unlink()


async def test_a_sandbox_outlives_a_killed_server_and_is_adopted(bench: CoreRig) -> None:
    script = (
        "import asyncio, sys, pathlib\n"
        "from agentsvc.plugin.backend import *\n"
        "import tests\n"
        "from process.backend import *\n"
        "async def save(handle): pass\n"
        "async def main():\n"
        "    context = BackendContext(instance_id=sys.argv[1], state_dir=pathlib.Path(sys.argv[2]))\n"
        "    backend = ProcessBackend(ProcessConfig(use_bubblewrap=False), context)\n"
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
    bench: CoreRig, with_temp: bool
) -> None:
    sandbox_id = new_id()
    place = sandbox_directory.SandboxDirectory(directory=bench.state_dir / sandbox_id)
    order = Order(sandbox_id=sandbox_id)
    root = sandbox_directory.temp_root("")
    record = sandbox_directory.new_record(bench.instance_id, order, root)
    record = record.connected(OutboundNetwork.HOST, "")
    place.make(record)
    if with_temp:
        make_directory(record.temp)
    [found] = await bench.backend.scan()
    assert found.handle.sandbox_id == sandbox_id
    assert (await bench.backend.inspect(found.handle)).reason == "it was never started"
    again = await bench.create("sleep", "100", sandbox_id=sandbox_id)
    await bench.wait(again, Phase.RUNNING)
    assert bench.state(again)["shim"][0] in [item.pid for item in bench.processes(again)]


async def test_a_temporary_directory_of_somebody_else_is_neither_used_nor_removed(
    bench: CoreRig,
) -> None:
    sandbox_id = new_id()
    place = sandbox_directory.SandboxDirectory(directory=bench.state_dir / sandbox_id)
    order = Order(sandbox_id=sandbox_id)
    root = sandbox_directory.temp_root("")
    record = sandbox_directory.new_record(bench.instance_id, order, root)
    record = record.connected(OutboundNetwork.HOST, "")
    place.make(record)
    sandbox_directory.make_temp(record.temp, "another/sandbox")
    handle = await bench.create("sleep", "100", sandbox_id=sandbox_id)
    await bench.wait(handle, Phase.RUNNING)
    own = Path(handle.data["temp"])
    assert own != Path(record.temp)
    await bench.backend.delete(handle)
    assert not is_there(str(own))
    assert sandbox_directory.temp_mark(Path(record.temp)) == "another/sandbox"
    remove_directory(Path(record.temp))


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_mark_that_is_not_text_breaks_no_scan(tmp_path: Path, is_directory: bool) -> None:
    top = Path(sandbox_directory.new_temp_name(tmp_path))
    good = Path(sandbox_directory.new_temp_name(tmp_path))
    sandbox_directory.make_temp(str(good), "this/one")
    top.mkdir()
    if is_directory:
        (top / tree.MARK).mkdir()
    else:
        (top / tree.MARK).write_bytes(b"\xff\xfe/x")
    marks = dict(sandbox_directory.list_temps(tmp_path))
    assert marks.pop(good) == "this/one"
    assert marks == ({} if is_directory else {top: "\ufffd\ufffd/x"})


def test_a_process_that_says_all_of_its_memory_is_its_environment_holds_nobody_up() -> None:
    script = (
        "import ctypes, mmap, struct, sys\n"
        "size = 64 * 1024 * 1024\n"
        "room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(room))\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.sbrk.restype = ctypes.c_void_p\n"
        "fields = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
        "parts = [int(fields[number - 3]) for number in (26, 27, 45, 46, 47, 28, 48, 49)]\n"
        "parts.insert(5, libc.sbrk(0))\n"
        "said = struct.pack('=11QQII', *parts, at, at + size, 0, 0, 2**32 - 1)\n"
        "print(libc.prctl(35, 14, said, len(said), 0), flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-Ic", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        begun = monotonic()
        assert tree.marks(process.pid) == ()
        assert monotonic() - begun < 1
        process.communicate()


async def test_what_is_left_without_its_directory_is_found_and_removed(bench: CoreRig) -> None:
    handle = await bench.serve()
    group = handle.data["cgroup"]
    remove_directory(bench.directory(handle))
    [found] = await bench.backend.scan()
    assert found.handle.sandbox_id == handle.sandbox_id
    report = await bench.backend.inspect(found.handle)
    assert (report.phase, report.reason) == (Phase.FAILED, "its files are gone")
    with pytest.raises(Conflict, match="its files are gone"):
        await bench.backend.restart(
            Order(sandbox_id=handle.sandbox_id, command=("true",)), handle, no_save
        )
    await bench.backend.delete(found.handle)
    assert sandbox_directory.temp_mark(Path(handle.data["temp"])) is None
    assert not group or not is_there(group)
    assert not bench.processes(handle)


async def test_what_a_handle_names_that_is_none_of_ours_is_left_alone(
    bench: CoreRig, tmp_path: Path
) -> None:
    # As a database may have it that was restored from a backup made to harm.
    kept = tmp_path / "kept"
    group = tmp_path / "group"
    for directory in (kept, group):
        (directory / "inner").mkdir(parents=True)
    data = {"temp": str(kept), "cgroup": str(group)}
    handle = Handle(sandbox_id=new_id(), version=HANDLE_VERSION, data=data)
    await bench.backend.delete(handle)
    assert (kept / "inner").is_dir()
    assert (group / "inner").is_dir()
    assert not (group / "cgroup.freeze").exists()


async def test_a_directory_that_was_made_read_only_is_deleted(bench: CoreRig) -> None:
    handle = await bench.serve()
    script = (
        "mkdir -p deep/er/st && touch deep/er/file && ln -s / deep/er/link && chmod 0 deep/er deep"
    )
    await bench.run(handle, "sh", "-c", script)
    await bench.backend.delete(handle)
    assert not bench.directory(handle).exists()


async def test_a_directory_is_deleted_however_deep_it_is(bench: CoreRig) -> None:
    handle = await bench.serve()
    script = (
        "import os\n"
        "for number in range(1200):\n"
        "    os.mkdir('deep'); os.symlink('/', 'link')\n"
        "    inner = os.open('deep', os.O_RDONLY)\n"
        "    os.chmod('.', 0 if number % 2 else 0o300)\n"
        "    os.fchdir(inner); os.close(inner)\n"
    )
    await bench.run(handle, "python3", "-Ic", script)
    await bench.backend.delete(handle)
    assert not bench.directory(handle).exists()


async def test_large_sandboxes_that_are_removed_leave_threads_for_others(bench: CoreRig) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3))
    handles = [await bench.serve() for _ in range(3)]
    for handle in handles:
        place = bench.directory(handle) / "workspace"
        await asyncio.to_thread(_fill, place)
    longest, begun = 0.0, monotonic()
    removals = asyncio.gather(*(bench.backend.delete(handle) for handle in handles))
    while not removals.done():
        began = monotonic()
        await asyncio.to_thread(int)
        longest = max(longest, monotonic() - began)
        await asyncio.sleep(0.01)
    await removals
    assert longest < (monotonic() - begun) / 4


def _fill(directory: Path) -> None:
    for number in range(20_000):
        (directory / str(number)).touch()


async def test_output_with_carriage_returns_keeps_no_sandbox_from_being_removed(
    bench: CoreRig,
) -> None:
    script = "print('working\\r1e300 o forged', end='\\r\\n'); raise SystemExit(3)"
    handle = await bench.create("{python}", "-Ic", script)
    report = await bench.wait(handle, Phase.FAILED)
    assert report.reason.endswith("working\r1e300 o forged")
    assert [line.text async for line in bench.backend.logs(handle, tail=5, follow=False)] == [
        "working\r1e300 o forged"
    ]
    await bench.backend.delete(handle)
    assert not bench.directory(handle).exists()


async def test_other_instances_directories_are_not_listed(bench: CoreRig) -> None:
    await bench.serve()
    other = ProcessBackend(
        ProcessConfig(use_bubblewrap=False),
        BackendContext(instance_id="other", state_dir=bench.state_dir),
    )
    assert await other.scan() == []


async def test_a_restart_makes_no_directory_where_a_link_out_of_the_workspace_leads(
    bench: CoreRig, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    make_directory(str(outside))
    order = Order(
        sandbox_id=new_id(),
        command=(
            "sh",
            "-c",
            f"rmdir ../workspace/a/b ../workspace/a; ln -s {outside} ../workspace/a",
        ),
        working_dir="a/b",
    )
    handle = await bench.backend.create(order, no_save)
    await bench.wait(handle, Phase.FAILED)
    handle = await bench.backend.restart(order, handle, no_save)
    await bench.wait(handle, Phase.FAILED)
    assert (bench.directory(handle) / "workspace" / "a").is_symlink()
    assert not is_there(str(outside / "b"))


@pytest.mark.parametrize(
    "change",
    ["rmdir a/b; touch a/b", "rmdir a/b; ln -s b a/b", "rm -r a; touch a", "rm -r a; ln -s a a"],
)
async def test_a_restart_goes_on_whatever_is_where_its_directory_was(
    bench: CoreRig, change: str
) -> None:
    script = f"cd {bench.state_dir}/*/workspace && test -d a/b || exit 5; {change}; exit 3"
    order = Order(sandbox_id=new_id(), command=("sh", "-c", script), working_dir="a/b")
    handle = await bench.backend.create(order, no_save)
    assert (await bench.wait(handle, Phase.FAILED)).exit_code == 3
    handle = await bench.backend.restart(order, handle, no_save)
    assert (await bench.wait(handle, Phase.FAILED)).exit_code == 5
