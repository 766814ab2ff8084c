"""The sandbox service: stores the target of each sandbox; background tasks reconcile it.

Requests only change targets. The reconciler takes one sandbox to its target, step by step; the
periodic sweep checks all sandboxes and is the only code that detects orphans.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from agentsvc.accounts import is_admin
from agentsvc.agentserver import AgentClient, AgentServer
from agentsvc.base import (
    Conflict,
    Gone,
    NotAuthenticated,
    NotFound,
    SandboxNotUsable,
    Supervisor,
    monotonic,
    new_id,
    new_key,
    now,
    sha256,
    to_stored,
)
from agentsvc.config import SandboxesConfig
from agentsvc.domain import WhenFull
from agentsvc.plugin import Capability, Phase, Spec
from agentsvc.sandboxes.admission.capacity import held_of
from agentsvc.sandboxes.admission.placement import choose, find_fitting
from agentsvc.sandboxes.admission.queue import AdmissionQueue, limits_of
from agentsvc.sandboxes.admission.slots import StartSlots
from agentsvc.sandboxes.admission.table import Removal
from agentsvc.sandboxes.admission.warm_pool import WarmPool
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.change_listeners import OnChange
from agentsvc.sandboxes.checkpoints import Checkpoints
from agentsvc.sandboxes.identity import IdentityVerifier
from agentsvc.sandboxes.idle import IdleSandboxes
from agentsvc.sandboxes.images import Images
from agentsvc.sandboxes.last_used import ActivityTracker
from agentsvc.sandboxes.layers import Layers
from agentsvc.sandboxes.operations import is_pausable, require
from agentsvc.sandboxes.orders import CallbackRules, with_local_hosts, with_models
from agentsvc.sandboxes.orphan_collector import OrphanCollector
from agentsvc.sandboxes.priority import PriorityManager
from agentsvc.sandboxes.reconciler import LOG_LINES, Reconciler
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.runtime_clients import ClientOrder
from agentsvc.sandboxes.state import Sandbox, Target, failure_of
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.sandboxes.targets import Targets
from agentsvc.sandboxes.usage_meter import Meter
from agentsvc.storage import Queryable, SqlPage, Transaction, cut, note_effect

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Sandboxes:
    """Starts, pauses, resumes, deletes and finds sandboxes."""

    identity_verifier: IdentityVerifier
    """Verifies that connections reach the intended sandbox."""
    admission: AdmissionQueue
    """Decides which sandboxes may run, and queues the others."""
    slots: StartSlots
    """Limits how many conversations start on this machine at a time."""
    warm_pool: WarmPool
    """Sandboxes started before a user asks for them."""
    usage: ActivityTracker
    """When each sandbox was last used."""
    meter: Meter
    """The last measured resource usage of each sandbox."""
    layers: Layers
    """Stored copies of files that new sandboxes begin with."""
    images: Images
    """Images that replace the image of a spec."""
    checkpoints: Checkpoints
    """Saved files that a sandbox can be rolled back to."""
    idle: IdleSandboxes
    """Finds and culls unused sandboxes."""

    def __init__(
        self,
        stores: SandboxStores,
        *,
        registry: BackendRegistry,
        supervisor: Supervisor,
        config: SandboxesConfig,
        callbacks: CallbackRules,
        agents: AgentClient,
        slots: StartSlots,
    ) -> None:
        self._stores = stores
        self._db, self._table, self._uses = stores.db, stores.sandboxes, stores.uses
        self._callbacks = callbacks
        self._registry = registry
        self._config = config
        self._supervisor = supervisor
        self._agents = agents
        self._calls = calls = BackendCalls(registry, config.call_seconds)
        self.identity_verifier = IdentityVerifier(calls, self._table, agents)
        self.usage, self.slots = ActivityTracker(), slots
        self.admission = AdmissionQueue(
            stores=stores,
            supervisor=supervisor,
            config=config,
            limits=limits_of(config, registry.rooms()),
            usage=self.usage,
            let_in=self._let_in,
        )
        self.warm_pool = WarmPool(
            stores=stores,
            calls=calls,
            supervisor=supervisor,
            config=config,
            callbacks=callbacks,
            identity_verifier=self.identity_verifier,
            admission=self.admission,
        )
        self.meter, self.layers = Meter(calls), Layers(calls, self._table)
        self.images = Images(calls, self._table)
        self.checkpoints = Checkpoints(calls, config)
        self._priorities = PriorityManager(calls, slots)
        self._reconciler = reconciler = Reconciler(
            stores=stores,
            calls=calls,
            supervisor=supervisor,
            config=config,
            callbacks=callbacks,
            warm_pool=self.warm_pool,
            slots=slots,
        )
        self._targets = Targets(
            stores=stores,
            usage=self.usage,
            admission=self.admission,
            warm_pool=self.warm_pool,
            reconciler=reconciler,
        )
        self.idle = IdleSandboxes(stores, registry, self.usage, self._targets)
        self._orphans = OrphanCollector(stores, calls, reconciler, config)

    # Lookups

    def specs(self) -> list[Spec]:
        """Return the specs, default first."""
        return self._registry.specs()

    def get_spec(self, spec_id: str | None) -> Spec:
        """Return the named spec, or the default spec; raises NotFound."""
        specs = self.specs()
        for spec in specs:
            if spec_id is None or spec.id == spec_id:
                return spec
        raise NotFound(
            f"Sandbox spec not found: {spec_id}" if spec_id else "No sandbox spec exists"
        )

    def runs_here(self, what: Sandbox | Spec) -> bool:
        """Return whether a sandbox, or sandboxes of a spec, may run on this machine."""
        return self._registry.runs_here(what.backend)

    async def find_any(self, sandbox_id: str, reader: Queryable | None = None) -> Sandbox | None:
        """Return a sandbox regardless of its owner; for internal use only."""
        return await self._table.find(sandbox_id, reader)

    async def find_many(self, user_id: str, ids: Sequence[str]) -> list[Sandbox | None]:
        """Return a user's sandboxes in the order of the ids, None for each unknown one."""
        found = await self._table.find_of_user(user_id, list(ids))
        return [found.get(sandbox_id) for sandbox_id in ids]

    async def any_exist(self) -> bool:
        """Return whether any sandbox exists."""
        return bool(await self._table.backends())

    async def get(self, user_id: str, sandbox_id: str) -> Sandbox:
        """Return a user's sandbox; raises NotFound."""
        [sandbox] = await self.find_many(user_id, [sandbox_id])
        if sandbox is None:
            raise NotFound
        return sandbox

    async def search(
        self, user_id: str, *, page_id: str | None, limit: int
    ) -> tuple[list[Sandbox], str | None]:
        """Return a page of a user's sandboxes, newest first, and the id of the next page."""
        found = await self._table.search(user_id, SqlPage.newest_first(page_id), limit + 1)
        return cut(found, limit, lambda one: (to_stored(one.created_at), one.id))

    async def find_running(self, user_id: str) -> list[Sandbox]:
        """Return a user's running sandboxes whose target is RUNNING, oldest first."""
        return await self._table.running_of_user(user_id)

    async def identify(self, session_key: str) -> Sandbox:
        """Return the sandbox of a session key if it runs or starts; raises NotAuthenticated."""
        sandbox = await self.find_by_key(session_key)
        if sandbox is None:
            raise NotAuthenticated("Invalid session API key")
        if not sandbox.may_call:
            raise NotAuthenticated("Invalid session API key", detail="its sandbox does not run")
        return sandbox

    async def find_by_key(self, session_key: str) -> Sandbox | None:
        """Return the sandbox of a session key in any state, or None.

        Sandboxes that are being deleted are not returned.
        """
        sandbox = await self._table.find_by_key_hash(sha256(session_key))
        if sandbox is None or not secrets.compare_digest(
            sandbox.session_key.reveal().encode(), session_key.encode()
        ):
            return None
        return None if sandbox.target is Target.DELETED else sandbox

    def agent_of(self, sandbox: Sandbox | None) -> AgentServer | None:
        """Return a client of the sandbox's agent server, or None unless the sandbox runs."""
        if sandbox is None or sandbox.agent_url is None:
            return None
        return self._agents.at(sandbox.agent_url, sandbox.session_key)

    async def find_agent(self, sandbox_id: str | None) -> AgentServer | None:
        """Return `agent_of` a sandbox regardless of its owner."""
        return self.agent_of(await self.find_any(sandbox_id)) if sandbox_id else None

    def on_change(self, listener: OnChange) -> None:
        """Call `listener(before, after)` after each committed change; after is None once deleted.

        For a new sandbox both are the same.
        """
        self._stores.changes.listen(listener)

    # Targets

    async def start(
        self,
        user_id: str,
        spec: Spec,
        *,
        tx: Transaction | None = None,
        when_full: WhenFull | None = None,
        is_plain: bool = True,
        start_id: str | None = None,
    ) -> Sandbox:
        """Order a new sandbox; when this returns it is stored, and starts or waits in the queue.

        Unless `is_plain`, the sandbox has environment variables of its own and is not taken from the
        warm pool. With `start_id`, the id of a start that has no slot yet, the sandbox is not created
        before `make_now`; see `defer_creation`.

        Raises SandboxLimitReached if capacity is exhausted and the sandbox may not wait.
        """
        settings = await self._stores.settings.find(user_id)
        of_admin = await is_admin(self._db, user_id)
        spec = with_models(spec, settings, self._stores.model_hosts, of_admin=of_admin)
        spec = with_local_hosts(spec, (*self._callbacks.git_hosts, *self._stores.model_hosts))
        fitting = find_fitting(self._registry, spec, self._config)
        moment = now()
        ordered = Sandbox(
            id=new_id(),
            user_id=user_id,
            spec_id=spec.id,
            spec=fitting[0],
            backend=fitting[0].backend,
            target=Target.RUNNING,
            session_key=new_key(),
            ready_by=self._reconciler.deadline(),
            created_at=moment,
            updated_at=moment,
        )

        async def insert(tx: Transaction) -> Sandbox:
            placed = await self._placed(tx, ordered, fitting)
            is_usual = is_plain and not (spec.layer or spec.copy_of or spec.base)
            spare = await self.warm_pool.claim(tx, placed) if is_usual else None
            stored = await self._targets.enter(tx, placed, spare, when_full)
            if start_id is not None:
                tx.after_commit(lambda: self.defer_creation(start_id, stored))
            return stored

        async def body(tx: Transaction) -> Sandbox:
            stored = await insert(tx)
            await note_effect(tx, stored)
            return stored

        return await (insert(tx) if tx else self._db.write(body))

    async def _placed(self, tx: Transaction, sandbox: Sandbox, fitting: Sequence[Spec]) -> Sandbox:
        if len(fitting) == 1:
            return sandbox
        held, wanted = await self._uses.held(tx), held_of(sandbox).load
        spec = choose(fitting, limits=self.admission.limits, held=held, wanted=wanted)
        return msgspec.structs.replace(sandbox, backend=spec.backend, spec=spec)

    async def start_for(
        self,
        user_id: str,
        spec: Spec,
        order: ClientOrder | None,
        *,
        when_full: WhenFull | None = None,
    ) -> Sandbox:
        """Order a sandbox under the client's own id, if any; return the existing one if it is known.

        Raises Conflict while an earlier sandbox with this id is being removed.
        """
        if order is None:
            return await self.start(user_id, spec, when_full=when_full)

        async def body(tx: Transaction) -> Sandbox:
            known = await self._stores.clients.find(user_id, order.id, tx)
            if known is None:
                sandbox = await self.start(
                    user_id, spec, when_full=when_full, tx=tx, is_plain=not order.env
                )
                await self._stores.clients.insert(tx, user_id, sandbox.id, order)
                made = msgspec.structs.replace(sandbox, client_id=order.id)
                await note_effect(tx, made)
                return made
            found = await self._table.find(known, tx)
            if found is None or found.target is Target.DELETED:
                raise Conflict("The sandbox that had this id is still being removed")
            return found

        return await self._db.write(body)

    async def find_of_clients(self, user_id: str, client_ids: Sequence[str]) -> list[Sandbox]:
        """Return the user's sandboxes with these client ids, in the order of the ids."""
        found = await self._table.find_of_clients(user_id, client_ids)
        by_id = {sandbox.client_id: sandbox for sandbox in found}
        return [by_id[one] for one in dict.fromkeys(client_ids) if one in by_id]

    async def all_of_clients(self, user_id: str) -> list[Sandbox]:
        """Return every sandbox of a user that has a client id."""
        found = await self.find_many(user_id, await self._stores.clients.ids(user_id))
        return [sandbox for sandbox in found if sandbox is not None]

    async def pause(self, user_id: str, sandbox_id: str) -> None:
        """Pause a sandbox; wait until it is paused, its backend fails, or `call_seconds` pass.

        Idempotent. Raises NotFound, Conflict if it is being deleted or is queued before its creation,
        Unsupported if its backend cannot pause, SandboxNotUsable if it has failed, Gone if it is gone.
        """
        sandbox = await self._restable(user_id, sandbox_id, Capability.PAUSE)
        target = Target.STOPPED if sandbox.target is Target.STOPPED else Target.PAUSED
        await self._rest(sandbox, target)

    async def stop(self, user_id: str, sandbox_id: str, *, until_needed: bool = False) -> None:
        """Stop a sandbox, keeping only its files; otherwise like `pause`.

        With `until_needed` the next message resumes it, unless its user had paused or stopped it
        before.
        """
        sandbox = await self._restable(user_id, sandbox_id, Capability.STOP)
        await self._rest(sandbox, Target.STOPPED, until_needed=until_needed)

    async def resume(
        self, user_id: str, sandbox_id: str, *, when_full: WhenFull | None = None
    ) -> None:
        """Resume a sandbox and wait, like `pause`, until the backend has resumed it.

        A failed sandbox is restarted on its files if its backend can restart; this does not wait.
        Idempotent. Raises NotFound, Gone, Conflict and SandboxNotUsable like `pause`, and
        SandboxLimitReached if capacity is exhausted and the sandbox may not wait.
        """
        sandbox = await self._usable(user_id, sandbox_id)
        if sandbox.phase is Phase.FAILED:
            await self._restart(sandbox, when_full)
            return
        wanted = await self._targets.set_known(sandbox_id, Target.RUNNING, when_full)
        if await self._uses.is_waiting(sandbox_id):
            return
        await self._wait(wanted, lambda seen: seen is None or seen.phase is not Phase.PAUSED)

    async def resume_named(
        self, tx: Transaction, user_id: str, sandbox_id: str, when_full: WhenFull | None
    ) -> None:
        """Resume a paused sandbox in the caller's transaction.

        Does nothing if the sandbox is in another state or is not the user's. Raises
        SandboxLimitReached.
        """
        found = await self._table.find(sandbox_id, tx)
        if found is not None and found.user_id == user_id and found.phase is Phase.PAUSED:
            await self._targets.set(tx, sandbox_id, Target.RUNNING, when_full)

    async def delete(self, user_id: str, sandbox_id: str) -> None:
        """Delete a sandbox with all its files; raises NotFound.

        It is hidden from its user at once. This waits like `pause`; the removal is retried until
        it succeeds.
        """
        await self.get(user_id, sandbox_id)
        wanted = await self._targets.set_now(sandbox_id, Target.DELETED)
        if wanted is not None:
            await self._wait(wanted, lambda seen: seen is None)

    def defer_creation(self, start_id: str, sandbox: Sandbox) -> None:
        """Defer creating a sandbox on this machine until `make_now`, or until the start has ended."""
        if self.runs_here(sandbox):
            self.slots.defer(start_id, sandbox.id)

    async def make_now(self, sandbox_id: str) -> None:
        """Create a deferred sandbox; its start deadline begins now.

        Does nothing to a sandbox that exists already.
        """
        self.slots.allow(sandbox_id)

        async def body(tx: Transaction) -> None:
            found = await self._table.find(sandbox_id, tx)
            if found is not None and found.handle is None and found.target is Target.RUNNING:
                await self._targets.let_in(tx, sandbox_id)

        await self._db.write(body)

    async def yield_to_starts(self, begun: Sandbox | None = None) -> None:
        """Lower the priority of started sandboxes on this machine while others start."""
        if begun is not None and self.runs_here(begun):
            self._priorities.add(begun)
        await self._priorities.apply()

    async def release(self, tx: Transaction, sandbox_id: str) -> None:
        """Set the target of a sandbox to DELETED in the caller's transaction, for any owner.

        Does nothing if the sandbox is unknown or being removed.
        """
        await self._targets.set(tx, sandbox_id, Target.DELETED)

    async def remove_ahead(self, sandbox_id: str) -> None:
        """Delete a sandbox at its backend when `release` cannot be stored because the disk is full.

        Does nothing if the sandbox is unknown or was never created. Raises the backend's errors.
        """
        found = await self._table.find(sandbox_id)
        if found is not None and found.handle is not None:
            async with self._calls.to(found.backend) as backend:
                await backend.delete(found.handle)

    async def wait_for(
        self,
        sandbox_id: str,
        is_enough: Callable[[Sandbox | None], bool],
        *,
        time_limit: float,
    ) -> Sandbox | None:
        """Return the sandbox as soon as `is_enough` accepts it, or as it is at the time limit."""
        return await self._stores.changes.wait_for(
            sandbox_id, lambda: self._table.find(sandbox_id), is_enough, time_limit=time_limit
        )

    def inside_url(self, sandbox: Sandbox) -> str:
        """Return the URL at which a sandbox reaches this server, without a trailing slash."""
        return self._registry.get(sandbox.backend).inside_url(self._callbacks.internal_url)

    async def log_tail(self, sandbox: Sandbox) -> str:
        """Return the last log lines of a sandbox, or an empty string if they cannot be read."""
        return await self._calls.log_tail(sandbox.backend, sandbox.handle, LOG_LINES)

    async def read_output(self, sandbox: Sandbox, *, lines: int) -> list[str]:
        """Return the last log lines of a sandbox, oldest first.

        Raises NotFound if it was never created, Unsupported, BackendUnavailable or BackendBroken.
        """
        if sandbox.handle is None:
            raise NotFound("The sandbox was never created, so it has no log")
        return await self._calls.read_log(sandbox.backend, sandbox.handle, lines)

    # Background work

    async def failed_removals(self, limit: int) -> list[Removal]:
        """Return the removals that have failed so far, orphans included."""
        return [*await self._uses.failed_removals(limit), *self._orphans.failed_removals()][:limit]

    def unreachable_backends(self) -> frozenset[str]:
        """Return the backends that could not be scanned in the last sweep."""
        return self._orphans.unreachable()

    async def recover(self, waiting: Mapping[str, str] = _NONE) -> None:
        """Sweep once and restart all start deadlines; called before the server listens.

        Downtime of the server so does not count towards a start. `waiting` maps the ids of starts
        that wait for a slot to their sandboxes, whose creation is deferred until then.
        """
        for start_id, sandbox_id in waiting.items():
            if (found := await self._table.find(sandbox_id)) is not None:
                self.defer_creation(start_id, found)
        await self._db.write(lambda tx: self._table.set_deadlines(tx, self._reconciler.deadline()))
        await self._orphans.sweep()

    async def sweep(self) -> None:
        """Check every sandbox and remove orphans; skip backends that are unreachable."""
        await self._orphans.sweep()
        self._supervisor.spawn("measuring sandboxes", self._measure)

    async def stop_all(self, target: Target) -> None:
        """Pause or delete every sandbox at shutdown, as configured."""
        changed: list[str] = []
        for sandbox in await self._table.all():
            if target is Target.DELETED or is_pausable(self._registry, sandbox):
                await self._targets.set_now(sandbox.id, target)
                changed.append(sandbox.id)
        end = monotonic() + self._config.call_seconds
        for sandbox_id in changed:
            time_left = max(0.0, end - monotonic())
            await self.wait_for(sandbox_id, _is_settled, time_limit=time_left)

    async def wait_until_settled(self, sandbox_id: str) -> None:
        """Wait until a sandbox has reached its target, for at most `call_seconds`."""
        await self.wait_for(sandbox_id, _is_settled, time_limit=self._config.call_seconds)

    async def _measure(self) -> None:
        await self.meter.measure(await self._table.summaries())

    async def _wait(self, wanted: Sandbox, is_done: Callable[[Sandbox | None], bool]) -> None:
        def is_enough(seen: Sandbox | None) -> bool:
            # A new reason means that the backend failed; the reconciler retries later.
            return is_done(seen) or (seen is not None and seen.reason not in ("", wanted.reason))

        await self.wait_for(wanted.id, is_enough, time_limit=self._config.call_seconds)

    async def _restart(self, sandbox: Sandbox, when_full: WhenFull | None) -> None:
        if Capability.RESTART not in self._registry.get(sandbox.backend).capabilities:
            raise SandboxNotUsable(
                f"The sandbox has failed and cannot be started again: {sandbox.reason}"
            )
        if sandbox.handle is None:
            raise SandboxNotUsable(f"The sandbox was never created: {sandbox.reason}")
        await self._targets.set_known(sandbox.id, Target.RESTARTED, when_full)

    async def _rest(self, sandbox: Sandbox, target: Target, *, until_needed: bool = False) -> None:
        wanted = await self._targets.set_known(sandbox.id, target, until_needed=until_needed)
        await self._wait(wanted, _is_settled)

    async def _restable(self, user_id: str, sandbox_id: str, how: Capability) -> Sandbox:
        sandbox = await self._usable(user_id, sandbox_id)
        if sandbox.phase is Phase.FAILED:
            raise failure_of(sandbox)
        require(self._registry, sandbox, how)
        if sandbox.phase is None and await self._uses.is_waiting(sandbox_id):
            raise Conflict("The sandbox is queued and not created yet; it can be deleted")
        return sandbox

    async def _usable(self, user_id: str, sandbox_id: str) -> Sandbox:
        sandbox = await self.get(user_id, sandbox_id)
        if sandbox.phase is Phase.GONE:
            raise Gone("The sandbox does not exist any more; its stored events can still be read")
        return sandbox

    async def _let_in(self, tx: Transaction, sandbox_id: str) -> None:
        await self._targets.let_in(tx, sandbox_id)


def _is_settled(sandbox: Sandbox | None) -> bool:
    return sandbox is None or sandbox.is_settled
