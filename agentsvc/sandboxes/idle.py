"""Unused sandboxes: finds them, tells how each can be paused, and sets its target."""

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
    """Finds unused sandboxes, and pauses, stops or deletes them."""

    stores: SandboxStores
    registry: BackendRegistry
    usage: ActivityTracker
    targets: Targets

    async def store_usage(self) -> None:
        """Flush the times of last use to the database."""
        moments = self.usage.begin_flush()
        if not moments:
            return
        try:
            await self.stores.db.write(lambda tx: self.stores.uses.set_active(tx, moments))
        except BaseException:
            self.usage.restore(moments)
            raise

    async def find_unused(self) -> list[UnusedSandbox]:
        """Return the sandboxes without a running agent or a start, according to the database."""
        return await self.stores.db.read(self.stores.uses.unused)

    def last_use(self, unused: UnusedSandbox) -> datetime:
        """Return when a sandbox was last used.

        A running sandbox may have been used while the server was down, so downtime is not idle time.
        """
        noted = self.usage.latest(unused.id, unused.active_at)
        return max(noted, self.usage.since) if unused.may_pause else noted

    def possible_rests(self, unused: UnusedSandbox) -> dict[str, bool]:
        """Return whether a paused sandbox's memory can be reclaimed or hibernated, as `due` takes it."""
        return {
            "reclaims": can_reclaim(self.registry, unused.backend),
            "hibernates": can_hibernate(self.registry, unused.backend),
        }

    def takes_memory_here(self, unused: UnusedSandbox) -> bool:
        """Return whether a sandbox occupies memory of this machine."""
        has_memory = unused.may_pause or unused.paused_as in TAKES_MEMORY
        return has_memory and self.registry.runs_here(unused.backend)

    async def is_culled(self, sandbox: Sandbox) -> bool:
        """Return whether it rests because of an idle rule or to make room, not for its user."""
        return sandbox.target.is_rest and await self.stores.uses.is_culled(
            sandbox.id, self.stores.db
        )

    async def cull(self, sandbox_id: str, target: Target, *, unused_since: datetime) -> bool:
        """Set the target of a sandbox unless it was used since; return whether it was set.

        The next message resumes the sandbox, unless its user had paused it before. If the backend
        cannot hibernate it is reclaimed instead, if it cannot stop or reclaim it is paused, and if
        it cannot pause either nothing changes.
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
