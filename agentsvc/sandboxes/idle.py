"""Unused sandboxes: finds them, says how they can be paused, and asks for it."""

from datetime import datetime

import msgspec

from agentsvc.sandboxes.admission.table import UnusedSandbox
from agentsvc.sandboxes.last_used import ActivityTracker
from agentsvc.sandboxes.operations import can_hibernate, can_reclaim, possible
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.state import TAKES_MEMORY, Sandbox, Target
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.sandboxes.targets import Targets
from agentsvc.storage import Transaction


class IdleSandboxes(msgspec.Struct, eq=False):
    """Knows which sandboxes nobody uses, and asks for them to rest or to go."""

    stores: SandboxStores
    registry: BackendRegistry
    usage: ActivityTracker
    targets: Targets

    async def store_usage(self) -> None:
        """Store when sandboxes were used since the last time."""
        moments = self.usage.begin_flush()
        if not moments:
            return
        try:
            await self.stores.db.write(lambda tx: self.stores.uses.set_active(tx, moments))
        except BaseException:
            self.usage.restore(moments)
            raise

    async def find_unused(self) -> list[UnusedSandbox]:
        """Return the sandboxes in which no agent runs and nothing starts, as far as is stored."""
        return await self.stores.db.read(self.stores.uses.unused)

    def last_use(self, unused: UnusedSandbox) -> datetime:
        """Return when a sandbox was last used.

        What runs may have been used while no server did; that time does not count as idle.
        """
        noted = self.usage.latest(unused.id, unused.active_at)
        return max(noted, self.usage.since) if unused.may_pause else noted

    def possible_rests(self, unused: UnusedSandbox) -> dict[str, bool]:
        """Say what could be done with the memory of a sandbox if it is paused, as `due` takes it."""
        return {
            "reclaims": can_reclaim(self.registry, unused.backend),
            "hibernates": can_hibernate(self.registry, unused.backend),
        }

    def takes_memory_here(self, unused: UnusedSandbox) -> bool:
        """Whether a sandbox has its memory from this machine."""
        has_memory = unused.may_pause or unused.paused_as in TAKES_MEMORY
        return has_memory and self.registry.runs_here(unused.backend)

    async def is_culled(self, sandbox: Sandbox) -> bool:
        """Whether it rests because nobody needed it, or to make room, and not for its user."""
        return sandbox.target.is_rest and await self.stores.uses.is_culled(
            sandbox.id, self.stores.db
        )

    async def cull(self, sandbox_id: str, target: Target, *, unused_since: datetime) -> bool:
        """Ask for a resting or deleted sandbox if it was not used meanwhile; say whether that is so.

        The next message resumes one that did not rest before. Where a backend cannot keep
        their memory on disk it is pushed out, where it cannot stop them or do that they are paused, and
        where it cannot do that either they are left alone.
        """

        async def body(tx: Transaction) -> bool:
            found = {one.id: one for one in await self.stores.uses.unused(tx)}.get(sandbox_id)
            if found is None or self.usage.latest(sandbox_id, found.active_at) > unused_since:
                return False
            sandbox = await self.stores.sandboxes.find(sandbox_id, tx)
            wanted = possible(self.registry, sandbox, target) if sandbox is not None else None
            if sandbox is None or wanted is None:
                return False
            await self.targets.set(tx, sandbox_id, wanted, until_needed=True)
            return True

        return await self.stores.db.write(body)
