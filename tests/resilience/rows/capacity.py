"""Capacity is honest: who asks for more than there is room for is told, waits, or gets an idle one's room.

A sandbox in which an agent runs is never touched for that.
"""

import asyncio
from typing import Any, Final

from agentsvc.testing.llm import Script, say
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving

CREATES: Final = 1000
_RUNNING: Final = 4
_ROOM: Final = 8
_PATH: Final = "/api/v1/sandboxes"
_TOUCHES: Final = ("pause", "stop", "delete", "restart")
_HOURS: Final = 3600.0


class Crowd:
    """More who want a sandbox than there may be."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.running: list[str] = []
        self.wrong: list[str] = []
        self.counts = {"reject": 0, "queue": 0, "pause_idle": 0}

    async def fill(self) -> None:
        """Fill the room: in one half an agent runs, in the other nothing does."""
        client = self._server.client
        await client.save_settings()
        for _ in range(_RUNNING):
            name = await client.start_conversation("work for long [script:long]")
            await client.wait_for_execution(name, "running")
            self.running.append((await client.conversation(name))["sandbox_id"])
        for _ in range(_ROOM - _RUNNING):
            sandbox = (await client.post(_PATH)).json()
            await client.wait_for_sandbox(sandbox["id"], "RUNNING")

    async def ask(self, way: str) -> None:
        """Ask for one more in one of the three ways, and see that it is as asked."""
        self.counts[way] += 1
        client = self._server.client
        answer = await client.post(f"{_PATH}?when_full={way}")
        if way == "reject":
            is_told = answer.status == 429 and int(answer.headers.get("Retry-After", 0)) > 0
            if not is_told:
                self.wrong.append(f"reject: {answer.status} {answer.text}")
            return
        if answer.status != 200:
            self.wrong.append(f"{way}: {answer.status} {answer.text}")
            return
        sandbox_id = answer.json()["id"]
        if way == "queue":
            seen: Any = await client.sandbox(sandbox_id)
            if seen["status"] != "STARTING" or "waiting for capacity" not in str(
                seen["status_detail"]
            ):
                self.wrong.append(f"queue: {seen['status']} {seen['status_detail']}")
            await client.delete(f"{_PATH}/{sandbox_id}")
            return
        await client.wait_for_sandbox(sandbox_id, "RUNNING")
        await self._tidy()

    async def _tidy(self) -> None:
        """Delete what was paused to make room."""
        page = (await self._server.client.get(f"{_PATH}/search?limit=100")).json()["items"]
        for one in page:
            if one["status"] == "PAUSED":
                await self._server.client.delete(f"{_PATH}/{one['id']}")

    def touched(self) -> list[str]:
        """Return what was done to sandboxes in which an agent runs."""
        return [
            f"{method} {sandbox_id}"
            for method, sandbox_id in self._server.place.world.calls
            if method in _TOUCHES and sandbox_id in self.running
        ]

    def most(self) -> int:
        """Return how many run in the place itself."""
        return sum(one.phase == "running" for one in self._server.place.world.sandboxes.values())


async def run(ground: Ground) -> Outcome:
    creates = ground.count(CREATES, least=12)
    limits = {"max_running": _ROOM, "min_idle_seconds": 0.0, "max_queued": 10}
    scripts: dict[str, Script] = {"long": [say("done", delay_seconds=_HOURS)]}
    over: list[int] = []
    async with serving(
        ground.place("server"), config={"sandboxes": limits}, scripts=scripts
    ) as server:
        crowd = Crowd(server)
        await crowd.fill()
        for number in range(creates):
            await crowd.ask(("reject", "queue", "pause_idle")[number % 3])
            over.append(crowd.most() - _ROOM)
        # Whoever ran still does.
        for sandbox_id in crowd.running:
            seen: Any = await server.client.sandbox(sandbox_id)
            if seen["status"] != "RUNNING":
                crowd.wrong.append(f"it ran, and is {seen['status']}")
        # Nobody can make room where nothing is idle.
        await _refuse_all(crowd, server)
        touched = crowd.touched()
    asked = ", ".join(f"{count} {way}" for way, count in crowd.counts.items())
    return Outcome(
        did=f"{_ROOM} may run, in {_RUNNING} an agent works; asked for one more: {asked}",
        figures=(
            Figure(what="creates over the limit", value=creates, at_least=creates),
            zero("not answered as asked", crowd.wrong),
            zero("calls for running sandboxes", touched),
            Figure(what="more than may run", value=max(*over, 0), at_most=0),
        ),
        problems=tuple(crowd.wrong + touched),
    )


async def _refuse_all(crowd: Crowd, server: Server) -> None:
    """Set an agent to work in each sandbox that is left, and ask for an idle one's room."""
    client = server.client
    page = (await client.get(f"{_PATH}/search?limit=100")).json()["items"]
    idle = [one["id"] for one in page if one["id"] not in crowd.running]
    starts = [
        client.start_conversation("work for long [script:long]", sandbox_id=one) for one in idle
    ]
    for name in await asyncio.gather(*starts):
        await client.wait_for_execution(name, "running")
    crowd.running += idle
    answer = await client.post(f"{_PATH}?when_full=pause_idle")
    if answer.status != 429:
        crowd.wrong.append(f"nothing is idle: {answer.status} {answer.text}")


ROW: Final = Row(name="capacity", half=Half.LOST, promise="capacity is honest", run=run)
