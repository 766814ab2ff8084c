"""What several backends do alike."""

import asyncio

import pytest

from agentsvc.base.errors import BackendUnavailable, OrderRejected
from agentsvc.plugin.backend import Port
from agentsvc.plugin.helpers import LongTasks, choose_ports, finish, working_dir


def test_ports_have_the_numbers_that_clients_know() -> None:
    ports = [Port(name=name) for name in ("agent", "vscode", "worker_1", "worker_2", "more")]
    assert list(choose_ports(ports).values()) == [8000, 8001, 8011, 8012, 8100]
    taken = (Port(name="agent"), Port(name="x", number=8000), Port(name="y", number=8100))
    assert choose_ports(taken) == {"x": 8000, "y": 8100, "agent": 8101}
    for twice in (
        (Port(name="a"), Port(name="a")),
        (Port(name="a", number=1), Port(name="b", number=1)),
    ):
        with pytest.raises(OrderRejected):
            choose_ports(twice)


def test_the_working_directory_lies_in_the_workspace() -> None:
    top = "/home/agent/files"
    assert working_dir("", top) == working_dir(".", f"{top}/") == top
    assert working_dir("a/b", top) == "/home/agent/files/a/b"
    assert working_dir("/home/agent/files/x/", top) == "/home/agent/files/x"
    for outside in ("..", "a/../../b", "/home/agent", "/home/agent/files2"):
        with pytest.raises(OrderRejected, match="must be below /home/agent/files"):
            working_dir(outside, top)


async def test_who_waits_for_what_is_abandoned_hears_of_it_and_is_not_cancelled() -> None:
    begun, tasks = asyncio.Event(), LongTasks()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    waiting = asyncio.gather(tasks.go_on("a", work, wait_seconds=60), return_exceptions=True)
    await begun.wait()
    await tasks.abandon("a")
    assert [type(outcome) for outcome in await waiting] == [BackendUnavailable]


async def test_what_must_not_end_half_way_does_not() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    ended: list[bool] = []

    async def work() -> int:
        begun.set()
        await may_end.wait()
        ended.append(True)
        return 7

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(finish(work()))
        await begun.wait()
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
    assert waiting.cancelled()
    assert ended == [True]
    assert await finish(work()) == 7


async def test_what_fails_fails_and_once_cancelled_is_cancelled() -> None:
    may_fail = asyncio.Event()

    async def work() -> None:
        await may_fail.wait()
        raise OrderRejected("no")

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(finish(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        may_fail.set()
    assert waiting.cancelled()
    with pytest.raises(OrderRejected, match="no"):
        await finish(work())
