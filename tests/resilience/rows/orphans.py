"""No sandbox is orphaned and none is doubled, wherever in its life the server is killed.

The server is killed at any call of a backend, or a moment after it was asked for something, and
sandboxes end or vanish behind its back, or with their engine. What is there must soon be what the next
server tells.
Bystanders, which are another installation's or nobody's, must be as they were.
"""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from process.sandbox_directory import make_temp, new_temp_name, temp_mark
from process.tree import MARK, marks, send

from agentsvc.base.errors import BackendUnavailable
from agentsvc.base.values import Secret, monotonic, new_id
from agentsvc.plugin import remove_directory
from agentsvc.plugin.backend import Handle, Order, Phase
from tests.live.client import PATIENCE
from tests.live.installation import command_line
from tests.plugins.process.rig import SERVE
from tests.resilience import dock
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.dock import COMMAND, IMAGE, Dock
from tests.resilience.server import Server, serving

KILLS: Final = 500
RECONCILED_SECONDS: Final = 30.0
_OF_PROCESSES: Final = 0.2
_OF_CONTAINERS: Final = 0.06
_LANES: Final = 4
"""Servers beside each other: each mostly waits."""
_OUTSIDE: Final = 5
"""One time in so many something ends behind the server's back."""
_MAX: Final = 4
_PATH: Final = "/api/v1/sandboxes"
_LAST_CALL: Final = 4
_LONGEST_WAIT: Final = 0.6
_ENOUGH: Final = 40
"""Kills that are worth several servers."""
_SETTLED: Final = {"RUNNING": Phase.RUNNING, "PAUSED": Phase.PAUSED}
_FAILED: Final = ("ERROR", "MISSING")
_TEMP: Final = Path("/tmp")  # noqa: S108  # where the process backend keeps what must have a short path
_PROCESS: Final[dict[str, Any]] = {
    "sandboxes": {"default_backend": "process", "default_spec": "web", "isolation": "none"},
    "specs": {
        "web": {
            "backend": "process",
            "command": ["{python}", "-Ic", SERVE, "{port.agent}"],
            "ports": [{"name": "agent"}],
        }
    },
}
_DOCKER: Final[dict[str, Any]] = {
    "sandboxes": {"default_backend": "docker", "default_spec": "idle", "isolation": "container"},
    "specs": {
        "idle": {
            "backend": "docker",
            "image": IMAGE,
            "command": list(COMMAND),
            "options": {"user": "0:0"},
        }
    },
}
_INSTALLATION: Final = "agentsvc.installation"
_SANDBOX: Final = "agentsvc.sandbox"
_ROLE: Final = "agentsvc.role"
_ENGINE_ENDS: Final = (signal.SIGTERM, signal.SIGKILL)


class Found(msgspec.Struct, kw_only=True):
    """What all lives of the servers have shown."""

    kills: int = 0
    outside: int = 0
    engine_ends: int = 0
    orphans: list[str] = []
    doubles: list[str] = []
    touched: list[str] = []
    slowest_seconds: float = 0.0


type Seen = dict[str, Phase | None]
type Look = Callable[[], Seen]
"""Returns what really is there, and its state where that can be told from outside."""


