"""What runs in a sandbox goes on where it was, however often it rests and the server is killed.

A build that chains hashes, a tmux session and a server with a counter run in a sandbox of a real
conversation, which is frozen and resumed. Memory that is pushed out to swap is tried in a kernel of
its own, as swap is of the whole machine.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from tests.bench.figures import percentile
from tests.live.client import PATIENCE, LiveClient
from tests.live.installation import Installation, eventually, size
from tests.live.scripts import run as running
from tests.live.uml import PROGRAM, run_inside
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.real import SECONDS, Inside, RealServer, real_server

CYCLES: Final = 200
KILLS: Final = 20
_SWAP_BYTES: Final = 256 * 2**20
_RECLAIM_SECONDS: Final = 15.0
_MOMENTS: Final = ("pausing", "at rest", "resuming")
_BUILD: Final = """
import hashlib, os, time
digest, number = "", 0
with open("chain", "a", buffering=1) as file:
    while True:
        number += 1
        digest = hashlib.sha256(f"{digest}{number}".encode()).hexdigest()
        file.write(f"{number} {os.getpid()} {digest}\\n")
        time.sleep(0.01)
"""
_SERVE: Final = """
import os, socketserver
count = 0
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        global count
        count += 1
        self.wfile.write(f"{count} {os.getpid()}".encode())
