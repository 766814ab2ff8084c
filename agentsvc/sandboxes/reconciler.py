"""The reconciler: takes each sandbox to its target, step by step, in background tasks.

`next_action` decides the step; this module executes it and stores the backend's report. A sandbox
has at most one task, so its backend gets one changing call for it at a time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

import msgspec

from agentsvc.base import (
    AgentsvcError,
    BackendBroken,
    Conflict,
    Secret,
    Supervisor,
    now,
    sha256,
    steady_now,
    wait_within,
)
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import (
    Capability,
    Cause,
    Handle,
    Isolation,
    Order,
    PausedAs,
    Phase,
    Report,
    StillFetching,
)
from agentsvc.sandboxes.admission.slots import StartSlots
from agentsvc.sandboxes.admission.warm_pool import WarmPool
from agentsvc.sandboxes.backend_calls import BackendCalls, find_handle
from agentsvc.sandboxes.isolation import as_now, with_floor
from agentsvc.sandboxes.orders import CallbackRules, make_order
from agentsvc.sandboxes.plugin_loader import Backend
from agentsvc.sandboxes.state import Action, Sandbox, Target, is_settled, next_action
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)

LOG_LINES: Final = 15
"""How many log lines of a sandbox are appended to the reason of its failure."""

_FIRST_POLL_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 1.0
_FIRST_RETRY_SECONDS: Final = 0.5
_LAST_RETRY_SECONDS: Final = 30.0
_REMOVAL_RETRY_SECONDS: Final = 300.0
_MAY_HAVE_ENDED: Final = (
    Action.PAUSE,
    Action.RECLAIM,
    Action.HIBERNATE,
    Action.STOP,
    Action.RESUME,
)
"""Actions that a backend rejects with Conflict if the sandbox has ended meanwhile."""
_PAUSED_AS: Final = {
    Action.STOP: PausedAs.STOPPED,
    Action.RECLAIM: PausedAs.RECLAIMED,
    Action.HIBERNATE: PausedAs.ON_DISK,
}


class _Progress(Enum):
    """The outcome of a step."""

    SETTLED = auto()
    MOVING = auto()
    BLOCKED = auto()


class Reconciler(msgspec.Struct, kw_only=True, eq=False):
    """Takes sandboxes from their last observed state to their target."""

    stores: SandboxStores
    calls: BackendCalls
    supervisor: Supervisor
    config: SandboxesConfig
    callbacks: CallbackRules
    warm_pool: WarmPool
    slots: StartSlots
    _wakes: dict[str, asyncio.Event] = {}
    _reclaims: dict[str, asyncio.Timeout] = {}
    _unseen: set[str] = set()
    _has_seen: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def deadline(self) -> datetime:
        """Return the deadline of a start that begins now."""
        return steady_now() + timedelta(seconds=self.config.start_seconds)

    def wake(self, sandbox_id: str) -> None:
        """Start the task that takes a sandbox to its target, or wake it from its pause."""
        self._unseen.add(sandbox_id)
        self._wakes.setdefault(sandbox_id, asyncio.Event()).set()
        if (reclaim := self._reclaims.pop(sandbox_id, None)) is not None:
            # The sandbox may have to resume; otherwise the next reclaim has little left to do.
            reclaim.reschedule(0)
        self.supervisor.spawn(f"sandbox {sandbox_id}", lambda: self._drive(sandbox_id))

    async def catch_up(self, time_limit: float) -> bool:
        """Wait until each woken sandbox has had one step; return False on timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_limit):
                while self._unseen:
                    self._has_seen.clear()
                    await self._has_seen.wait()
        return not self._unseen

    async def _drive(self, sandbox_id: str) -> None:
        woken = self._wakes[sandbox_id]
        look, retry = _FIRST_POLL_SECONDS, _FIRST_RETRY_SECONDS
        try:
            while True:
                woken.clear()
                progress = await self._step(sandbox_id)
                self._mark_seen(sandbox_id)
                if progress is _Progress.SETTLED and not woken.is_set():
                    return
                if progress is _Progress.BLOCKED:
                    pause, retry = retry, min(retry * 2, _LAST_RETRY_SECONDS)
                else:
                    pause, look = look, min(look * 1.5, _LAST_POLL_SECONDS)
                    retry = _FIRST_RETRY_SECONDS
                await wait_within(woken, pause)
        finally:
            # Nothing awaits between here and the end of the task, so no wake falls in between.
            del self._wakes[sandbox_id]
            self._mark_seen(sandbox_id)

    def _mark_seen(self, sandbox_id: str) -> None:
        self._unseen.discard(sandbox_id)
        self._has_seen.set()

    async def _step(self, sandbox_id: str) -> _Progress:
        sandbox = await self.stores.sandboxes.find(sandbox_id)
        if sandbox is None:
            return _Progress.SETTLED
        action = next_action(
            sandbox.target,
            sandbox.phase,
            has_handle=sandbox.handle is not None,
            paused_as=sandbox.paused_as,
        )
        rest = await self._outcome_without_step(sandbox, action)
        if rest is not None:
            return rest
        try:
            async with self.calls.to(sandbox.backend) as backend:
                if action in (Action.DELETE, Action.SCAN_AND_CLOSE):
                    await self._remove(backend, sandbox)
                    return _Progress.SETTLED
                report = await self._run_action(action, backend, sandbox)
            return await self._store_report(sandbox, report, action, backend.least_isolation)
        except AgentsvcError as exc:
            return await self._fail(sandbox, action, exc)

    async def _outcome_without_step(self, sandbox: Sandbox, action: Action) -> _Progress | None:
        """Return the outcome if no step is due now, or None if one is."""
        if sandbox.target is Target.DELETED:
            due_at, moment = await self.stores.uses.find_removal_due(sandbox.id), now()
            # A later time was stored while the clock was wrong.
            latest = moment + timedelta(seconds=_REMOVAL_RETRY_SECONDS)
            return _Progress.BLOCKED if due_at and moment < due_at <= latest else None
        # A sandbox that runs already does not wait for capacity.
        is_content = action is Action.LOOK and sandbox.phase is Phase.RUNNING
        if action is Action.REST or (
            not is_content and await self.stores.uses.is_waiting(sandbox.id)
        ):
            return _Progress.SETTLED
        # It is created when its start gets a slot.
        is_deferred = sandbox.handle is None and self.slots.is_deferred(sandbox.id)
        return _Progress.SETTLED if is_deferred else None

    async def _fail(self, sandbox: Sandbox, action: Action, exc: AgentsvcError) -> _Progress:
        if sandbox.target is Target.DELETED:
            return await self._put_off_removal(sandbox, exc)
        if isinstance(exc, StillFetching):
            return await self._wait_for_fetch(sandbox, exc.message)
        if not exc.may_pass:
            is_final = action in (Action.CREATE, Action.RESTART, Action.RESUME)
            await self._note_failure(
                sandbox, exc, "sandbox step failed", is_final=is_final, action=str(action)
            )
            return _Progress.SETTLED
        is_first_start = sandbox.phase is None or sandbox.target is Target.RESTARTED
        is_over = is_first_start and sandbox.ready_by < steady_now()
        event = (
            "sandbox cannot be started" if is_over else "backend unavailable, sandbox state kept"
        )
        await self._note_failure(sandbox, exc, event, is_final=is_over)
        # A sandbox last observed at its target waits for the sweep; others are retried soon.
        return _Progress.SETTLED if is_over or sandbox.is_settled else _Progress.BLOCKED

    async def _run_action(self, action: Action, backend: Backend, sandbox: Sandbox) -> Report:
        try:
            handle = await self._call_backend(action, backend, sandbox)
        except Conflict:
            if sandbox.handle is None or action not in _MAY_HAVE_ENDED:
                raise
            # The sandbox may have ended since the last report; then return the new one.
            report = await backend.inspect(sandbox.handle)
            if not _has_ended(sandbox, report):
                raise
            return report
        return await backend.inspect(handle)

    async def _call_backend(self, action: Action, backend: Backend, sandbox: Sandbox) -> Handle:
        handle = sandbox.handle
        if handle is None or action is Action.CREATE:
            log.info("creating sandbox", extra={"sandbox_id": sandbox.id})
            order = await self._order(backend, sandbox)
            return await self._started(await backend.create(order, self._save_handle), sandbox)
        if action is Action.RESTART or (action is Action.RESUME and _needs_start(backend, sandbox)):
            log.info("restarting sandbox", extra={"sandbox_id": sandbox.id})
            order = await self._order(backend, sandbox)
            handle = await backend.restart(order, handle, self._save_handle)
            return await self._started(handle, sandbox)
        if action is Action.PAUSE:
            await backend.pause(handle)
        elif action is Action.RECLAIM:
            await self._reclaim(backend, handle)
        elif action is Action.HIBERNATE:
            await backend.hibernate(handle)
        elif action is Action.STOP:
            await backend.stop(handle)
        elif action is Action.RESUME:
            handle = await backend.resume(handle)
            await self._save_handle(handle)
        return handle

    async def _reclaim(self, backend: Backend, handle: Handle) -> None:
        """Reclaim memory until the backend has finished, or until `wake` interrupts it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as until_woken:
                self._reclaims[handle.sandbox_id] = until_woken
                try:
                    await backend.reclaim(handle)
                finally:
                    self._reclaims.pop(handle.sandbox_id, None)

    async def _order(self, backend: Backend, sandbox: Sandbox) -> Order:
        rules = self.callbacks.seen_at(backend)
        spec = as_now(sandbox.spec, backend, self.config)
        today = msgspec.structs.replace(sandbox, spec=spec)
        return make_order(today, rules, await self.stores.clients.env(sandbox.id))

    async def _started(self, handle: Handle, sandbox: Sandbox) -> Handle:
        await self._save_handle(handle)
        await self._write(
            sandbox, lambda tx: self.stores.sandboxes.set_started(tx, sandbox.id, self.deadline())
        )
        return handle

    async def _remove(self, backend: Backend, sandbox: Sandbox) -> None:
        handle = sandbox.handle
        if handle is None:
            handle = await find_handle(backend, sandbox.id)
        if handle is not None:
            await backend.delete(handle)

        async def close(tx: Transaction) -> None:
            await self.stores.sandboxes.delete(tx, sandbox.id)
            await self.stores.announce(tx, sandbox)

        await self.stores.db.write(close)
        log.info("sandbox deleted", extra={"sandbox_id": sandbox.id})

    async def _store_report(
        self, sandbox: Sandbox, report: Report, action: Action, least: Isolation
    ) -> _Progress:
        if report.session_key is not None and report.session_key != sandbox.session_key:
            await self._adopt_key(sandbox, report.session_key)
        if report.phase is Phase.RUNNING and sandbox.phase is not Phase.RUNNING:
            report = await self.warm_pool.initialize_spare(sandbox, report)
        # A running sandbox may answer late when the machine is busy, and a paused one was resumed
        # only just now, however long its backend was unavailable.
        is_start = sandbox.phase in (None, Phase.STARTING, Phase.FAILED)
        if is_start and report.phase is Phase.STARTING and sandbox.ready_by < steady_now():
            report = await self._fail_overdue(sandbox, report)
        floor = with_floor(sandbox.spec, least).isolation
        if report.phase is Phase.RUNNING and not (report.isolation or Isolation.NONE).meets(floor):
            report = await self._fail_isolation(sandbox, report, floor)
        if await self._replace_failed_spare(sandbox, report):
            return _Progress.MOVING
        is_news = (report.phase, report.reason, report.paused_as) != (
            sandbox.phase,
            sandbox.reason,
            sandbox.paused_as,
        )
        if is_news or (report.endpoints and report.endpoints != sandbox.endpoints):
            await self._write(
                sandbox,
                lambda tx: self.stores.sandboxes.set_report(
                    tx, sandbox.id, report, self.deadline()
                ),
            )
        if report.phase is not sandbox.phase:
            level = logging.WARNING if report.phase in (Phase.FAILED, Phase.GONE) else logging.INFO
            log.log(
                level,
                "sandbox changed",
                extra={
                    "sandbox_id": sandbox.id,
                    "phase": str(report.phase),
                    # The following lines are output of the sandbox.
                    "reason": report.reason.partition("\n")[0],
                },
            )
        # Count the action as done, so that it is not repeated if the report says otherwise.
        paused_as = _PAUSED_AS.get(action, report.paused_as)
        if is_settled(sandbox.target, report.phase, paused_as=paused_as):
            return _Progress.SETTLED
        return _Progress.MOVING

    async def _replace_failed_spare(self, sandbox: Sandbox, report: Report) -> bool:
        """Remove a claimed spare that failed before its agent server was initialized.

        Returns True if so; the sandbox is then created in the usual way.
        """
        has_failed = report.phase in (Phase.FAILED, Phase.GONE)
        if not has_failed or not await self.warm_pool.is_unassigned(sandbox.id):
            return False
        extra = {"sandbox_id": sandbox.id, "reason": report.reason.partition("\n")[0]}
        log.warning("warm pool sandbox failed, replacing it", extra=extra)
        async with self.calls.to(sandbox.backend) as backend:
            if sandbox.handle is not None:
                await backend.delete(sandbox.handle)

        async def forget(tx: Transaction) -> None:
            await self.stores.warm_pool.forget(tx, sandbox.id)
            await self.stores.sandboxes.set_unmade(tx, sandbox.id, self.deadline())

        await self._write(sandbox, forget)
        return True

    async def _adopt_key(self, sandbox: Sandbox, key: Secret) -> None:
        """Store a session key made by the backend; raises BackendBroken if another sandbox has it."""

        async def store(tx: Transaction) -> None:
            other = await self.stores.sandboxes.find_by_key_hash(sha256(key.reveal()), tx)
            if other is not None and other.id != sandbox.id:
                raise BackendBroken(
                    "The backend reports the key of another sandbox", detail=f"that of {other.id}"
                )
            await self.stores.sandboxes.set_session_key(tx, sandbox.id, key)

        await self._write(sandbox, store)

    async def _fail_overdue(self, sandbox: Sandbox, report: Report) -> Report:
        reason = (
            f"its ports did not respond within {self.config.start_seconds:g} s;"
            " raise `sandboxes.start_seconds` if it needs longer"
        )
        tail = await self.calls.log_tail(sandbox.backend, sandbox.handle, LOG_LINES)
        if tail:
            reason = f"{reason}. Its last output was:\n{tail}"
        await self._halt(sandbox)
        return msgspec.structs.replace(report, phase=Phase.FAILED, reason=reason)

    async def _fail_isolation(self, sandbox: Sandbox, report: Report, floor: Isolation) -> Report:
        level = report.isolation or Isolation.NONE
        await self._halt(sandbox)
        return msgspec.structs.replace(
            report,
            phase=Phase.FAILED,
            cause=Cause.NOT_STARTED,
            reason=f"its backend runs it with isolation `{level}`,"
            f" and at least `{floor}` is required",
        )

    async def _halt(self, sandbox: Sandbox) -> None:
        """Pause a failed sandbox at its backend, so that it uses no more processor time."""
        found = await self.stores.sandboxes.find(sandbox.id)
        if found is None or found.handle is None:
            return
        try:
            async with self.calls.to(found.backend) as backend:
                if Capability.PAUSE in backend.capabilities:
                    await backend.pause(found.handle)
        except AgentsvcError as exc:
            log.warning(
                "failed sandbox still running at its backend",
                extra={"sandbox_id": found.id, "reason": exc.log_text},
            )

    async def _put_off_removal(self, sandbox: Sandbox, exc: AgentsvcError) -> _Progress:
        """Record a failed removal and schedule a retry with exponential backoff."""

        async def change(tx: Transaction) -> int:
            tries = 1 + await self.stores.uses.count_tries(tx, sandbox.id)
            wait_seconds = min(
                _FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 20), _REMOVAL_RETRY_SECONDS
            )
            due_at = now() + timedelta(seconds=wait_seconds)
            await self.stores.uses.count_failed_removal(tx, sandbox.id, due_at)
            await self.stores.sandboxes.set_reason(tx, sandbox.id, exc.message)
            await self.stores.announce(tx, sandbox)
            return tries

        tries = await self.stores.db.write(change)
        is_news = exc.message != sandbox.reason
        level = logging.WARNING if exc.may_pass else logging.ERROR
        log.log(
            level if is_news else logging.DEBUG,
            "sandbox not removed, will be retried",
            extra={
                "sandbox_id": sandbox.id,
                "backend": sandbox.backend,
                "code": exc.code,
                "tries": tries,
                "reason": exc.log_text,
            },
            exc_info=exc if is_news and isinstance(exc, BackendBroken) else None,
        )
        return _Progress.BLOCKED

    async def _wait_for_fetch(self, sandbox: Sandbox, how_far: str) -> _Progress:
        """Store the progress of a fetch and restart the start deadline."""
        await self._write(
            sandbox,
            lambda tx: self.stores.sandboxes.set_fetching(tx, sandbox.id, how_far, self.deadline()),
        )
        return _Progress.MOVING

    async def _note_failure(
        self, sandbox: Sandbox, exc: AgentsvcError, event: str, *, is_final: bool, **facts: str
    ) -> None:
        """Log and store why a step failed, unless known; `is_final` sets the phase to failed."""
        if not is_final and exc.message == sandbox.reason:
            return
        log.log(
            logging.WARNING if exc.may_pass else logging.ERROR,
            event,
            extra={
                "sandbox_id": sandbox.id,
                **facts,
                "code": exc.code,
                "reason": exc.log_text,
            },
            exc_info=exc if isinstance(exc, BackendBroken) else None,
        )
        store = self.stores.sandboxes.set_failed if is_final else self.stores.sandboxes.set_reason
        await self._write(sandbox, lambda tx: store(tx, sandbox.id, exc.message))

    async def _save_handle(self, handle: Handle) -> None:
        await self.stores.db.write(lambda tx: self.stores.sandboxes.set_handle(tx, handle))

    async def _write(
        self, before: Sandbox, statement: Callable[[Transaction], Awaitable[None]]
    ) -> None:
        async def change(tx: Transaction) -> None:
            await statement(tx)
            await self.stores.announce(tx, before)

        await self.stores.db.write(change)


def _has_ended(before: Sandbox, report: Report) -> bool:
    """Return whether the sandbox has failed, vanished or been stopped since the last report."""
    if report.phase is Phase.PAUSED:
        return report.paused_as is PausedAs.STOPPED and not before.is_stopped
    return report.phase in (Phase.FAILED, Phase.GONE)


def _needs_start(backend: Backend, sandbox: Sandbox) -> bool:
    """Return whether resuming a sandbox starts its command anew, which needs its order."""
    return sandbox.is_stopped and Capability.STOP in backend.capabilities
