"""Which sandboxes give way: real processes, with their threads and sessions."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process.priority import Priorities, weigh
from process.sandbox_directory import State

from agentsvc.base.errors import BackendUnavailable
from agentsvc.plugin.backend import Phase
from tests.plugins.process.rig import CoreRig, core_rig
from tests.plugins.process.test_usage import state_of

IS_WEIGHED = Path("/proc/self/autogroup").exists()
"""Whether this kernel weighs sessions."""

_MANY_THREADS = """
import sys, threading
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
_PARENT = """
import subprocess, sys
command = [sys.executable, "-c", sys.argv[1]]
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
with subprocess.Popen(command, start_new_session=True, **pipes) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.read()
    child.stdin.close()
"""


@pytest.fixture
def pids() -> Iterator[tuple[int, int]]:
    """A process, and its child with many threads, in a session of its own each."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, _MANY_THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


def niceness(pid: int) -> str:
    """Return what the kernel says of a process's session."""
    return Path(f"/proc/{pid}/autogroup").read_text().split()[-1] if IS_WEIGHED else ""


def test_who_has_most_threads_gives_way_for_a_while(pids: tuple[int, int]) -> None:
    weigh(state_of(pids[0]), gives_way=True)
    assert [niceness(pid) for pid in pids] == (["0", "19"] if IS_WEIGHED else ["", ""])
    weigh(state_of(pids[0]), gives_way=False)
    assert [niceness(pid) for pid in pids] == (["0", "0"] if IS_WEIGHED else ["", ""])


@pytest.mark.parametrize(
    ("name", "values"), [("cpu.weight.nice", ("19", "0")), ("cpu.shares", ("15", "1024"))]
)
def test_groups_that_weigh_are_told(
    tmp_path: Path, pids: tuple[int, int], name: str, values: tuple[str, str]
) -> None:
    (tmp_path / name).write_text("")
    state = state_of(pids[0], joined=(str(tmp_path), "/nowhere"))
    for gives_way, value in zip((True, False), values, strict=True):
        weigh(state, gives_way=gives_way)
        assert (tmp_path / name).read_text() == value


def test_what_was_noted_by_a_server_that_was_killed_is_undone(
    tmp_path: Path, pids: tuple[int, int]
) -> None:
    def find(sandbox_id: str) -> State | None:
        return state_of(pids[0]) if sandbox_id == "here" else None

    for wanted in ({"here", "gone"}, {"here"}):
        Priorities(tmp_path / "noted", find).settle(frozenset(wanted))
        assert niceness(pids[1]) in ("19", "")
    Priorities(tmp_path / "noted", find).settle(frozenset())
    assert niceness(pids[1]) in ("0", "")
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_noted_keeps_no_backend_from_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with core_rig(tmp_path) as bench:
        (bench.backend.context.state_dir / ".giving-way").mkdir()
        with pytest.raises(BackendUnavailable):
            await bench.backend.give_way(())
        await bench.backend.close()
        await bench.backend.open()
        said = [one.message for one in caplog.records]
        assert said.count("sandbox priorities not restored") == 2


def notes(bench: CoreRig) -> set[str]:
    """Return the names of the files beside the sandboxes."""
    there = bench.backend.context.state_dir.iterdir()
    return {path.name for path in there if path.is_file()}


async def test_nothing_gives_way_any_more_once_the_backend_is_closed(tmp_path: Path) -> None:
    async with core_rig(tmp_path) as bench:
        handle = await bench.serve()
        await bench.wait(handle, Phase.RUNNING)
        await bench.backend.give_way([handle])
        assert notes(bench) == {".giving-way"}
        lowered = [niceness(one.pid) for one in bench.processes(handle)]
        assert ("19" in lowered) is IS_WEIGHED
        await bench.backend.close()
        assert notes(bench) == set()
        assert "19" not in [niceness(one.pid) for one in bench.processes(handle)]
