"""The step that gets a start its sandbox: choice, waits, and an agent server that answers."""

from datetime import timedelta
from functools import partial
from typing import Final

from agentsvc.base import AgentUnavailable, StartRefused, reason_of, steady_now
from agentsvc.conversations.starting.failure import with_log_tail
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress, timed
from agentsvc.conversations.starting.sandbox_checks import SandboxChecks
from agentsvc.conversations.starting.sandbox_choice import SandboxChooser
from agentsvc.conversations.starting.states import CheckedStart, Start, StartWithSandbox
from agentsvc.sandboxes import Sandbox, SandboxStatus

_QUEUE_POLL_SECONDS: Final = 10.0


class SandboxWait:
    """Waits until a sandbox runs; which start may run when is decided by the admission."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._sandboxes = parts.sandboxes
        self._chooser = SandboxChooser(parts)
        self._checks = SandboxChecks(parts)
        self._progress = Progress(parts)

    async def get_sandbox(self, checked: CheckedStart) -> StartWithSandbox:
        """Return the start with its running sandbox and an agent server that answers.

        Raises StartRefused if the sandbox does not get that far within its time limits.
        """
        start = checked.start
        has_sandbox = start.task.sandbox_id is not None
        if not has_sandbox:
            await self._take_turn(checked)
        with timed(start, "choice"):
            sandbox = await self._chooser.choose(checked)
        with timed(start, "room"):
            has_waited = await self._wait_for_room(start, sandbox.id)
        if has_sandbox or has_waited:
            await self._take_turn(checked)
            await self._sandboxes.make_now(sandbox.id)
        with timed(start, "sandbox"):
            waited = await self._wait_until_running(start, sandbox.id)
        agent = self._sandboxes.agent_of(waited)
        if waited is None or agent is None or waited.target.is_rest:
            raise StartRefused(await self._checks.explain(waited))
        start.sandbox = waited
        try:
            with timed(start, "agent"):
                await agent.wait_ready(self._parts.config.agent_seconds)
        except AgentUnavailable as exc:
            # Not retried, because each further try would wait that long again.
            await self._checks.check(start)
            remedy = "Raise `conversations.agent_seconds` in the server's config"
            text = reason_of(exc.message, remedy)
            raise StartRefused(with_log_tail(text, await self._checks.log_tail(waited))) from exc
        await self._parts.deletion.delete_before_reuse(start.conversation.id, waited.id, agent)
        return StartWithSandbox(checked=checked, sandbox=waited, agent=agent)

    async def _wait_until_running(self, start: Start, sandbox_id: str) -> Sandbox | None:
        """Wait until a sandbox has started or failed, or the deadline; store its reason meanwhile."""
        reason = ""
        while True:
            seen = await self._sandboxes.wait_for(
                sandbox_id,
                partial(_has_changed, reason),
                time_limit=max(0.0, (start.deadline - steady_now()).total_seconds()),
            )
            if seen is None or not _is_starting(seen) or steady_now() >= start.deadline:
                break
            reason = seen.reason
            await self._progress.set_detail(start, reason or None)
        await self._progress.set_detail(start, None)
        return seen

    async def _take_turn(self, checked: CheckedStart) -> None:
        """Wait for a slot on this machine; the deadline of the start counts from then."""
        start = checked.start
        lane = await self._chooser.find_lane(checked)
        with timed(start, "turn"):
            has_waited = await self._sandboxes.slots.acquire(
                start.task.id,
                start.task.user_id,
                start.task.created_at,
                lane,
                lambda place: self._progress.set_position(start, place, queue="its turn"),
            )
        await self._progress.set_position(start, None)
        if has_waited:
            start.deadline = steady_now() + timedelta(seconds=self._parts.config.start_seconds)

    async def _wait_for_room(self, start: Start, sandbox_id: str) -> bool:
        """Wait until the sandbox is admitted; return whether it had to wait.

        The deadline of the start counts from then.
        """
        has_waited = False
        while True:
            seen = await self._sandboxes.find_any(sandbox_id)
            wait = await self._sandboxes.admission.find_wait(sandbox_id)
            if seen is None or wait is None:
                break
            has_waited = True
            # Free the slot for other starts meanwhile.
            self._sandboxes.slots.remove(start.task.id)
            self._sandboxes.defer_creation(start.task.id, seen)
            position, cause = wait
            await self._progress.set_position(start, position, cause=cause)
            await self._sandboxes.wait_for(
                sandbox_id,
                partial(_differs_from, seen.reason),
                time_limit=_QUEUE_POLL_SECONDS,
            )
        if start.task.queue_position is not None:
            await self._progress.set_position(start, None)
            start.deadline = steady_now() + timedelta(seconds=self._parts.config.start_seconds)
        return has_waited


def _differs_from(reason: str, seen: Sandbox | None) -> bool:
    return seen is None or seen.reason != reason


def _has_changed(reason: str, seen: Sandbox | None) -> bool:
    return _differs_from(reason, seen) or not _is_starting(seen)


def _is_starting(seen: Sandbox | None) -> bool:
    return seen is not None and seen.status is SandboxStatus.STARTING
