"""What a network of its own costs a sandbox, beside one in the machine's network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
from process.backend import ProcessBackend
from process.settings import OpenNetwork, ProcessConfig
from process.specs import DEFAULT_SPEC

from agentsvc.agentserver.client import AgentClient
from agentsvc.base.values import monotonic, new_id
from agentsvc.plugin.backend import BackendContext, Handle, Order
from tests.bench.figures import Figure, Section, Target
from tests.bench.sizes import Sizes
from tests.bench.zygote import CoreRig

_KIB_IN_MIB: Final = 1024
_ZYGOTE_SECONDS: Final = 180.0
_MAX_MS: Final = 30.0
_MAX_MIB: Final = 3.0
_BARE_STARTS: Final = 5
"""Starts of a sandbox with a command that does nothing, for each of a real agent server."""


class _Cost(msgspec.Struct, frozen=True):
    seconds: float
    whole: float
    holders: float
    """Of the whole, what is not the agent server's own, in MiB."""


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Start agent servers in both networks in turns; the first of each does not count."""
    costs: dict[OpenNetwork, list[_Cost]] = {network: [] for network in OpenNetwork}
    bare: dict[OpenNetwork, list[float]] = {network: [] for network in OpenNetwork}
    async with contextlib.AsyncExitStack() as stack:
        benches = {
            network: await stack.enter_async_context(_bench(folder / network, network))
            for network in OpenNetwork
        }
        for number in range(sizes.agents + 1):
            # Each is first in turn, since what ends is still in the way of what begins.
            for network in sorted(benches, reverse=bool(number % 2)):
                cost = await _once(benches[network])
                costs[network] += [cost] * bool(number)
        for number in range(sizes.agents * _BARE_STARTS + 1):
            for network in sorted(benches, reverse=bool(number % 2)):
                seconds = await _bare_start(benches[network].backend)
                bare[network] += [seconds] * bool(number)
    own, host = costs[OpenNetwork.OWN], costs[OpenNetwork.HOST]
    pairs = list(zip(own, host, strict=True))
    own_bare, host_bare = bare[OpenNetwork.OWN], bare[OpenNetwork.HOST]
    return Section(
        title="Networks",
        about="Real agent servers in sandboxes that bubblewrap holds, forks of a loaded one, with a"
        " network of their own (slirp4netns) against the machine's; memory is their share (PSS).",
        figures=(
            Figure(
                name="start to the first answer",
                unit="ms",
                ours=tuple(one.seconds * 1000 for one in own),
                floor=tuple(one.seconds * 1000 for one in host),
            ),
            Figure(
                name="start of a command that does nothing",
                unit="ms",
                ours=tuple(seconds * 1000 for seconds in own_bare),
                floor=tuple(seconds * 1000 for seconds in host_bare),
            ),
            Figure(
                name="more time until it runs, start by start",
                unit="ms",
                ours=tuple(
                    (one - other) * 1000 for one, other in zip(own_bare, host_bare, strict=True)
                ),
                target=Target(most=_MAX_MS),
            ),
            Figure(
                name="memory of a whole idle sandbox",
                unit="MiB",
                ours=tuple(one.whole for one in own),
                floor=tuple(one.whole for one in host),
            ),
            Figure(
                name="more memory of what holds it",
                unit="MiB",
                ours=tuple(one.holders - other.holders for one, other in pairs),
                target=Target(most=_MAX_MIB),
            ),
        ),
    )


@contextlib.asynccontextmanager
async def _bench(folder: Path, network: OpenNetwork) -> AsyncIterator[CoreRig]:
    config = ProcessConfig(network=network, zygote_seconds=_ZYGOTE_SECONDS)
    backend = ProcessBackend(config, BackendContext(instance_id=new_id(), state_dir=folder))
    client = AgentClient()
    await client.open()
    await backend.open()
    try:
        yield CoreRig(backend, client)
    finally:
        for found in await backend.scan():
            await backend.delete(found.handle)
        await client.close()
        await backend.close()


async def _bare_start(backend: ProcessBackend) -> float:
    """Return how long a sandbox takes until its command runs; an agent server varies by more."""
    order = Order(sandbox_id=new_id(), command=("sleep", "1000"), ports=DEFAULT_SPEC.ports)
    began = monotonic()
    handle = await backend.create(order, _no_save)
    seconds = monotonic() - began
    await backend.delete(handle)
    return seconds


async def _no_save(_handle: Handle) -> None: ...


async def _once(bench: CoreRig) -> _Cost:
    handle, seconds = await bench.start(is_fork=True)
    whole, holders = await asyncio.to_thread(_weigh, bench.shim(handle))
    await bench.backend.delete(handle)
    return _Cost(seconds, whole, holders)


def _weigh(shim: int) -> tuple[float, float]:
    """Return the memory of a process and all that has come of it, and that without the largest."""
    sizes, waiting = [], [shim]
    for pid in waiting:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            sizes += [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return sum(sizes) / _KIB_IN_MIB, (sum(sizes) - max(sizes)) / _KIB_IN_MIB
