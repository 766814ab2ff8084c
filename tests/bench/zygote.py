"""What a fork of a loaded agent server saves, beside a cold start on the same machine.

Both are measured in turns. A start is over when the agent server answers; what it takes is measured
when it does: own memory is what no other process shares, the share is its part of all.
"""

import asyncio
import os
import statistics
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec
from process.backend import ProcessBackend
from process.settings import ProcessConfig
from process.specs import DEFAULT_SPEC

from agentsvc.agentserver.client import AgentClient
from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import Secret, monotonic, new_id, new_key
from agentsvc.plugin import AGENT_OUTPUT
from agentsvc.plugin.backend import BackendContext, Handle, Order, Phase

_KIB_IN_MIB: Final = 1024
_POLL_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 180.0
"""How long anything may take: a machine that is busy is slow, and that is a figure, too."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start: how long it took, of which on a processor, and how much memory it had then, in MiB."""

    how: str
    seconds: float
    cpu: float
    own: float
    share: float


@click.command()
@click.option("--rounds", default=5, help="Starts of each kind, one after another.")
@click.option("--at-once", default=8, help="Forks that are started together.")
def main(rounds: int, at_once: int) -> None:
    """Print both, and what many forks at once take."""
    asyncio.run(measure(rounds, at_once))


async def measure(rounds: int, at_once: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = ProcessConfig(
            zygote=True,
            zygote_seconds=_PATIENCE_SECONDS,
            launch_seconds=_PATIENCE_SECONDS,
        )
        context = BackendContext(instance_id=new_id(), state_dir=Path(folder, "state"))
        backend = ProcessBackend(config, context)
        client = AgentClient()
        await client.open()
        await backend.open()
        try:
            bench = CoreRig(backend, client)
            first, _ = await bench.start(is_fork=True)
            await backend.delete(first)
            for is_fork in (False, True):
                bench.show(
                    [await bench.once(is_fork=is_fork) for _ in range(rounds)], "one at a time"
                )
            together = await asyncio.gather(*(bench.start(is_fork=True) for _ in range(at_once)))
            bench.show([await bench.weigh(*one) for one in together], f"{at_once} at once")
        finally:
            for found in await backend.scan():
                await backend.delete(found.handle)
            await client.close()
            await backend.close()


class CoreRig:
    """Starts agent servers and weighs them."""

    def __init__(self, backend: ProcessBackend, client: AgentClient) -> None:
        self.backend = backend
        self.client = client

    async def once(self, *, is_fork: bool) -> Start:
        """Start one, weigh it, and delete it."""
        handle, seconds = await self.start(is_fork=is_fork)
        found = await self.weigh(handle, seconds)
        await self.backend.delete(handle)
        return found

    async def start(self, *, is_fork: bool) -> tuple[Handle, float]:
        """Start one and return how long that took until it answered."""
        key = new_key()
        order = Order(
            sandbox_id=new_id(),
            command=DEFAULT_SPEC.command,
            ports=DEFAULT_SPEC.ports,
            env={**AGENT_OUTPUT, **DEFAULT_SPEC.env},
            secret_env={"OH_SESSION_API_KEYS_0": Secret(key.reveal())},
            options={"zygote": is_fork},
        )
        began = monotonic()
        handle = await self.backend.create(order, _no_save)
        report = await self.backend.inspect(handle)
        while report.phase is Phase.STARTING:
            await asyncio.sleep(_POLL_SECONDS)
            report = await self.backend.inspect(handle)
        if report.phase is not Phase.RUNNING:
            raise click.ClickException(report.reason)
        url = next(one.url for one in report.endpoints if one.name == "agent")
        try:
            await self.client.at(url, key).wait_ready(_PATIENCE_SECONDS)
        except AgentsvcError as exc:
            raise click.ClickException(f"{exc.message} {exc.detail}") from exc
        return handle, monotonic() - began

    async def weigh(self, handle: Handle, seconds: float) -> Start:
        """Return what one takes."""
        report = await self.backend.inspect(handle)
        pid = await asyncio.to_thread(_agent_server, self.shim(handle))
        cpu = await asyncio.to_thread(_cpu_seconds, pid)
        own, share = await asyncio.to_thread(_memory, pid)
        how = report.facts["started by"]
        return Start(how=how, seconds=seconds, cpu=cpu, own=own, share=share)

    def show(self, starts: list[Start], title: str) -> None:
        """Print the medians of some starts, and between which they are."""
        seconds = [one.seconds for one in starts]
        click.echo(
            f"{title}, {starts[0].how}: healthy after {statistics.median(seconds):.2f} s"
            f" ({min(seconds):.2f} to {max(seconds):.2f}),"
            f" {statistics.median([one.cpu for one in starts]):.2f} s of a processor,"
            f" own memory {statistics.median([one.own for one in starts]):.0f} MiB,"
            f" share {statistics.median([one.share for one in starts]):.0f} MiB"
        )

    def shim(self, handle: Handle) -> int:
        """Return the process that holds a sandbox."""
        file = self.backend.context.state_dir / handle.sandbox_id / "state.json"
        shim: int = msgspec.json.decode(file.read_bytes())["shim"][0]
        return shim


def _agent_server(shim: int) -> int:
    """Return the descendant that takes most memory."""
    found, size = shim, 0
    waiting = [shim]
    for pid in waiting:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue  # it has ended: many are there only to try a port
        waiting += map(int, children)
        if pid != shim and pages > size:
            found, size = pid, pages
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> tuple[float, float]:
    lines = (
        line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    sizes = {line[0].rstrip(":"): int(line[1]) for line in lines}
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return own / _KIB_IN_MIB, sizes["Pss"] / _KIB_IN_MIB


async def _no_save(_handle: Handle) -> None: ...


if __name__ == "__main__":
    main()
