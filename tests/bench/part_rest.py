"""What sandboxes cost that rest, how many of them a machine holds, and how fast they are back."""

import asyncio
from pathlib import Path
from typing import Any, Final

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
_RECLAIMING: Final = {"AGENTSVC_SANDBOXES__RECLAIM_AFTER_SECONDS": "1"}
_COUNTS: Final = (1, 20)
_AT_ONCE: Final = 10
_PATIENCE_SECONDS: Final = 240.0
_KIB: Final = 1024
_FROZEN_WAKES: Final = Target(most=0.150)
_RECLAIMED_WAKES: Final = Target(most=0.500)
_ROOM_MIB: Final = 8 * 1024
_HELD: Final = Target(most=_ROOM_MIB)
_ABOUT: Final = (
    "with real agent servers that are forks of one, each of which has had a turn. Memory is the"
    " proportional share (PSS) of all processes of the installation. A wake is from the request to resume"
    " to the agent server's answer through the gateway."
)
_SANDBOXES: Final = "/api/v1/sandboxes"


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Begin conversations, freeze some and wake one again and again, and stop the others."""
    async with warm_server(folder, _UNBOUNDED) as (server, client):
        before = _memory(server)
        frozen: list[str] = []
        held: dict[str, float] = {}
        for count in _counts(sizes.frozen):
            frozen += await _rested(client, count - len(frozen), "pause")
            held[f"all, with {count} frozen"] = _memory(server)
        each = (held[f"all, with {sizes.frozen} frozen"] - before) / sizes.frozen
        woken = [await _wake(client, frozen[turn % len(frozen)]) for turn in range(sizes.wakes)]
        await _rested(client, sizes.rested - sizes.frozen, "stop")
        named = f"all, with {sizes.frozen} frozen and {sizes.rested - sizes.frozen} stopped"
        held[named] = _memory(server)
        for sandbox_id in frozen:
            assert (await client.post(f"{_SANDBOXES}/{sandbox_id}/stop")).status == 200
        held[f"all, with {sizes.rested} stopped"] = _memory(server)
    other = (held[f"all, with {sizes.rested} stopped"] - before) / sizes.rested
    return Section(
        title="At rest",
        about=f"{sizes.rested} conversations in sandboxes of their own, {_ABOUT}",
        figures=(
            *_of_wakes("frozen", woken, _FROZEN_WAKES),
            Figure(name="all, before they begin", unit="MiB", ours=(before,)),
            *_of_memory(held),
            Figure(name="each, frozen", unit="MiB", ours=(each,)),
            Figure(name="each, stopped", unit="MiB", ours=(other,)),
            Figure(name="frozen ones in 8 GiB", unit="", ours=((_ROOM_MIB - before) // each,)),
        ),
    )


async def measure_reclaimed(sizes: Sizes, folder: Path) -> Section:
    """Begin conversations, wait until their memory is in swap, and wake some of them."""
    swap = _free_swap()
    figures = [Figure(name="free swap at first", unit="MiB", ours=(swap,))]
    if swap:
        async with warm_server(folder, _UNBOUNDED | _RECLAIMING) as (server, client):
            figures += await _reclaimed(sizes, server, client)
    return Section(
        title="Reclaimed",
        about=f"{sizes.rested} conversations in sandboxes of their own, {_ABOUT} Each is reclaimed a"
        " second after its turn, if the machine has swap.",
        figures=tuple(figures),
    )


async def _reclaimed(sizes: Sizes, server: Installation, client: LiveClient) -> list[Figure]:
    ids: list[str] = []
    held: dict[str, float] = {}
    woken: list[float] = []
    for count in _counts(sizes.rested):
        ids += await _begun(client, count - len(ids))
        await _all_reclaimed(client)
        held[f"all, with {count} reclaimed"] = _memory(server)
        woken = [await _answer(client, one) for one in ids[-sizes.wakes :]]
    return [*_of_wakes("reclaimed", woken, _RECLAIMED_WAKES), *_of_memory(held)]


def _counts(most: int) -> list[int]:
    return [count for count in _COUNTS if count < most] + [most]


def _of_wakes(kind: str, woken: list[float], target: Target) -> list[Figure]:
    slow = (percentile(woken, 0.95),)
    return [
        Figure(name=f"a {kind} one is back", unit="s", ours=tuple(woken), target=target),
        Figure(name=f"19 of 20 {kind} ones are back after", unit="s", ours=slow),
    ]


def _of_memory(held: dict[str, float]) -> list[Figure]:
    return [
        Figure(name=name, unit="MiB", ours=(memory,), target=_HELD) for name, memory in held.items()
    ]


async def _rested(client: LiveClient, count: int, how: str) -> list[str]:
    """Begin conversations, and have the sandbox of each rest once its agent is done."""
    ids: list[str] = []
    while len(ids) < count:
        for sandbox_id in await _begun(client, min(_AT_ONCE, count - len(ids))):
            answer = await client.post(f"{_SANDBOXES}/{sandbox_id}/{how}")
            assert answer.status == 200, answer.text
            ids.append(sandbox_id)
    return ids


async def _begun(client: LiveClient, count: int) -> list[str]:
    """Begin conversations, and return their sandboxes once their agents are done."""
    ids: list[str] = []
    while len(ids) < count:
        for one in await begin_together(client, min(_AT_ONCE, count - len(ids))):
            await client.wait_for_execution(one.task["app_conversation_id"], "finished")
            ids.append(one.task["sandbox_id"])
    return ids


async def _all_reclaimed(client: LiveClient) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if {one["paused_as"] for one in await _sandboxes(client)} == {"reclaimed"}:
                return
            await asyncio.sleep(1)


async def _sandboxes(client: LiveClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page: str | None = ""
    while page is not None:
        answer = await client.get(f"{_SANDBOXES}/search", params={"page_id": page} if page else {})
        found += answer.json()["items"]
        page = answer.json()["next_page_id"]
    return found


async def _wake(client: LiveClient, sandbox_id: str) -> float:
    assert (await client.post(f"{_SANDBOXES}/{sandbox_id}/pause")).status == 200
    took = await _answer(client, sandbox_id)
    assert (await client.post(f"{_SANDBOXES}/{sandbox_id}/pause")).status == 200
    return took


async def _answer(client: LiveClient, sandbox_id: str) -> float:
    """Return how long a sandbox at rest takes to answer."""
    began = monotonic()
    assert (await client.post(f"{_SANDBOXES}/{sandbox_id}/resume")).status == 200
    answer = await client.get(f"/sandboxes/{sandbox_id}/agent/server_info")
    took = monotonic() - began
    assert answer.status == 200, answer.text
    return took


def _free_swap() -> float:
    fields = Path("/proc/meminfo").read_text().split()
    return int(fields[fields.index("SwapFree:") + 1]) / _KIB


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