socketserver.UnixStreamServer("counter", Answer).serve_forever()
"""
_TMUX: Final = "n=0; while :; do n=$((n+1)); echo $n $$ >>ticks; sleep 0.05; done"
_ASK: Final = """
import base64, json, os, socket, sys
os.chdir(base64.b64decode(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as one:
    one.connect("counter")
    print(json.dumps(one.recv(99).decode()))
"""


class Found(msgspec.Struct, kw_only=True):
    """What the cycles have shown."""

    cycles: int = 0
    kills: int = 0
    reclaimed: int = 0
    seconds: list[float] = []
    problems: list[str] = []


async def run(ground: Ground) -> Outcome:
    found = Found()
    async with asyncio.TaskGroup() as group:
        group.create_task(_frozen(ground, found))
        group.create_task(_reclaimed(ground, found))
    figures = [
        Figure(what="cycles frozen", value=found.cycles, at_least=ground.count(CYCLES, least=10)),
        Figure(what="kills", value=found.kills, at_least=ground.count(KILLS, least=2)),
        zero("processes, lines, answers or bytes that were not the next ones", found.problems),
    ]
    if found.reclaimed:
        slow = Figure(
            what="s until one that was reclaimed has used all of its memory, 19 of 20",
            value=percentile(found.seconds, 0.95),
            is_time=True,
        )
        figures += [
            Figure(what="cycles reclaimed", value=found.reclaimed, at_least=ground.count(CYCLES)),
            slow,
        ]
    return Outcome(
        did=(
            "a build that chains hashes, a tmux session and a server that counts, begun by an agent in"
            " its terminal; frozen and resumed, the server killed now and then while it paused them,"
            " while they rested, or while it resumed them; a server with 48 MiB of memory frozen,"
            " reclaimed and resumed, each time after another server, in a kernel of its own with"
            " swap, by its control group and process by process"
        ),
        figures=tuple(figures),
        problems=tuple(found.problems),
    )


async def _frozen(ground: Ground, found: Found) -> None:
    # Agent servers take long to load on a busy machine.
    slow = {"AGENTSVC_SANDBOXES__START_SECONDS": str(SECONDS)}
    async with real_server(ground.place("frozen"), slow) as server:
        work = await Work.begin(server)
        cycles, kills = ground.count(CYCLES, least=10), ground.count(KILLS, least=2)
        killed = set(ground.chance.sample(range(cycles), kills))
        for cycle in range(cycles):
            moment = _MOMENTS[found.kills % len(_MOMENTS)] if cycle in killed else ""
            await work.rest(moment, found)
            found.kills += bool(moment)
            found.cycles += 1
        work.compare(found)


class Work:
    """What an agent has set going in its sandbox."""

    def __init__(self, server: RealServer, inside: Inside) -> None:
        self._server: Installation = server.installation
        self._client: LiveClient = server.client
        self._inside = inside
        self._path = f"/api/v1/sandboxes/{inside.id}"
        self._folder = self._server.sandbox_dir(inside.id) / "workspace"
        self._files = [self._folder / name for name in ("chain", "ticks")]
        self._agents = self._server.agent_servers(inside.id)
        self._answers: list[str] = []

    @classmethod
    async def begin(cls, server: RealServer) -> "Work":
        conversation_id = await server.client.start_conversation("[script:say]")
        seen = await server.client.wait_for_execution(conversation_id, "finished")
        inside = server.of(await server.client.wait_for_sandbox(seen["sandbox_id"], "RUNNING"))
        work = cls(server, inside)
        for name, program in (("build.py", _BUILD), ("serve.py", _SERVE), ("ticks.sh", _TMUX)):
            (work._folder / name).write_text(program)
        quiet = ">/dev/null 2>&1 </dev/null &"
        await server.client.send(
            conversation_id,
            running(
                f"python3 build.py {quiet}",
                f"setsid nohup python3 serve.py {quiet}",
                "env -u TMUX tmux -L mine new-session -d 'sh ticks.sh'",
            ),
        )
        await eventually(
            lambda: min(map(size, work._files)) > 0 and (work._folder / "counter").exists(),
            "all of them run",
        )
        await server.client.wait_for_execution(conversation_id, "finished")
        return work

    async def rest(self, moment: str, found: Found) -> None:
        """Freeze it and resume it, and have the server killed at a moment, if one is named."""
        await self._ask_for("pause", is_killed=moment == "pausing")
        await self._client.wait_for_sandbox(self._inside.id, "PAUSED")
        before = [file.read_bytes() for file in self._files]
        if moment == "at rest":
            await self._server.restart()
        after = [file.read_bytes() for file in self._files]
        if before != after:
            found.problems.append(f"cycle {found.cycles}: something ran while it rested")
        await self._ask_for("resume", is_killed=moment == "resuming")
        await self._client.wait_for_sandbox(self._inside.id, "RUNNING")
        await eventually(
            lambda: all(
                size(file) > len(known) for file, known in zip(self._files, after, strict=True)
            ),
            "all of them go on",
        )
        self._answers.append(await self._inside.run(_ASK, str(self._folder)))

    async def _ask_for(self, verb: str, *, is_killed: bool) -> None:
        if not is_killed:
            answer = await self._client.post(f"{self._path}/{verb}")
            assert answer.status == 200, answer.text
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_in_vain(verb))
            # It is on its way, or done: whichever comes first.
            await asyncio.sleep(0)
            await self._server.kill()
        await self._server.restart()
        answer = await self._client.post(f"{self._path}/{verb}")
        assert answer.status == 200, answer.text

    async def _ask_in_vain(self, verb: str) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await self._client.post(f"{self._path}/{verb}")

    def compare(self, found: Found) -> None:
        """Note what is not as if nothing had ever rested."""
        if self._server.agent_servers(self._inside.id) != self._agents:
            found.problems.append("the agent server is another one")
        if (left := _unlike(self._answers)) is not None:
            found.problems.append(f"the server that counts answered {left}")
        chain, ticks = ([line.decode() for line in _lines(file)] for file in self._files)
        if (left := _unlike(ticks)) is not None:
            found.problems.append(f"tmux has {left}")
        if (left := _unlike([line.rpartition(" ")[0] for line in chain])) is not None:
            found.problems.append(f"the build has {left}")
        digest = ""
        for number, line in enumerate(chain, 1):
            digest = hashlib.sha256(f"{digest}{number}".encode()).hexdigest()
            if line.rpartition(" ")[2] != digest:
                found.problems.append(f"the chain is broken at {line}")
                return


def _lines(file: Path) -> list[bytes]:
    """Return the lines of a file that is written to; the last one may not be whole."""
    return file.read_bytes().split(b"\n")[:-1]


def _unlike(counted: list[str]) -> str | None:
    """Return what is not the next number of one process, None where all of it is."""
    _, _, pid = counted[0].partition(" ")
    wanted: Iterator[str] = (f"{number} {pid}" for number in range(1, len(counted) + 1))
    return next((one for one in counted if one != next(wanted)), None)


async def _reclaimed(ground: Ground, found: Found) -> None:
    if shutil.which(PROGRAM) is None:
        found.problems.append(f"`{PROGRAM}` is missing: install the package `user-mode-linux`")
        return
    folder, cycles = ground.place("reclaimed"), ground.count(CYCLES // 2)
    swap = folder / "swap"
    swap.touch(mode=0o600)
    os.truncate(swap, _SWAP_BYTES)
    module = f"tests.live.reclaiming_inside {cycles}"
    limit = PATIENCE + cycles * _RECLAIM_SECONDS
    seen: dict[str, Any] = await run_inside(folder, module, swap, time_limit=limit)
    for way in ("by_group", "by_process"):
        one = seen[way]
        found.reclaimed += one["cycles"]
        found.seconds += one["seconds"]
        if one["answers"] != [[str(count), one["digest"]] for count in range(cycles)]:
            found.problems.append(f"{way}: another process, or other bytes: {one['answers'][-1]}")
        if one["paused_as"] != ["frozen", "reclaimed"] * cycles:
            found.problems.append(f"{way}: it rested otherwise: {set(one['paused_as'])}")
        if min(one["swapped_bytes"]) < one["ballast_bytes"] / 2:
            found.problems.append(f"{way}: too little of its memory was pushed out")


ROW: Final = Row(
    name="rest",
    half=Half.LOST,
    promise="what runs goes on after a rest, byte for byte",
    run=run,
)
