"""What it costs to look after many sandboxes, on a fake backend: per sandbox, and as they grow.

Three looks at all sandboxes are taken at each size: one at which nothing has changed, one at which
everything has, and one while the backend is away. Beside the time for each sandbox stands the
longest moment in which the server did nothing else.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Final

import click
import msgspec

from agentsvc.agentserver.client import AgentClient
from agentsvc.base.supervisor import Supervisor
from agentsvc.base.values import monotonic, new_id, new_key, now
from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.config.schema import Config
from agentsvc.plugin.backend import Endpoint, Handle, Order, Phase
from agentsvc.sandboxes import Sandboxes, SandboxStores, StartSlots
from agentsvc.sandboxes.orders import CallbackRules
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.state import Sandbox, Target
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.settings.store import SettingsStore
from agentsvc.storage.database import Database, Transaction
from agentsvc.storage.vault import Vault
from agentsvc.testing.backend import FAKE_SPEC, HANDLE_VERSION, FakeSandbox, FakeWorld
from agentsvc.testing.rig import LoopWatch

SIZES: Final = (100, 1_000, 10_000)
FLAT: Final = 2.0
"""How many times as much a sandbox may cost among the most as among the fewest."""

_MILLISECONDS: Final = 1_000
_INSTANCE: Final = "bench"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at all sandboxes took, in seconds."""

    wall: float
    processor: float
    longest_stall: float


class Fleet:
    """A server's sandboxes, without the server around them."""

    def __init__(
        self, db: Database, world: FakeWorld, sandboxes: Sandboxes, supervisor: Supervisor
    ) -> None:
        self.world = world
        self._db = db
        self._sandboxes = sandboxes
        self._supervisor = supervisor
        self._ids: list[str] = []

    async def fill(self, vault: Vault, count: int) -> None:
        """Have so many sandboxes that run, in the database and at the backend."""
        table = SandboxTable(self._db, vault)
        made = [_running(new_id()) for _ in range(count)]
        self._ids = [sandbox.id for sandbox in made]

        async def insert(tx: Transaction) -> None:
            await tx.run(
                "INSERT INTO users (id, name, created_at) VALUES ('user', 'user', :now)",
                {"now": "2026-01-01T00:00:00.000000Z"},
            )
            for sandbox in made:
                await table.insert(tx, sandbox)

        await self._db.write(insert)
        for sandbox in made:
            order = Order(sandbox_id=sandbox.id, command=("agent",), ports=FAKE_SPEC.ports)
            fake = FakeSandbox(order, _INSTANCE)
            fake.phase = Phase.RUNNING
            fake.urls = {end.name: end.url for end in sandbox.endpoints}
            self.world.sandboxes[sandbox.id] = fake

    async def look(self) -> Look:
        """Look at all of them once, to the end."""
        watch = LoopWatch()
        began, used = monotonic(), process_time()
        longest = await watch.measure(self._look_to_the_end())
        return Look(
            wall=monotonic() - began, processor=process_time() - used, longest_stall=longest
        )

    async def _look_to_the_end(self) -> None:
        await self._sandboxes.sweep()
        for sandbox_id in self._ids:
            await self._supervisor.join(f"sandbox {sandbox_id}")


def _running(sandbox_id: str) -> Sandbox:
    moment = now()
    endpoint = Endpoint(name="agent", port=8000, url="http://127.0.0.1:8000")
    return Sandbox(
        id=sandbox_id,
        user_id="user",
        spec_id=FAKE_SPEC.id,
        spec=FAKE_SPEC,
        backend="fake",
        target=Target.RUNNING,
        phase=Phase.RUNNING,
        reason="",
        exit_code=None,
        handle=Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION),
        endpoints=(endpoint,),
        working_dir="/workspace/project",
        facts={},
        session_key=new_key(),
        ready_by=moment + timedelta(hours=1),
        created_at=moment,
        updated_at=moment,
    )


@asynccontextmanager
async def fleet_of(count: int, world: FakeWorld | None = None) -> AsyncIterator[Fleet]:
    """Give so many sandboxes, with a database on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        db = await Database.open(directory / "agentsvc.db")
        supervisor = Supervisor()
        try:
            world = world or FakeWorld()
            vault = Vault.open(directory / "vault.key")
            sandboxes = await _sandboxes(db, vault, world, supervisor, directory)
            fleet = Fleet(db, world, sandboxes, supervisor)
            await fleet.fill(vault, count)
            yield fleet
        finally:
            await supervisor.stop(10)
            await db.close()


async def _sandboxes(
    db: Database, vault: Vault, world: FakeWorld, supervisor: Supervisor, directory: Path
) -> Sandboxes:
    config = Config(backends={"fake": {}}, sandboxes=SandboxesConfig(default_backend="fake"))
    host = PluginHost()
    host.add("fake", world.plugin(), version="", origin="bench")
    registry = BackendRegistry.build(host, config, instance_id=_INSTANCE, state_dir=directory)
    await registry.open()
    return Sandboxes(
        SandboxStores(db, vault, SettingsStore(db, vault), ()),
        registry=registry,
        supervisor=supervisor,
        config=config.sandboxes,
        callbacks=CallbackRules(internal_url="http://127.0.0.1:3000", flush_seconds=1.0),
        agents=AgentClient(),
        slots=StartSlots(0, lapse_seconds=60),
    )


async def measure(count: int) -> dict[str, Look]:
    """Take the three looks at so many sandboxes."""
    async with fleet_of(count) as fleet:
        await fleet.look()
        found = {"nothing has changed": await fleet.look()}
        fleet.world.unreachable = True
        found["the backend is away"] = await fleet.look()
        fleet.world.unreachable = False
        for fake in fleet.world.sandboxes.values():
            fake.reason = "something new"
        found["everything has changed"] = await fleet.look()
        return found


def lines(found: dict[int, dict[str, Look]]) -> list[str]:
    """Return a table: for each look, the cost of a sandbox at each size."""
    told = ["| look | " + " | ".join(f"of {count:,}" for count in found) + " | grows |"]
    told.append("|---" * (len(found) + 2) + "|")
    for name in next(iter(found.values())):
        cells = []
        for count, looks in found.items():
            look = looks[name]
            each = look.processor / count * _MILLISECONDS
            stall = look.longest_stall * _MILLISECONDS
            cells.append(f"{each:.3f} ms each, {look.wall:.2f} s in all, stall {stall:.0f} ms")
        told.append(f"| {name} | {' | '.join(cells)} | {growth(found, name):.2f} times |")
    return told


def growth(found: dict[int, dict[str, Look]], name: str) -> float:
    """Return how many times as much a sandbox costs among the most as among the fewest."""
    each = {count: looks[name].processor / count for count, looks in found.items()}
    return each[max(each)] / each[min(each)]


@click.command()
@click.option("--size", "sizes", type=int, multiple=True, default=SIZES, help="How many sandboxes.")
def main(sizes: tuple[int, ...]) -> None:
    """Print what a look at all sandboxes costs; fails if it grows with how many there are."""
    found = {}
    for count in sizes:
        found[count] = asyncio.run(measure(count))
        click.echo(f"{count:,} looked at", err=True)
    for line in lines(found):
        click.echo(line)
    steep = [name for name in next(iter(found.values())) if growth(found, name) > FLAT]
    if steep:
        raise click.ClickException(f"this is not flat: {', '.join(steep)}")


if __name__ == "__main__":
    main()