class Life:
    """A server that is asked for something and killed, again and again."""

    def __init__(self, ground: Ground, server: Server, look: Look, found: Found) -> None:
        self._chance = ground.chance
        self._server = server
        self._look = look
        self._found = found

    async def cut_short(self, kill: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        """Ask for one thing, kill the server meanwhile, and see what the next one makes of it."""
        what, act = await self._choose()
        before = self._look()
        await kill(self._try(act))
        self._found.kills += 1
        await self._server.start()
        await self.reconcile(what)
        made = self._look().keys() - before.keys()
        if len(made) > (what == "create"):
            self._found.doubles.append(f"{what} made {len(made)}")

    async def reconcile(self, what: str) -> None:
        """Wait until what there is, is what is told; what is not by then is an orphan."""
        began = monotonic()
        differences = await self._differences()
        while differences and monotonic() - began < RECONCILED_SECONDS:
            await asyncio.sleep(0.05)
            differences = await self._differences()
        took = monotonic() - began
        self._found.slowest_seconds = max(self._found.slowest_seconds, took)
        self._found.orphans += [f"{what}: {one}" for one in differences]

    async def end_all(self, look: Callable[[], list[str]]) -> list[str]:
        """Delete all there is, and return what is left of it for long."""
        began, left = monotonic(), ["all"]
        while left and monotonic() - began < RECONCILED_SECONDS:
            for one in await self._told():
                await self._server.client.delete(f"{_PATH}/{one['id']}")
            await asyncio.sleep(0.1)
            left = await asyncio.to_thread(look)
        return [f"left in the end: {one}" for one in left]

    async def _differences(self) -> list[str]:
        told = {one["id"]: one["status"] for one in await self._told()}
        there = await asyncio.to_thread(self._look)
        differences = [f"{one} is there, and nobody knows" for one in there.keys() - told.keys()]
        for sandbox_id, status in told.items():
            if status in _FAILED:
                continue
            phase = there.get(sandbox_id, Phase.GONE)
            if status not in _SETTLED or phase not in (None, _SETTLED[status]):
                differences.append(f"{sandbox_id} is told to be {status}, and is {phase}")
        return differences

    async def _told(self) -> list[dict[str, Any]]:
        found = await self._server.client.get(f"{_PATH}/search?limit=100")
        items: list[dict[str, Any]] = found.json()["items"]
        return items

    async def _choose(self) -> tuple[str, Callable[[], Awaitable[object]]]:
        client, told = self._server.client, await self._told()
        if not told or (len(told) < _MAX and self._chance.random() < 0.5):
            return "create", lambda: client.post(_PATH)
        one = self._chance.choice(told)
        path = f"{_PATH}/{one['id']}"
        verbs = {"RUNNING": ("pause", "stop", "delete"), "PAUSED": ("resume", "delete")}
        verb = self._chance.choice(verbs.get(one["status"], ("resume", "delete")))
        if verb == "delete":
            return verb, lambda: client.delete(path)
        return verb, lambda: client.post(f"{path}/{verb}")

    async def _try(self, act: Callable[[], Awaitable[object]]) -> None:
        # Its answer may die with the server.
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await act()


async def run(ground: Ground) -> Outcome:
    kills = ground.count(KILLS, least=10)
    found = Found()
    of_processes = max(3, round(kills * _OF_PROCESSES))
    why_none = dock.why_none()
    of_containers = 0 if why_none else max(2, round(kills * _OF_CONTAINERS))
    in_place = kills - of_processes - of_containers
    async with asyncio.TaskGroup() as group:
        if of_containers:
            group.create_task(_of_containers(ground, of_containers, found))
        for lane, share in enumerate(shares(of_processes, 2 if of_processes >= _ENOUGH else 1)):
            group.create_task(_of_processes(ground, f"processes{lane}", share, found))
        for lane, share in enumerate(shares(in_place, _LANES if in_place >= _ENOUGH else 1)):
            group.create_task(_in_place(ground, f"place{lane}", share, found))
    told = (
        f"{of_containers} over containers of a real engine, which ended {found.engine_ends} times"
    )
    return Outcome(
        did=(
            f"{in_place} kills at a call of a backend that outlives the server, before or after it was"
            f" done; {of_processes} at a random moment over sandboxes of the `process` backend;"
            f" {told if of_containers else f'containers were not tried: {why_none}'};"
            f" {found.outside} sandboxes ended or removed behind the server's back"
        ),
        figures=(
            Figure(what="kill points", value=found.kills, at_least=kills),
            zero("orphans, or states told wrong", found.orphans),
            zero("duplicates", found.doubles),
            zero("of others touched", found.touched),
            Figure(
                what="s until reconciled at most",
                value=round(found.slowest_seconds, 2),
                at_most=RECONCILED_SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(found.orphans + found.doubles + found.touched),
    )


async def _in_place(ground: Ground, name: str, kills: int, found: Found) -> None:
    """Kill a server at the calls of a backend that outlives it."""
    async with serving(ground.place(name)) as server:
        world, chance = server.place.world, ground.chance
        mine = server.installation.instance_id
        order = Order(sandbox_id=new_id(), secret_env={"OH_SESSION_API_KEYS_0": Secret("other")})
        await world.backend("another-installation").create(order, _forget)
        calls_before = len(world.calls)

        def look() -> Seen:
            there = world.sandboxes.items()
            return {name: one.phase for name, one in there if one.instance_id == mine}

        async def kill(act: Awaitable[None]) -> None:
            is_done = chance.random() < 0.5
            await _kill_at_call(server, act, chance.randint(1, _LAST_CALL), is_done=is_done)

        life = Life(ground, server, look, found)
        for number in range(kills):
            await life.cut_short(kill)
            running = [one for one, phase in look().items() if phase is Phase.RUNNING]
            if number % _OUTSIDE == 0 and running:
                (world.vanish if chance.random() < 0.5 else world.end)(chance.choice(running))
                found.outside += 1
                await life.reconcile("ended or removed by others")
        other = order.sandbox_id
        calls = world.calls[calls_before:]
        found.touched += [f"{method} {name}" for method, name in calls if name == other]
        found.touched += [] if other in world.sandboxes else [f"{other} is gone"]


async def _kill_at_call(
    server: Server, act: Awaitable[None], number: int, *, is_done: bool
) -> None:
    """Kill the server at that call of the backend, which then is done or is not."""
    killed = asyncio.Event()
    calls = 0

    async def on_call(method: str, _: str) -> None:
        nonlocal calls
        calls += method != "probe"
        if calls == number and not killed.is_set():
            await server.kill()
            killed.set()
            if not is_done:
                raise BackendUnavailable("The server is gone")

    server.place.on_call = on_call
    async with asyncio.TaskGroup() as group:
        group.create_task(_join(act))
        # A sweep comes soon if nothing else does.
        await asyncio.wait_for(killed.wait(), PATIENCE)
    server.place.on_call = None


async def _of_processes(ground: Ground, name: str, kills: int, found: Found) -> None:
    """Kill a server at any moment of the lives of sandboxes that are processes of this machine."""
    async with serving(ground.place(name), config=_PROCESS) as server, _bystander() as alive:
        installation, chance = server.installation, ground.chance

        def look() -> Seen:
            marks_there = [mark for one in installation.processes() for mark in marks(one.pid)]
            marks_there += [temp_mark(path) or "" for path in installation.temp_dirs()]
            names = {mark.rpartition("/")[2] for mark in marks_there}
            return dict.fromkeys(names | {path.name for path in installation.sandbox_dirs()})

        life = Life(ground, server, look, found)
        for number in range(kills):
            await life.cut_short(partial(_kill_soon, ground, server))
            workloads = await asyncio.to_thread(_workloads, server)
            found.doubles += [
                f"{count} workloads of {name}" for name, count in workloads.items() if count > 1
            ]
            if number % _OUTSIDE == 0 and workloads:
                name = chance.choice(sorted(workloads))
                for one in installation.processes(name):
                    send(one, signal.SIGKILL)
                found.outside += 1
                await life.reconcile("ended by others")
        found.touched += [] if alive() else ["a process or a directory of another is gone"]
        found.orphans += await life.end_all(installation.leftovers)


async def _kill_soon(ground: Ground, server: Server, act: Awaitable[None]) -> None:
    """Kill the server a moment after it was asked for something."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_join(act))
        await asyncio.sleep(ground.chance.uniform(0, _LONGEST_WAIT))
        await server.kill()


async def _of_containers(ground: Ground, kills: int, found: Found) -> None:
    """Kill a server at any moment of the lives of containers, and their engine now and then."""
    async with dock.open_dock() as engine:
        config = {**_DOCKER, "backends": {"docker": {"host": engine.url, "guard_host": False}}}
        bystanders = [
            await engine.make({}),
            await engine.make({_INSTALLATION: new_id(), _SANDBOX: new_id()}),
        ]
        async with serving(ground.place("containers"), config=config) as server:
            await _lives_of_containers(ground, server, engine, kills, found)
        there = {one["Id"] for one in await asyncio.to_thread(engine.containers)}
        found.touched += [f"container {one} is gone" for one in bystanders if one not in there]


async def _lives_of_containers(
    ground: Ground, server: Server, engine: Dock, kills: int, found: Found
) -> None:
    chance, instance_id = ground.chance, server.installation.instance_id
    mine = partial(engine.containers, agentsvc_installation=instance_id)

    def look() -> Seen:
        # One that is stopped may be without a container, as long as its files are there.
        volumes = engine.volumes(agentsvc_installation=instance_id)
        seen: Seen = {one["Labels"][_SANDBOX]: Phase.PAUSED for one in volumes}
        return seen | {one["Labels"][_SANDBOX]: None for one in mine()}

    life = Life(ground, server, look, found)
    for number in range(kills):
        await life.cut_short(partial(_kill_soon, ground, server))
        there = await asyncio.to_thread(mine)
        names = Counter((one["Labels"][_SANDBOX], one["Labels"][_ROLE]) for one in there)
        found.doubles += [
            f"{count} containers of {one}" for one, count in names.items() if count > 1
        ]
        if number % _OUTSIDE == 0 and there:
            await asyncio.to_thread(engine.remove, chance.choice(there)["Id"])
            found.outside += 1
            await life.reconcile("container removed by others")
        if number % _OUTSIDE == _OUTSIDE // 2:
            await asyncio.to_thread(engine.restart, chance.choice(_ENGINE_ENDS))
            found.engine_ends += 1
            await life.reconcile("the engine ended")
    found.orphans += await life.end_all(lambda: engine.left(instance_id))


def _workloads(server: Server) -> dict[str, int]:
    """Return how many processes serve in each sandbox."""
    counts: dict[str, int] = {}
    for one in server.installation.processes():
        if command_line(one.pid).split(b"\0")[1:3] == [b"-Ic", SERVE.encode()]:
            for mark in marks(one.pid):
                name = mark.rpartition("/")[2]
                counts[name] = counts.get(name, 0) + 1
    return counts


@asynccontextmanager
async def _bystander() -> AsyncIterator[Callable[[], bool]]:
    """Have a process and a directory of another installation; says whether both are there."""
    mark = f"{new_id()}/{new_id()}"
    temp = Path(new_temp_name(_TEMP))
    make_temp(str(temp), mark)
    process = await asyncio.create_subprocess_exec("sleep", "86400", env={MARK: mark})
    try:
        yield lambda: process.returncode is None and temp_mark(temp) == mark
    finally:
        process.kill()
        await process.wait()
        remove_directory(temp)


async def _join(act: Awaitable[None]) -> None:
    await act


async def _forget(_: Handle) -> None:
    """Save nothing."""


ROW: Final = Row(name="orphans", half=Half.LOST, promise="no orphan, no double", run=run)
