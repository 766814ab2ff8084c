"""Idle sandboxes rest deeper while this machine has less memory than it is to have."""

from pathlib import Path
from typing import Any

import pytest

from agentsvc.sandboxes.admission.memory import available_bytes
from tests.fake_agent import FakeAgent
from tests.sandboxes.test_idle import STARTS, hears, is_resting_as, said, start, start_busy
from tests.service import Client, Service
from tests.troubles import TroubledWorld, reconfigure

MORE_THAN_THERE_IS = 2**60


async def press(service: Service, **more: Any) -> None:
    """Have the server want more memory than the machine has, or as it is told."""
    told = {"min_available_memory": MORE_THAN_THERE_IS, "min_idle_seconds": 0.1, **more}
    await reconfigure(service, sandboxes=told)


async def test_idle_sandboxes_go_down_to_disk_and_the_next_message_wakes_them(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.is_here = True
    found = [await start(client) for _ in range(2)]
    await press(service, stop_under_pressure=True)
    for _, sandbox_id in found:
        await is_resting_as(client, sandbox_id, "on_disk")
    await fake_world.sweeps(3)
    counts = [fake_world.count(verb) for verb in ("pause", "reclaim", "hibernate", "stop")]
    assert counts == [2, 2, 2, 0]
    paused = [sandbox_id for verb, sandbox_id in fake_world.calls if verb == "pause"]
    assert paused == [sandbox_id for _, sandbox_id in found], "not the longest unused first"
    await reconfigure(service, sandboxes={"min_available_memory": 0})
    answer = await client.post(f"{STARTS}/{found[0][0]}/send-message", json=said())
    assert answer.status == 200, answer.text
    await hears(client, found[0][0])


async def test_a_sandbox_that_works_or_was_used_just_now_is_left_alone(
    client: Client, service: Service, fake_world: TroubledWorld, fake_agent: FakeAgent
) -> None:
    fake_world.is_here = True
    busy = await start_busy(client, fake_agent)
    _, idle = await start(client)
    await press(service)
    await is_resting_as(client, idle, "on_disk")
    await fake_world.sweeps(3)
    seen = await client.sandbox(busy)
    assert seen is not None
    assert seen["status"] == "RUNNING"


@pytest.mark.parametrize(("stops", "rest"), [(False, "frozen"), (True, "stopped")])
async def test_what_can_go_no_deeper_is_stopped_only_where_that_is_told(
    client: Client, service: Service, fake_world: TroubledWorld, *, stops: bool, rest: str
) -> None:
    fake_world.is_here = True
    fake_world.why_no_reclaim = fake_world.why_no_hibernate = "it cannot"
    _, sandbox_id = await start(client)
    await press(service, stop_under_pressure=stops)
    await is_resting_as(client, sandbox_id, rest)
    await fake_world.sweeps(3)
    await is_resting_as(client, sandbox_id, rest)


@pytest.mark.parametrize(("is_here", "least"), [(False, MORE_THAN_THERE_IS), (True, 0), (True, 1)])
async def test_nothing_rests_where_there_is_no_pressure_here(
    client: Client, service: Service, fake_world: TroubledWorld, *, is_here: bool, least: int
) -> None:
    fake_world.is_here = is_here
    _, sandbox_id = await start(client)
    await press(service, min_available_memory=least)
    await fake_world.sweeps(4)
    seen = await client.sandbox(sandbox_id)
    assert seen is not None
    assert seen["status"] == "RUNNING"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        (MACHINE, 4000 * 1024),
        (
            {
                **MACHINE,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "3000",
                "sys/fs/cgroup/a/memory.current": "2500",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            1000,
        ),
        (
            {
                **MACHINE,
                "proc/self/cgroup": "4:memory:/a\n3:cpu:/\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "3000",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "2500",
                "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 0\ntotal_inactive_file 100\n",
            },
            600,
        ),
    ],
)
def test_the_lowest_of_machine_and_groups_is_what_is_left(
    tmp_path: Path, files: dict[str, str], wanted: int | None
) -> None:
    assert available_bytes(lay(tmp_path, files)) == wanted


def test_this_machine_has_some_memory_and_not_all_that_could_be() -> None:
    assert 0 < (available_bytes() or 0) < MORE_THAN_THERE_IS
