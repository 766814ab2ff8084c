"""Stores the target of each sandbox; the reconciler then takes the sandbox there."""

import msgspec

from agentsvc.base import Conflict, now
from agentsvc.domain import WhenFull
from agentsvc.plugin import Phase
from agentsvc.sandboxes.admission.capacity import held_of
from agentsvc.sandboxes.admission.queue import AdmissionQueue
from agentsvc.sandboxes.admission.warm_pool import WarmPool
from agentsvc.sandboxes.admission.warm_pool_table import WarmSandbox
from agentsvc.sandboxes.last_used import ActivityTracker
from agentsvc.sandboxes.reconciler import Reconciler
from agentsvc.sandboxes.state import Sandbox, Target, holds_room
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.storage import Transaction


class Targets(msgspec.Struct, kw_only=True, eq=False):
    """Sets targets; each method with a `tx` parameter runs in the caller's transaction."""

    stores: SandboxStores
    usage: ActivityTracker
    admission: AdmissionQueue
    warm_pool: WarmPool
    reconciler: Reconciler

    async def enter(
        self,
        tx: Transaction,
        sandbox: Sandbox,
        spare: WarmSandbox | None,
        when_full: WhenFull | None,
    ) -> Sandbox:
        """Insert a new sandbox that runs or waits; the spare becomes it if it may run now.

        Raises SandboxLimitReached if capacity is exhausted and the sandbox may not wait.
        """
        entered = await self._insert(tx, sandbox, spare, when_full)
        stored = await self.stores.sandboxes.find(entered.id, tx) or entered
        tx.after_commit(lambda: self.stores.changes.announce(stored, stored))
        tx.after_commit(lambda: self.reconciler.wake(entered.id))
        return stored

    async def set_known(
        self,
        sandbox_id: str,
        target: Target,
        when_full: WhenFull | None = None,
        *,
        until_needed: bool = False,
    ) -> Sandbox:
        """Call `set` in a new transaction; raises Conflict if it returns None."""
        wanted = await self.stores.db.write(
            lambda tx: self.set(tx, sandbox_id, target, when_full, until_needed=until_needed)
        )
        if wanted is None:
            raise Conflict("The sandbox is being deleted")
        return wanted

    async def set_now(self, sandbox_id: str, target: Target) -> Sandbox | None:
        """Call `set` in a new transaction."""
        return await self.stores.db.write(lambda tx: self.set(tx, sandbox_id, target))

    async def set(
        self,
        tx: Transaction,
        sandbox_id: str,
        target: Target,
        when_full: WhenFull | None = None,
        *,
        until_needed: bool = False,
    ) -> Sandbox | None:
        """Set the target of a sandbox; return None if it is unknown or being deleted.

        With `until_needed` the next message resumes a resting sandbox, unless its user had paused or
        stopped it before. Raises SandboxLimitReached like `enter`.
        """
        before = await self.stores.sandboxes.find(sandbox_id, tx)
        if before is None or before.target is Target.DELETED:
            return None
        is_culled = until_needed and target.is_rest
        if is_culled and before.target.is_rest:
            is_culled = await self.stores.uses.is_culled(sandbox_id, tx)
        await self.stores.sandboxes.set_target(tx, sandbox_id, target, self.reconciler.deadline())
        await self.stores.uses.set_culled(tx, sandbox_id, now() if is_culled else None)
        if target.is_rest or target is Target.DELETED:
            await self.stores.uses.clear_queued(tx, sandbox_id)
            return await self._announce(tx, before)
        # This counts as use; stored because `agentsvc prune` reads it in another process.
        self.usage.note(sandbox_id)
        await self.stores.uses.set_active(tx, {sandbox_id: now()})
        if not holds_room(before):
            await self._make_room(tx, before)
            await self.admission.enter(tx, before, when_full)
        return await self._announce(tx, before)

    async def let_in(self, tx: Transaction, sandbox_id: str) -> None:
        """Let a queued sandbox run; its start deadline begins now."""
        before = await self.stores.sandboxes.find(sandbox_id, tx)
        if before is None:
            return
        self.usage.note(sandbox_id)
        await self.stores.sandboxes.set_target(
            tx, sandbox_id, before.target, self.reconciler.deadline()
        )
        await self._announce(tx, before)

    async def _insert(
        self,
        tx: Transaction,
        sandbox: Sandbox,
        spare: WarmSandbox | None,
        when_full: WhenFull | None,
    ) -> Sandbox:
        if spare is not None:
            taken = _from_spare(sandbox, spare)
            await self.stores.sandboxes.insert(tx, taken)
            if await self.admission.enter(tx, taken, when_full):
                return taken
            await self.warm_pool.give_back(tx, spare)
            await self.stores.sandboxes.delete(tx, taken.id)
        await self.stores.sandboxes.insert(tx, sandbox)
        await self._make_room(tx, sandbox)
        await self.admission.enter(tx, sandbox, when_full)
        return sandbox

    async def _make_room(self, tx: Transaction, sandbox: Sandbox) -> None:
        """Retire the spares of the warm pool if the sandbox would not fit otherwise."""
        if not await self.admission.has_room(tx, held_of(sandbox)):
            await self.warm_pool.make_room(tx)

    async def _announce(self, tx: Transaction, before: Sandbox) -> Sandbox | None:
        """After the commit, notify listeners of the new target and wake the reconciler."""
        after = await self.stores.announce(tx, before)
        tx.after_commit(lambda: self.reconciler.wake(before.id))
        return after


def _from_spare(sandbox: Sandbox, spare: WarmSandbox) -> Sandbox:
    """Return the new sandbox with the id, handle and endpoints of a claimed spare."""
    return msgspec.structs.replace(
        sandbox,
        id=spare.id,
        phase=Phase.STARTING,
        handle=spare.handle,
        endpoints=spare.endpoints,
    )
