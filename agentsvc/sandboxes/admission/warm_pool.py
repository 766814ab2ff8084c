"""The warm pool: dormant sandboxes started in advance, assigned to a user on demand.

A spec sets the size of its pool. Each spare has a row before it is created; the assignment is
committed before its agent server is initialized, and initialization may be repeated. So the next
server continues correctly after a crash at any point.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

import agentsvc
from agentsvc.agentserver import InitState
from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    OrderRejected,
    Secret,
    Supervisor,
    monotonic,
    new_id,
    new_key,
    now,
    sha256,
)
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Endpoint, Handle, IdleRules, Network, Phase, Report, Spec
from agentsvc.sandboxes.admission.capacity import held_of
from agentsvc.sandboxes.admission.placement import checked
from agentsvc.sandboxes.admission.queue import AdmissionQueue
from agentsvc.sandboxes.admission.warm_pool_table import WarmSandbox, WarmSandboxState
from agentsvc.sandboxes.backend_calls import BackendCalls, find_handle
from agentsvc.sandboxes.identity import IdentityVerifier
from agentsvc.sandboxes.orders import CallbackRules, make_dormant_order, make_identity
from agentsvc.sandboxes.state import AGENT_PORT, Sandbox
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)

_TASK: Final = "warm pool check"
SPARES_SECONDS: Final = 1.0
"""Longest interval between two refills, while spares are being created."""

_CONCURRENCY: Final = 1
"""How many spares of a spec are created at a time; few, because users' sandboxes come first."""
_FIRST_PAUSE_SECONDS: Final = 1.0
_LAST_PAUSE_SECONDS: Final = 300.0
_RESERVED: Final = ("OH_WEBHOOKS", "OH_SESSION_API_KEYS", "SESSION_API_KEY", "OH_SECRET_KEY")
"""Prefixes of the variables that bind an agent server to a user's sandbox."""


