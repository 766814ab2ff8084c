"""Limits of process sandboxes: really enforced, said, and told apart when they end something."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from process import groups
from process.programs import watch

from agentsvc.base import INITIAL_OPEN_FILES
from agentsvc.base.errors import OrderRejected
from agentsvc.plugin import remove_directory
from agentsvc.plugin.backend import Cause, Limits, Order, Phase, Spec
from tests.plugins.process.rig import CoreRig, core_rig, no_save

MEGABYTE = 1024 * 1024
HOG = "bytearray(400 * 1024 * 1024)"
DEEPER = "import os\nfor _ in range(1200): os.mkdir('d' * 9); os.chdir('d' * 9)\n"
"""Goes deeper than a path is long, and than Python calls itself."""
BY_GROUPS = frozenset({"cpus", "memory_bytes", "pids"})

with_groups = pytest.mark.skipif(
    not groups.find().limits() >= BY_GROUPS, reason="control groups cannot be used here"
)


@pytest.fixture(params=[True, False], ids=["bubblewrap", "plain"])
async def held(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CoreRig]:
    async with core_rig(tmp_path, use_bubblewrap=request.param) as bench:
        yield bench


def groups_of(sandbox_id: str) -> list[Path]:
    return [
        path for path in Path("/sys/fs/cgroup").glob("**/agentsvc-*") if sandbox_id in path.name
    ]


ODD_MOUNT = """
import os, subprocess, sys
point = os.fsencode(sys.argv[1]) + b"/\\xff\\r\\x0b \\n-"
os.mkdir(point)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
import tests
from process import files, groups
groups.find()
print(files.mounts_of("self")[-1][4].endswith("\\r\\x0b\\\\040\\\\012-"))
"""


def test_a_mount_whose_name_is_no_text_is_in_nobodys_way(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", ODD_MOUNT]
    ended = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=True, timeout=30
    )
    assert ended.stdout == "True\n"


@with_groups
async def test_a_command_that_wants_too_much_memory_is_out_of_memory(held: CoreRig) -> None:
    handle = await held.create("{python}", "-Ic", HOG, limits=Limits(memory_bytes=64 * MEGABYTE))
    report = await held.wait(handle, Phase.FAILED)
    assert (report.exit_code, report.cause) == (137, Cause.OUT_OF_MEMORY)
    assert report.reason == "it exceeded its memory limit of 64 MiB"
    assert report.enforced == ("memory_bytes",)


@with_groups
async def test_a_child_that_wants_too_much_memory_is_noticed_and_the_sandbox_goes_on(
    held: CoreRig,
) -> None:
    handle = await held.serve(limits=Limits(memory_bytes=96 * MEGABYTE))
    ended = await held.backend.execute(
        handle, ["sh", "-c", "python3 -Ic '" + HOG + "'; echo $?"],
        env={}, time_limit=40, max_output=1000,
    )  # fmt: skip
    assert ended.stdout == b"137\n"
    report = await held.backend.inspect(handle)
    while not report.reason:
        report = await held.backend.inspect(handle)
    assert report.phase is Phase.RUNNING
    assert report.reason == "1 process was killed for lack of memory; the limit is 96 MiB"
    assert report.cause is None
    # What then ends for another reason is not taken for this one.
    for one in held.processes(handle):
        with suppress(ProcessLookupError):  # the end of another may have ended it
            os.kill(one.pid, signal.SIGTERM)
    report = await held.wait(handle, Phase.FAILED)
    assert report.cause is not Cause.OUT_OF_MEMORY


@with_groups
async def test_processes_are_limited_and_the_sandbox_still_answers(held: CoreRig) -> None:
    handle = await held.serve(limits=Limits(pids=40))
    bomb = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"
    ended = await held.backend.execute(
        handle, ["sh", "-c", bomb], env={}, time_limit=40, max_output=100_000
    )
    assert ended.exit_code != 0
    counts = [int((path / "pids.current").read_text()) for path in groups_of(handle.sandbox_id)
              if (path / "pids.current").exists()]  # fmt: skip
    assert all(count <= 40 for count in counts)
    assert counts
    # No room for a further command; the sandbox itself stands.
    assert (await held.backend.inspect(handle)).phase is Phase.RUNNING


@with_groups
async def test_processor_time_is_limited(held: CoreRig) -> None:
    handle = await held.serve(limits=Limits(cpus=0.2))
    burn = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n"
    ended = await held.backend.execute(
        handle,
        ["python3", "-Ic", burn + "print(time.process_time())"],
        env={},
        time_limit=40,
        max_output=1000,
    )
    assert float(ended.stdout) < 1
    shares = []
    for path in groups_of(handle.sandbox_id):
        if (path / "cpu.max").exists():
            shares.append((path / "cpu.max").read_text().split())
        elif (path / "cpu.cfs_quota_us").exists():
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            shares.append([(path / name).read_text() for name in names])
    assert shares
    assert {int(quota) / int(period) for quota, period in shares} == {0.2}


@with_groups
async def test_groups_go_with_their_sandbox(held: CoreRig) -> None:
    limits = Limits(cpus=1, memory_bytes=512 * MEGABYTE, pids=100)
    handle = await held.serve(limits=limits)
    assert groups_of(handle.sandbox_id)
    report = await held.backend.inspect(handle)
    assert set(report.enforced or ()) == BY_GROUPS
    await held.backend.delete(handle)
    assert groups_of(handle.sandbox_id) == []


async def test_open_files_and_the_size_of_one_are_limited(held: CoreRig) -> None:
    handle = await held.serve(limits=Limits(open_files=100, disk_bytes=8 * MEGABYTE))
    assert await held.run(handle, "sh", "-c", "ulimit -n") == "100\n"
    large = await held.backend.execute(
        handle, ["sh", "-c", "head -c 20000000 /dev/zero > large"],
        env={}, time_limit=20, max_output=1000,
    )  # fmt: skip
    assert large.exit_code != 0
    assert (await held.run(handle, "sh", "-c", "wc -c < large")).strip() == str(8 * MEGABYTE)


async def test_a_sandbox_may_open_as_many_files_as_others_here_whatever_the_server_may(
    held: CoreRig,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (INITIAL_OPEN_FILES - 1, limits[1]))
    try:
        handle = await held.serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert await held.run(handle, "sh", "-c", "ulimit -n") == f"{INITIAL_OPEN_FILES}\n"


async def test_a_sandbox_that_fills_the_disk_is_ended_and_can_be_tidied(held: CoreRig) -> None:
    limits = Limits(disk_bytes=4 * MEGABYTE)
    handle = await held.serve(limits=limits)
    await held.run(handle, "sh", "-c", "for i in 1 2 3; do head -c 3000000 /dev/zero > f$i; done")
    report = await held.wait(handle, Phase.FAILED)
    assert report.cause is Cause.DISK_FULL
    assert report.reason == "its files exceed the disk limit of 4 MiB"
    order = Order(sandbox_id=handle.sandbox_id, command=("sleep", "100"), limits=limits)
    again = await held.backend.restart(order, handle, no_save)
    await held.wait(again, Phase.RUNNING)
    assert await held.run(again, "sh", "-c", "rm f1 f2; ls") == "f3\n"


@pytest.mark.parametrize("field", sorted(BY_GROUPS))
async def test_what_cannot_be_enforced_is_refused_by_name(tmp_path: Path, field: str) -> None:
    async with core_rig(tmp_path, use_cgroups=False) as bench:
        limits = Limits(**{field: 1})
        with pytest.raises(OrderRejected, match=f"cannot enforce the limit `{field}`"):
            await bench.create("true", limits=limits)
        with pytest.raises(OrderRejected, match=f"cannot enforce the limit `{field}`"):
            bench.backend.check_fences(Spec(id="x", command=("true",), limits=limits))
        health = await bench.backend.probe()
        assert health.facts["limits"] == "disk_bytes, open_files"


@pytest.mark.timeout(120)
async def test_a_disk_that_fills_later_is_noticed_in_moments(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        handle = await bench.serve(limits=Limits(disk_bytes=4 * MEGABYTE))
        await asyncio.sleep(3 * watch.PAUSE_SECONDS)
        # On and on: other tests may free as much as it takes at first, on the same disk.
        fill = "for i in $(seq 60); do head -c 2000000 /dev/zero > f$i; sleep 1; done"
        await bench.run(handle, "sh", "-c", f"({fill}) > /dev/null 2>&1 &")
        async with asyncio.timeout(60):
            report = await bench.wait(handle, Phase.FAILED)
    assert report.cause is Cause.DISK_FULL


async def test_files_without_a_name_count_as_long_as_they_are_open(held: CoreRig) -> None:
    handle = await held.serve(limits=Limits(disk_bytes=6 * MEGABYTE))
    # Four, since none may be larger than the limit.
    hold = (
        "import os, time\n"
        "held = [open(str(number), 'wb') for number in range(4)]\n"
        "for number, file in enumerate(held):\n"
        "    os.unlink(str(number)); file.write(bytes(4 << 20)); file.flush()\n"
        "time.sleep(60)"
    )
    await held.backend.execute(
        handle, ["sh", "-c", 'python3 -Ic "$1" > /dev/null 2>&1 &', "sh", hold],
        env={}, time_limit=20, max_output=1000,
    )  # fmt: skip
    assert (await held.wait(handle, Phase.FAILED)).cause is Cause.DISK_FULL


async def test_files_without_a_name_count_as_long_as_they_are_mapped(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        handle = await bench.serve(limits=Limits(disk_bytes=6 * MEGABYTE))
        hold = (
            "import mmap, os, time\n"
            "held = []\n"
            "for number in range(4):\n"
            "    file = open(str(number), 'w+b'); os.unlink(str(number))\n"
            "    file.write(bytes(4 << 20)); file.flush()\n"
            "    held.append(mmap.mmap(file.fileno(), 4096)); file.close()\n"
            "for number in range(3, 1000):\n"
            "    try: os.close(number)\n"
            "    except OSError: pass\n"
            "time.sleep(60)"
        )
        await bench.backend.execute(
            handle, ["sh", "-c", 'python3 -Ic "$1" > /dev/null 2>&1 &', "sh", hold],
            env={}, time_limit=20, max_output=1000,
        )  # fmt: skip
        assert (await bench.wait(handle, Phase.FAILED)).cause is Cause.DISK_FULL


async def test_files_count_however_deep_they_are(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        handle = await bench.serve(limits=Limits(disk_bytes=20 * MEGABYTE))
        await bench.run(handle, "python3", "-Ic", f"{DEEPER}open('f', 'wb').write(bytes(20 << 20))")
        assert (await bench.wait(handle, Phase.FAILED)).cause is Cause.DISK_FULL
        await bench.backend.delete(handle)
        assert not bench.directory(handle).exists()


def test_files_are_counted_as_deep_as_can_be_and_deeper_ones_are_too_many(tmp_path: Path) -> None:
    name, descriptors = "d" * 250, Path("/proc/self/fd")
    inner = os.open(tmp_path, os.O_RDONLY)
    open_before = len(list(descriptors.iterdir()))
    for levels in (1000, 2000):
        for _ in range(1000):
            os.mkdir(name, dir_fd=inner)
            outer, inner = inner, os.open(name, os.O_RDONLY, dir_fd=inner)
            os.close(outer)
        size = watch.size_of([str(tmp_path)], 2**40)
        is_counted = levels * 4096 <= size < 2**40
        assert is_counted if levels == 1000 else size > 2**40
    assert watch.size_of([str(tmp_path)], 4096) > 4096
    assert len(list(descriptors.iterdir())) == open_before
    os.close(inner)
    remove_directory(tmp_path / name)


async def test_empty_files_count_since_there_is_room_for_so_many_only(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        handle = await bench.serve(limits=Limits(disk_bytes=10 * MEGABYTE))
        await asyncio.sleep(2 * watch.PAUSE_SECONDS)
        make = "for i in range(3000): open(str(i), 'x').close()"
        await bench.run(handle, "python3", "-Ic", make)
        async with asyncio.timeout(25):
            assert (await bench.wait(handle, Phase.FAILED)).cause is Cause.DISK_FULL


async def test_no_room_is_taken_faster_than_it_is_looked_at(tmp_path: Path) -> None:
    async with core_rig(tmp_path, use_bubblewrap=True) as bench:
        handle = await bench.serve()
        take = (
            "import os, ctypes\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "number = os.open('x', os.O_CREAT | os.O_RDWR)\n"
            "said = libc.fallocate(number, 0, ctypes.c_long(0), ctypes.c_long(1 << 20))\n"
            "print(said, os.strerror(ctypes.get_errno()))\n"
            "os.posix_fallocate(number, 0, 1 << 20)\n"
            "print(os.fstat(number).st_size)"
        )
        said = await bench.run(handle, "python3", "-Ic", take)
        assert said == "-1 Operation not supported\n1048576\n"


def test_files_that_are_counted_in_vain_are_counted_again(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(MEGABYTE))
    waits = tmp_path / "waits"
    waits.touch()

    def processes() -> list[int]:
        while waits.exists():
            time.sleep(0.01)
        return []

    disk = watch.Disk([str(tmp_path)], MEGABYTE // 2, processes)
    assert not disk.is_over()
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    for pid in children.read_text().split():
        if "python" in Path(f"/proc/{pid}/comm").read_text():
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)
    waits.unlink()
    while not disk.is_over() and disk.size is None:
        time.sleep(0.01)
