"""What sandboxes cost that rest, how many of them a machine holds, and how fast they are back."""

from pathlib import Path
from typing import Final

from process.tree import snapshot

from agentsvc.base.values import monotonic
from tests.bench.figures import Figure, Section, Target, percentile
from tests.bench.part_agents import begin_together, warm_server
from tests.bench.sizes import Sizes
from tests.live.client import LiveClient
from tests.live.installation import Installation

_UNBOUNDED: Final = {
    "AGENTSVC_SANDBOXES__MAX_RUNNING": "0",
    "AGENTSVC_SANDBOXES__MAX_RUNNING_PER_USER": "0",
}
_AT_ONCE: Final = 10
_KIB: Final = 1024
_WAKES: Final = Target(most=0.150)
_ROOM_MIB: Final = 8 * 1024
_HELD: Final = Target(most=_ROOM_MIB)
_SANDBOXES: Final = "/api/v1/sandboxes"


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Begin conversations, freeze some and wake one again and again, and stop the others."""
    async with warm_server(folder, _UNBOUNDED) as (server, client):
        before = _memory(server)
        frozen = await _rested(client, sizes.frozen, "pause")
        held = [_memory(server)]
        woken = [await _wake(client, frozen[turn % len(frozen)]) for turn in range(sizes.wakes)]
        await _rested(client, sizes.rested - sizes.frozen, "stop")
        held.append(_memory(server))
        for sandbox_id in frozen:
            assert (await client.post(f"{_SANDBOXES}/{sandbox_id}/stop")).status == 200
        held.append(_memory(server))
    each, other = (held[0] - before) / sizes.frozen, (held[2] - before) / sizes.rested
    named = (
        f"all, with {sizes.frozen} frozen",
        f"all, with {sizes.frozen} frozen and {sizes.rested - sizes.frozen} stopped",
        f"all, with {sizes.rested} stopped",
    )
    return Section(
        title="At rest",
        about=f"{sizes.rested} conversations in sandboxes of their own, with real agent servers"
        " that are forks of one, each of which has had a turn. Memory is the proportional share"
        " (PSS) of all processes of the installation. A wake is from the request to resume to the"
        " agent server's answer through the gateway.",
        figures=(
            Figure(name="a frozen one is back", unit="s", ours=tuple(woken), target=_WAKES),
            Figure(name="19 of 20 are back after", unit="s", ours=(percentile(woken, 0.95),)),
            Figure(name="all, before they begin", unit="MiB", ours=(before,)),
            *(
                Figure(name=name, unit="MiB", ours=(memory,), target=_HELD)
                for name, memory in zip(named, held, strict=True)
            ),
            Figure(name="each, frozen", unit="MiB", ours=(each,)),
            Figure(name="each, stopped", unit="MiB", ours=(other,)),
            Figure(name="frozen ones in 8 GiB", unit="", ours=((_ROOM_MIB - before) // each,)),
        ),
    )


async def _rested(client: LiveClient, count: int, how: str) -> list[str]:
    """Begin conversations, and have the sandbox of each rest once its agent is done."""
    ids = list[str]()
    while len(ids) < count:
        for one in await begin_together(client, min(_AT_ONCE, count - len(ids))):
            await client.wait_for_execution(one.task["app_conversation_id"], "finished")
            ids.append(one.task["sandbox_id"])
            answer = await client.post(f"{_SANDBOXES}/{ids[-1]}/{how}")
            assert answer.status == 200, answer.text
    return ids


async def _wake(client: LiveClient, sandbox_id: str) -> float:
    path = f"{_SANDBOXES}/{sandbox_id}"
    assert (await client.post(f"{path}/pause")).status == 200
    began = monotonic()
    assert (await client.post(f"{path}/resume")).status == 200
    answer = await client.get(f"/sandboxes/{sandbox_id}/agent/server_info")
    took = monotonic() - began
    assert answer.status == 200, answer.text
    assert (await client.post(f"{path}/pause")).status == 200
    return took


def _memory(server: Installation) -> float:
    """Return the memory of the server, of what it runs, and of all sandboxes."""
    table = snapshot()
    pids = {server.pid, *(one.pid for one in server.processes())}
    while more := {pid for pid, one in table.items() if one.parent in pids} - pids:
        pids |= more
    return sum(map(_pss, pids)) / _KIB


def _pss(pid: int) -> int:
    """Return the share of a process in memory, in KiB; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
