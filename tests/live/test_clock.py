"""A server whose clock is put forward and back while automations are due."""

import asyncio
import struct
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentsvc.base.values import from_stored, now
from agentsvc.testing.llm import Script, say
from tests.http.v1.test_automations import BASE, create, runs, soon, wait_for_runs
from tests.resilience.server import Server, serving
from tests.troubles import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SOURCE = Path(__file__).with_name("clock.c")
YEARS = timedelta(days=3653)


class Clock:
    """The clock of a server under test."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.put(timedelta())

    def put(self, ahead: timedelta) -> None:
        """Put it so far ahead of the real one."""
        self.ahead = ahead
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", round(ahead.total_seconds())))

    def put_before_a_minute(self, ahead: timedelta, seconds: int) -> None:
        """Put it so far ahead, and on to some seconds before a full minute."""
        shown = now() + ahead
        self.put(ahead + timedelta(seconds=60 - seconds - shown.second))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
async def server(tmp_path: Path, clock: Clock) -> AsyncIterator[Server]:
    library = tmp_path / "clock.so"
    program = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    await asyncio.to_thread(subprocess.run, program, check=True, capture_output=True)
    environment = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(tmp_path / "clock")}
    scripts: dict[str, Script] = {"wait": [say("done", delay_seconds=3600)]}
    async with serving(tmp_path / "server", environment=environment, scripts=scripts) as server:
        await server.client.save_settings()
        yield server


async def made_at(server: Server, automation_id: str) -> list[str]:
    return [one["due_at"] for one in await runs(server.client, automation_id)]


async def wait_for_more(server: Server, made: dict[str, Any], count: int) -> list[str]:
    await wait_for_runs(server.client, made["id"], lambda seen: len(seen) > count, seconds=60)
    return await made_at(server, made["id"])


async def test_a_schedule_goes_on_after_the_clock_was_wrong_and_makes_no_time_twice(
    server: Server, clock: Clock
) -> None:
    made = await create(server.client, {"type": "cron", "schedule": "* * * * *"})
    clock.put_before_a_minute(YEARS, 30)
    first = await wait_for_more(server, made, 0)
    assert {one[:4] for one in first} == {str((now() + YEARS).year)}
    # What the future has left behind holds nothing up once it is over, also across a kill.
    clock.put_before_a_minute(timedelta(), 4)
    second = await wait_for_more(server, made, len(first))
    assert second[0][:4] == str(now().year)
    await server.kill()
    await server.start()
    for seconds in (20, 6):
        # The same minute comes again, and is made already.
        clock.put(timedelta(seconds=(from_stored(second[0]) - now()).total_seconds() - seconds))
        await asyncio.sleep(8)
    assert await made_at(server, made["id"]) == second
    found = (await server.client.get(f"{BASE}/{made['id']}")).json()
    due = from_stored(found["next_run_at"]) - (now() + clock.ahead)
    assert due <= timedelta(minutes=1)


async def test_an_agent_keeps_its_time_when_the_clock_is_put_forward(
    server: Server, clock: Clock
) -> None:
    made = await create(server.client, soon(), prompt="[script:wait]", timeout=20)
    [run] = await wait_for_runs(
        server.client,
        made["id"],
        lambda seen: seen[:1] != [] and seen[0]["status"] == "RUNNING",
        seconds=60,
    )
    await server.client.wait_for_conversation(
        run["conversation_id"], lambda one: bool(one and one["execution_status"] == "running")
    )
    await asyncio.sleep(1)
    for ahead in (timedelta(hours=2), timedelta(hours=-2)):
        clock.put(ahead)
        await asyncio.sleep(2)
        [run] = await runs(server.client, made["id"])
        assert run["status"] == "RUNNING"
    [run] = await wait_for_runs(
        server.client, made["id"], lambda seen: seen[0]["status"] == "FAILED", seconds=60
    )
    assert "time limit" in run["error_detail"]


async def test_a_start_keeps_its_time_when_the_clock_is_put_forward(
    server: Server, clock: Clock
) -> None:
    server.place.world.stays_starting = True
    task = await server.client.start_task()
    await eventually(lambda: len(server.place.world.sandboxes) == 1)
    for ahead in (timedelta(hours=2), timedelta(hours=-2)):
        clock.put(ahead)
        await asyncio.sleep(2)
        assert (await server.client.task(task["id"]))["status"] == "WAITING_FOR_SANDBOX"
    [sandbox_id] = server.place.world.sandboxes
    server.place.world.finish_start(sandbox_id)
    assert (await server.client.end_of_start(task["id"]))["status"] == "READY"
