"""Follows the conversations of runs, and ends each run with its conversation."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, decode_or_none, monotonic, now, wait_within
from agentsvc.extension.conversations import ConversationQuery, ConversationView, EventQuery
from agentsvc.extension.endings import AT_WORK, cost_of, last_words
from agentsvc.extension.server import Notice, SandboxStatus, Server, Subject, Target

from .clock import ClockWatch
from .ending import RunEnd, find_run_end, stop_run, store_end
from .model import Run, RunStatus
from .plain_command import Commands
from .publication import Publisher
from .table import AutomationTable, RunTable
from .work_table import WorkTable

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 10.0
"""Interval at which all runs are checked, in addition to checks after notices."""

_JUMP_SECONDS: Final = 2.0

_IDLE_TIME: Final = timedelta(seconds=1)
"""How long an agent must be idle before its run ends, since its last events may still arrive."""
_STOP_TIME: Final = timedelta(seconds=30)
"""How long an agent may take to report that it was stopped."""


class _Error(msgspec.Struct):
    detail: str = ""


_ERROR: Final = "ConversationErrorEvent"
_NEWEST: Final = EventQuery(
    kinds=("ACPToolCallEvent", "ActionEvent", "MessageEvent", _ERROR), descending=True
)
"""The events that tell how a run has ended, and kinds that always occur: if no event matched, the
query would scan the whole log."""
_LAST: Final = 20


class Follower:
    """Ends runs, and calls `on_end` after each."""

    def __init__(self, server: Server, publisher: Publisher, on_end: Callable[[], None]) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._messages = server.messages
        self._sandboxes = server.sandboxes
        self._events = server.events
        self._supervisor = server.supervisor
        self._publisher = publisher
        self._commands = Commands(server)
        self._clock = ClockWatch()
        self._on_end = on_end
        self._watched: set[str] = set()
        """Ids of the conversations of unfinished runs."""
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._sweep_at = 0.0
        """When all runs are checked next, on the monotonic clock."""

    def watch(self, conversation_id: str) -> None:
        """Check a conversation soon, and after each notice about it."""
        self._watched.add(conversation_id)
        self._schedule(conversation_id)

    def on_notice(self, notice: Notice) -> None:
        """Schedule a check if the notice is about a watched conversation."""
        is_watched = notice.conversation_id in self._watched
        if is_watched and notice.subject in (Subject.CONVERSATION, Subject.START_TASK):
            self._schedule(notice.conversation_id or "")

    async def follow_runs(self) -> None:
        """Wait for notices, and check the runs that they concern; to be called in a loop."""
        await wait_within(self._wake, max(0.0, self._sweep_at - monotonic()))
        self._wake.clear()
        await self._shift_timeouts()
        changed, self._changed = self._changed, set()
        if monotonic() < self._sweep_at:
            runs = await RunTable.of_conversations(self._db, list(changed))
        else:
            runs = await RunTable.running(self._db)
            self._watched = {run.conversation_id for run in runs if run.conversation_id}
            self._sweep_at = monotonic() + SWEEP_SECONDS
        by_user: defaultdict[str, dict[str, Run]] = defaultdict(dict)
        for run in runs:
            by_user[run.user_id][run.conversation_id or ""] = run
        for user_id, found in by_user.items():
            views = await self._conversations.find_many(user_id, list(found), include_starting=True)
            for run, view in zip(found.values(), views, strict=True):
                try:
                    await self._follow(run, view)
                except AgentsvcError as exc:
                    # It is checked again later; the other runs must not wait.
                    extra = {"run_id": run.id, "reason": exc.message}
                    log.warning("automation run could not be checked", extra=extra)
        for run in await RunTable.unsettled(self._db):
            self._supervisor.spawn(f"sandbox of run {run.id}", partial(self._settle, run))

    async def _shift_timeouts(self) -> None:
        """Move the deadlines of runs if the system clock was changed."""
        jump = self._clock.jump() or 0.0
        if abs(jump) < _JUMP_SECONDS:
            return
        log.warning("system clock changed, deadlines of runs moved", extra={"seconds": round(jump)})
        for run in await RunTable.running(self._db):
            if run.timeout_at is not None:
                moved = run.timeout_at + timedelta(seconds=jump)
                timed = msgspec.structs.replace(run, timeout_at=moved)
                await self._db.write(partial(RunTable.change, run=timed, since=run.status))

    def _schedule(self, conversation_id: str) -> None:
        self._changed.add(conversation_id)
        self._wake.set()

    async def _follow(self, run: Run, view: ConversationView | None) -> None:
        if view is None:
            detail, gone = "Its conversation was deleted", run.conversation_id or ""
            await self._db.write(lambda tx: WorkTable.close(tx, gone))
            await self._end(run, RunEnd(status=RunStatus.CANCELLED, detail=detail))
            return
        run_end = find_run_end(view)
        if run_end is None:
            work = await WorkTable.of_conversation(self._db, view.conversation.id)
            if work is not None:
                self._publisher.announce_start(work)
            else:
                await self._commands.watch(run, view, self._end)
            await self._enforce_timeout(run, view)
        elif timedelta(0) <= now() - view.conversation.updated_at < _IDLE_TIME:
            self._schedule(view.conversation.id)
        else:
            run_end = await self._with_details(view.conversation.id, run_end)
            await self._conclude(run, run_end, view)

    async def _conclude(self, run: Run, run_end: RunEnd, view: ConversationView) -> None:
        """End a run; if it works for a git host, its result is published first."""
        work = await WorkTable.of_conversation(self._db, view.conversation.id)
        if work is None:
            await self._end(run, run_end)
        else:
            self._publisher.publish_end(run, work, view, run_end, self._end)

    async def _enforce_timeout(self, run: Run, view: ConversationView) -> None:
        """Stop a run that exceeds its time limit, counted from when its agent is ready."""
        if run.timeout_at is None and view.conversation.is_ready:
            automation = await AutomationTable.find(self._db, run.automation_id)
            seconds = automation.definition.timeout if automation else None
            if seconds is None:
                return
            run = msgspec.structs.replace(run, timeout_at=now() + timedelta(seconds=seconds))
            timed = run
            await self._db.write(lambda tx: RunTable.change(tx, timed, since=RunStatus.RUNNING))
        if run.timeout_at is None:
            return
        seconds_left = (run.timeout_at - now()).total_seconds()
        if seconds_left <= 0:
            await stop_run(self._messages, run)
            detail = "It exceeded the time limit of its automation"
            run_end = RunEnd(status=RunStatus.FAILED, detail=detail, cost=cost_of(view))
            await self._conclude(run, run_end, view)
        else:
            self._sweep_at = min(self._sweep_at, monotonic() + seconds_left)

    async def _with_details(self, conversation_id: str, run_end: RunEnd) -> RunEnd:
        """Add the agent's last message, or the detail of its error, to an outcome."""
        events, _ = await self._events.search(conversation_id, _NEWEST, page_id=None, limit=_LAST)
        if run_end.status is RunStatus.COMPLETED:
            return msgspec.structs.replace(run_end, result=last_words(events) or "")
        for event in events:
            if event.kind == _ERROR and (error := decode_or_none(event.body, _Error)):
                return msgspec.structs.replace(run_end, detail=f"{run_end.detail}: {error.detail}")
        return run_end

    async def _end(self, run: Run, run_end: RunEnd) -> None:
        await self._db.write(lambda tx: store_end(tx, self._events, run, run_end))
        self._watched.discard(run.conversation_id or "")
        self._wake.set()
        self._on_end()

    async def _settle(self, run: Run) -> None:
        """Release the sandbox of a finished run as its automation says, unless it is too early."""
        if run.status is RunStatus.CANCELLED:
            await self._publisher.say_stopped(run)
        automation = await AutomationTable.find(self._db, run.automation_id)
        if automation is None or await self._release_sandbox(run, automation.definition.keep_alive):
            await self._db.write(lambda tx: RunTable.settle(tx, run.id))

    async def _release_sandbox(self, run: Run, keep_alive: bool | None) -> bool:
        """Pause or delete the sandbox unless conversations share it; return whether this is done."""
        [view] = await self._conversations.find_many(run.user_id, [run.conversation_id or ""])
        if keep_alive or view is None or view.sandbox is None:
            return True
        sandbox_id = view.sandbox.id
        sharing = ConversationQuery(
            sandbox_id=sandbox_id, include_children=True, include_starting=True
        )
        if await self._conversations.count(run.user_id, sharing) > 1:
            return True
        if view.conversation.has_run_queued or view.execution_status in AT_WORK:
            # A user has continued the conversation, or the agent has not stopped yet.
            age = now() - (run.completed_at or now())
            return run.status is RunStatus.COMPLETED or age > _STOP_TIME
        try:
            if keep_alive is False:
                await self._sandboxes.delete(run.user_id, sandbox_id)
            elif view.sandbox_status is SandboxStatus.RUNNING:
                is_over = now() - (run.completed_at or now()) > _STOP_TIME
                # If a user is using it right now, this is retried for a while.
                return (
                    await self._sandboxes.idle.cull(sandbox_id, Target.PAUSED, unused_since=now())
                    or is_over
                )
        except AgentsvcError as exc:
            # It is retried, or left to the idle rules.
            extra = {"sandbox_id": sandbox_id, "reason": exc.message}
            log.warning("sandbox of a run not paused or deleted", extra=extra)
            return not exc.may_pass
        return True
