"""Tasks and loops: they start once, fail loudly, come back and stop."""

import asyncio
import itertools
import logging

import pytest

from agentsvc.base import values
from agentsvc.base.supervisor import Supervisor, back_off


async def test_a_spawned_task_runs_to_its_end() -> None:
    supervisor = Supervisor()
    done = []

    async def work() -> None:
        done.append(1)

    supervisor.spawn("work", work)
    assert supervisor.is_running("work")
    await supervisor.join("work")

    assert done == [1]
    assert not supervisor.is_running("work")


async def test_a_name_that_already_runs_is_left_alone() -> None:
    supervisor = Supervisor()
    go = asyncio.Event()
    started = []

    async def work() -> None:
        started.append(1)
        await go.wait()

    supervisor.spawn("work", work)
    supervisor.spawn("work", work)
    go.set()
    await supervisor.join("work")

    assert started == [1]


async def test_a_name_can_be_used_again_once_its_task_has_ended() -> None:
    supervisor = Supervisor()
    started = []

    async def work() -> None:
        started.append(1)

    for _ in range(2):
        supervisor.spawn("work", work)
        await supervisor.join("work")

    assert started == [1, 1]


async def test_a_failing_task_is_logged_with_its_name_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()

    async def work() -> None:
        raise ValueError("broken")

    supervisor.spawn("start 7", work)
    await supervisor.join("start 7")

    [record] = caplog.records
    assert (record.levelname, record.message) == ("ERROR", "task failed")
    assert record.__dict__["task"] == "start 7"
    assert record.exc_info is not None


async def test_joining_an_unknown_name_returns_at_once() -> None:
    await Supervisor().join("nobody")


async def test_cancelling_a_join_leaves_the_task_alone() -> None:
    supervisor = Supervisor()
    go = asyncio.Event()
    done = []

    async def work() -> None:
        await go.wait()
        done.append(1)

    supervisor.spawn("work", work)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await supervisor.join("work")
    go.set()
    await supervisor.join("work")

    assert done == [1]


async def test_a_loop_runs_again_and_again_until_stopped() -> None:
    supervisor = Supervisor()
    thrice = asyncio.Event()
    runs = []

    async def body() -> None:
        runs.append(1)
        if len(runs) == 3:
            thrice.set()

    supervisor.loop("sweep", body, every_seconds=0)
    await thrice.wait()
    assert await supervisor.stop(1) == []
    seen = len(runs)
    await asyncio.sleep(0.01)

    assert len(runs) == seen
    assert not supervisor.is_running("sweep")


async def test_a_failing_loop_is_logged_waits_longer_and_never_dies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    recovered = asyncio.Event()
    moments = []
    failures: list[int | None] = []

    async def body() -> None:
        moments.append(values.monotonic())
        failures.append(supervisor.loop_failures().get("sweep"))
        if len(moments) <= 3:
            raise ValueError("broken")
        if len(moments) > 4:
            recovered.set()

    supervisor.loop("sweep", body, every_seconds=0.01)
    await recovered.wait()
    await supervisor.stop(1)
    assert failures == [None, 1, 2, 3, 0]

    gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
    assert gaps[0] >= 0.02
    assert gaps[1] >= 0.04
    assert gaps[2] >= 0.08
    assert [record.__dict__["task"] for record in caplog.records] == ["sweep"] * 3


async def test_a_loop_survives_a_cancellation_that_leaks_out_of_its_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    again = asyncio.Event()
    runs = []

    async def body() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise asyncio.CancelledError
        again.set()

    supervisor.loop("sweep", body, every_seconds=0)
    await again.wait()
    await supervisor.stop(1)

    assert [record.message for record in caplog.records] == [
        "background loop cancelled itself, restarting it"
    ]


@pytest.mark.parametrize(
    ("waited", "every", "expected"),
    [(1, 1, 2), (2, 1, 4), (40, 1, 60), (60, 1, 60), (300, 300, 300), (0, 0, 0.01)],
)
def test_waits_double_up_to_a_minute_or_the_pace_of_the_loop(
    waited: float, every: float, expected: float
) -> None:
    assert back_off(waited, every) == expected


async def test_stop_cancels_what_runs_and_names_what_does_not_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    go = asyncio.Event()

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async def docile() -> None:
        await go.wait()

    supervisor.spawn("stubborn", stubborn)
    supervisor.spawn("docile", docile)
    await asyncio.sleep(0)
    left = await supervisor.stop(0.02)

    assert left == ["stubborn"]
    assert not supervisor.is_running("docile")
    assert [record.__dict__["tasks"] for record in caplog.records] == [["stubborn"]]
    go.set()
    await supervisor.join("stubborn")


async def test_nothing_starts_after_stop_and_stop_may_be_called_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    supervisor = Supervisor()

    async def work() -> None:
        raise AssertionError

    await supervisor.stop(1)
    supervisor.spawn("late", work)

    assert await supervisor.stop(1) == []
    assert not supervisor.is_running("late")
    assert "stopping" in caplog.text


async def test_stop_cancels_a_loop_in_the_middle_of_its_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    entered = asyncio.Event()

    async def body() -> None:
        entered.set()
        await asyncio.Event().wait()

    supervisor.loop("sweep", body, every_seconds=0)
    await entered.wait()

    assert await supervisor.stop(1) == []
    assert caplog.records == []


async def test_a_task_started_in_the_moment_its_namesake_ends_is_kept_track_of() -> None:
    supervisor = Supervisor()
    go = asyncio.Event()

    async def second() -> None:
        await go.wait()

    async def first() -> None:
        asyncio.get_running_loop().call_soon(supervisor.spawn, "work", second)

    supervisor.spawn("work", first)
    await supervisor.join("work")
    await asyncio.sleep(0.01)

    assert supervisor.is_running("work")
    go.set()
    await supervisor.join("work")