class _Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive failures of a spec, and until when the next try is delayed."""

    count: int = 0
    until: float = 0.0


class WarmPool(msgspec.Struct, kw_only=True, eq=False):
    """Creates spares, replaces stale ones, and assigns them to users."""

    stores: SandboxStores
    calls: BackendCalls
    supervisor: Supervisor
    config: SandboxesConfig
    callbacks: CallbackRules
    identity_verifier: IdentityVerifier
    admission: AdmissionQueue
    _failures: dict[str, _Failures] = {}
    _refused: set[str] = set()
    _seen: dict[str, float] = {}
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _may_have_spares: bool = True
    _is_closed: bool = False

    # Assignment

    async def claim(self, tx: Transaction, sandbox: Sandbox) -> WarmSandbox | None:
        """Claim a spare that matches the sandbox, in the caller's transaction; None if none does."""
        if not self._is_configured():
            return None
        spec, backend, wanted = sandbox.spec, sandbox.backend, reusable_part(sandbox.spec)
        for spare in await self.stores.warm_pool.unclaimed(tx):
            if (
                spare.state is WarmSandboxState.READY
                and spare.backend == backend
                and reusable_part(spare.spec) == wanted
                and spare.made_of == self._fingerprint(spare.spec)
                and not self.calls.registry.get(backend).why_no_pool(spec)
            ):
                await self.stores.warm_pool.set_state(tx, spare.id, WarmSandboxState.CLAIMED)
                tx.after_commit(self.refill_soon)
                return spare
        return None

    async def give_back(self, tx: Transaction, spare: WarmSandbox) -> None:
        """Return a spare to the pool that was claimed in the same transaction."""
        await self.stores.warm_pool.set_state(tx, spare.id, WarmSandboxState.READY)

    async def make_room(self, tx: Transaction) -> None:
        """Retire all unclaimed spares, because a user's sandbox has no room."""
        if await self.stores.warm_pool.retire_all(tx):
            tx.after_commit(self.refill_soon)

    async def initialize_spare(self, sandbox: Sandbox, report: Report) -> Report:
        """Initialize the agent server of a claimed spare that runs; does nothing to others.

        Returns the report, with phase STARTING or FAILED until the agent server is initialized.
        """
        spare = await self.stores.warm_pool.find(sandbox.id)
        end = _agent_of(report)
        if spare is None or end is None:
            return report
        agent = self.identity_verifier.connect(sandbox.backend, sandbox.handle, end, spare.key)
        try:
            state = await agent.init_state()
            if state is InitState.DORMANT:
                rules = self.callbacks.seen_at(self.calls.registry.get(sandbox.backend))
                identity = make_identity(sandbox.session_key, rules)
                await agent.initialize(identity, hide=(sandbox.session_key,))
                log.info("warm pool sandbox assigned", extra={"sandbox_id": sandbox.id})
            elif state is InitState.INITIALIZING:
                return _as_starting(report, "its agent server is being initialized")
        except AgentRefused as exc:
            reason = f"its agent server cannot be initialized: {exc.message}"
            return msgspec.structs.replace(report, phase=Phase.FAILED, reason=reason)
        except AgentsvcError as exc:
            return _as_starting(report, exc.message)
        if spare.state is not WarmSandboxState.ASSIGNED:
            await self.stores.db.write(
                lambda tx: self.stores.warm_pool.set_state(tx, spare.id, WarmSandboxState.ASSIGNED)
            )
        return report

    async def is_unassigned(self, sandbox_id: str) -> bool:
        """Return whether a sandbox is a claimed spare whose agent server is not initialized."""
        spare = await self.stores.warm_pool.find(sandbox_id)
        return spare is not None and spare.state is WarmSandboxState.CLAIMED

    # Creation, checks, removal

    def refill_soon(self) -> None:
        """Schedule `refill`."""
        if not self._is_closed:
            self.supervisor.spawn(_TASK, self.refill)

    async def refill(self) -> None:
        """Create missing spares, check present ones, remove stale ones; called periodically."""
        if not self._may_have_spares and not self._is_configured():
            return
        async with self._lock:
            wanted = self._specs_with_pool()
            warm_pool = await self.stores.warm_pool.unclaimed()
            known = {spare.id for spare in warm_pool}
            self._seen = {one: at for one, at in self._seen.items() if one in known}
            for spare in warm_pool:
                await self._check(spare, wanted, [one for one in warm_pool if _is_like(one, spare)])
            for spec in wanted.values():
                await self._fill(spec)
            self._may_have_spares = bool(warm_pool)

    async def drain(self) -> None:
        """Remove all unclaimed spares; called when the server stops."""
        self._is_closed = True
        async with self._lock:
            await self.stores.db.write(self.stores.warm_pool.retire_all)
            for spare in await self.stores.warm_pool.unclaimed():
                await self._remove(spare)

    def _is_configured(self) -> bool:
        return any(spec.pool for spec in self.calls.registry.specs())

    def _specs_with_pool(self) -> dict[str, Spec]:
        """Return the specs with a pool by id; log those that cannot have one."""
        found = {}
        for spec in self.calls.registry.specs():
            if not spec.pool:
                continue
            try:
                found[spec.id] = self._checked(spec)
            except AgentsvcError as exc:
                if spec.id not in self._refused:
                    extra = {"spec": spec.id, "reason": exc.message}
                    log.warning("warm pool disabled for this spec", extra=extra)
                self._refused.add(spec.id)
            else:
                self._refused.discard(spec.id)
        return found

    def _checked(self, spec: Spec) -> Spec:
        """Return `placement.checked` of a spec; also raises OrderRejected if it cannot have a pool."""
        if self.calls.registry.members(spec.backend) != (spec.backend,):
            raise OrderRejected("its backend is a group")
        if spec.network is not Network.OPEN:
            raise OrderRejected("its network access depends on its user")
        if reserved := next((name for name in spec.env if name.startswith(_RESERVED)), None):
            raise OrderRejected(f"its environment sets the reserved variable {reserved}")
        whole = checked(self.calls.registry, spec, self.config)
        if reason := self.calls.registry.get(spec.backend).why_no_pool(spec):
            raise OrderRejected(reason)
        return whole

    def _fingerprint(self, spec: Spec) -> str:
        url = self.calls.registry.get(spec.backend).inside_url(self.callbacks.internal_url)
        whole = msgspec.json.encode([reusable_part(spec), url, *_versions()])
        return sha256(whole.decode())

    async def _fill(self, spec: Spec) -> None:
        failures = self._failures.get(spec.id, _Failures())
        if self._is_closed or failures.until > monotonic():
            return
        spare_id = new_id()

        async def insert(tx: Transaction) -> WarmSandbox | None:
            there = [
                one for one in await self.stores.warm_pool.unclaimed(tx) if one.spec.id == spec.id
            ]
            making = sum(one.state is WarmSandboxState.MAKING for one in there)
            if sum(one.state is not WarmSandboxState.LEAVING for one in there) >= spec.pool:
                return None
            spare = WarmSandbox(
                id=spare_id,
                state=WarmSandboxState.MAKING,
                spec=spec,
                backend=spec.backend,
                made_of=self._fingerprint(spec),
                key=Secret(new_key().reveal()),
                created_at=now(),
            )
            if making >= _CONCURRENCY or not await self.admission.has_room(tx, held_of(spare)):
                return None
            await self.stores.warm_pool.insert(tx, spare)
            return spare

        spare = await self.stores.db.write(insert)
        if spare is not None:
            await self._check(spare, {spec.id: spec}, [spare])

    async def _check(
        self, spare: WarmSandbox, wanted: dict[str, Spec], alike: Sequence[WarmSandbox]
    ) -> None:
        try:
            if spare.state is not WarmSandboxState.LEAVING and self._is_stale(spare, wanted, alike):
                if not await self.stores.db.write(
                    lambda tx: self.stores.warm_pool.retire(tx, spare.id)
                ):
                    return
                spare = msgspec.structs.replace(spare, state=WarmSandboxState.LEAVING)
            if spare.state is WarmSandboxState.LEAVING:
                await self._remove(spare)
            else:
                await self._advance(spare)
        except AgentsvcError as exc:
            # A spare that is unreachable now is checked again.
            extra = {"sandbox_id": spare.id, "reason": exc.log_text}
            log.info("warm pool sandbox cannot be checked", extra=extra)
            if not exc.may_pass or (
                spare.state is WarmSandboxState.MAKING and self._is_late(spare)
            ):
                await self._discard(spare, exc.message)

    def _is_stale(
        self, spare: WarmSandbox, wanted: dict[str, Spec], alike: Sequence[WarmSandbox]
    ) -> bool:
        spec = wanted.get(spare.spec.id)
        if spec is None or self._fingerprint(spec) != spare.made_of:
            return True
        oldest = timedelta(seconds=self.config.pool_age_seconds)
        if spare.state is WarmSandboxState.READY and now() - spare.created_at > oldest:
            return True
        return alike.index(spare) >= spec.pool

    def _is_late(self, spare: WarmSandbox) -> bool:
        return now() - spare.created_at > timedelta(seconds=self.config.start_seconds)

    async def _advance(self, spare: WarmSandbox) -> None:
        """Continue creating a spare, or periodically check one that is ready."""
        if self._seen.get(spare.id, -math.inf) > monotonic() - self.config.sweep_seconds:
            return
        async with self.calls.to(spare.backend) as backend:
            handle = spare.handle
            if spare.state is WarmSandboxState.MAKING:
                rules = self.callbacks.seen_at(backend)
                order = make_dormant_order(spare.id, spare.spec, spare.key, rules)
                save = self.stores.warm_pool.set_handle
                handle = await backend.create(
                    order, lambda handle: self.stores.db.write(lambda tx: save(tx, handle))
                )
                made = handle
                await self.stores.db.write(lambda tx: save(tx, made))
            report = await backend.inspect(handle) if handle else Report(phase=Phase.GONE)
        if report.phase is Phase.RUNNING:
            await self._mark_ready(spare, handle, report)
        elif report.phase is not Phase.STARTING or self._is_late(spare):
            await self._discard(spare, report.reason or str(report.phase))

    async def _mark_ready(self, spare: WarmSandbox, handle: Handle | None, report: Report) -> None:
        if spare.state is WarmSandboxState.READY:
            self._seen[spare.id] = monotonic()
            return
        end = _agent_of(report)
        if end is None:
            await self._discard(spare, "it has no agent server")
            return
        agent = self.identity_verifier.connect(spare.backend, handle, end, spare.key)
        if await agent.init_state() is not InitState.DORMANT:
            await self._discard(spare, "its agent server does not wait for initialization")
            return
        self._failures.pop(spare.spec.id, None)
        await self.stores.db.write(
            lambda tx: self.stores.warm_pool.set_ready(tx, spare.id, report.endpoints)
        )
        log.info("warm pool sandbox ready", extra={"sandbox_id": spare.id, "spec": spare.spec.id})
        self.refill_soon()

    async def _discard(self, spare: WarmSandbox, reason: str) -> None:
        count = self._failures.get(spare.spec.id, _Failures()).count + 1
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(count, 20), _LAST_PAUSE_SECONDS)
        self._failures[spare.spec.id] = _Failures(count=count, until=monotonic() + pause)
        extra = {"sandbox_id": spare.id, "spec": spare.spec.id, "reason": reason}
        log.warning("warm pool sandbox discarded", extra=extra)
        await self.stores.db.write(lambda tx: self.stores.warm_pool.retire(tx, spare.id))

    async def _remove(self, spare: WarmSandbox) -> None:
        try:
            async with self.calls.to(spare.backend) as backend:
                handle = spare.handle or await find_handle(backend, spare.id)
                if handle is not None:
                    await backend.delete(handle)
        except AgentsvcError as exc:
            extra = {"sandbox_id": spare.id, "reason": exc.log_text}
            log.warning("warm pool sandbox not removed, will be retried", extra=extra)
            return
        await self.stores.db.write(lambda tx: self.stores.warm_pool.delete(tx, spare.id))


def _agent_of(report: Report) -> Endpoint | None:
    return next((end for end in report.endpoints if end.name == AGENT_PORT), None)


def reusable_part(spec: Spec) -> Spec:
    """Return a spec without the fields that do not matter for reusing a sandbox."""
    return msgspec.structs.replace(
        spec,
        idle=IdleRules(),
        pool=0,
        reaches=(),
        models=(),
        backend="",
        withholds_secrets=False,
    )


def _versions() -> list[str]:
    found = [agentsvc.__version__]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found.append(importlib.metadata.version("openhands-agent-server"))
    return found


def _is_like(one: WarmSandbox, other: WarmSandbox) -> bool:
    return one.spec.id == other.spec.id and one.state is not WarmSandboxState.LEAVING


def _as_starting(report: Report, reason: str) -> Report:
    return msgspec.structs.replace(report, phase=Phase.STARTING, reason=reason)
