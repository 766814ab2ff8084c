"""Advances each attempt from its start to its end.

An attempt changes its status in the transaction that creates its start task, and again in the one that
enqueues the message to its agent. So a crash between two steps loses and duplicates nothing.
"""

import asyncio
import contextlib
import logging
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    BackendUnavailable,
    CapacityExceeded,
    NotFound,
    SandboxLimitReached,
    StorageFailed,
    monotonic,
    now,
    wait_within,
)
from agentsvc.extension.agents import PendingKind, PendingMessage
from agentsvc.extension.commands import stop_once, watch_once
from agentsvc.extension.conversations import (
    ConversationPatch,
    ConversationView,
    ExecutionStatus,
    StartTask,
    WhenFull,
    check_may_run,
    text_message,
)
from agentsvc.extension.endings import DONE, cost_of, find_end
from agentsvc.extension.preferences import SettingsStore
from agentsvc.extension.server import Notice, SandboxStatus, Server, Subject, Target
from agentsvc.extension.storage import Transaction

from .config import AttemptsConfig
from .measuring import compare_files, write_tree
from .model import Attempt, AttemptSet, AttemptStatus
from .service import complete, order_of, stop, title_of
from .table import AttemptTable, SetTable

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0
"""Interval at which all attempts are checked, in addition to checks after notices."""

_IDLE_TIME: Final = timedelta(seconds=1)
"""How long an agent must be idle before its work has ended, since its last events may still arrive."""
_MAX_WAIT: Final = timedelta(minutes=10)
"""How long to retry the measurement in a sandbox that does not respond."""
_SEND_TIME: Final = timedelta(seconds=60)
_TRANSIENT: Final = (SandboxLimitReached, CapacityExceeded, StorageFailed, BackendUnavailable)
"""Errors that are not about the attempt: its start is retried."""
_TOO_LONG: Final = "The tests took longer than the server allows"
_GONE: Final = "Its conversation was deleted"
_BATCH: Final = 500


class _AlreadyTaken(Exception):
    """The attempt can no longer be started: it was stopped, deleted, or has changed."""


class Runner:
    """Advances attempts, at once after notices about their conversations."""

    def __init__(self, server: Server, config: AttemptsConfig) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._sandboxes = server.sandboxes
        self._messages = server.messages
        self._supervisor = server.supervisor
        self._settings = SettingsStore(server.database, server.vault)
        self._test_time = timedelta(seconds=config.test_seconds)
        self._age = timedelta(seconds=config.delete_after_seconds)
        self._watched: set[str] = set()
        """Ids of the conversations of open attempts."""
        self._changed: set[str] = set()
        """Ids of conversations to check; one whose check is running is checked once more."""
        self._wake = asyncio.Event()
        self._sweep_at = 0.0

    def wake(self) -> None:
        """Schedule a check of all attempts and of deleted tasks."""
        self._sweep_at = 0.0
        self._wake.set()

    def on_notice(self, notice: Notice) -> None:
        """Schedule a check if the notice is about a watched conversation."""
        is_watched = notice.conversation_id in self._watched
        if is_watched and notice.subject in (Subject.CONVERSATION, Subject.START_TASK):
            self._changed.add(notice.conversation_id or "")
            self._wake.set()

    async def run_due(self) -> None:
        """Wait for notices, and advance the attempts that they concern; to be called in a loop."""
        await wait_within(self._wake, max(0.0, self._sweep_at - monotonic()))
        self._wake.clear()
        if monotonic() < self._sweep_at:
            found = await AttemptTable.open(self._db, tuple(self._changed))
        else:
            self._sweep_at = monotonic() + SWEEP_SECONDS
            found = await AttemptTable.open(self._db)
            self._watched = {one.conversation_id for one in found}
            self._changed = set(self._watched)
            for task in await SetTable.deleted(self._db):
                self._supervisor.spawn(f"end of task {task.id}", partial(self._remove, task))
        for one in found:
            self._supervisor.spawn(one.task_name, partial(self._advance, one.conversation_id))

    async def delete_old(self) -> None:
        """Delete the records of tasks that ended long ago."""
        before = now() - self._age
        while await self._db.write(lambda tx: SetTable.delete_old(tx, before, _BATCH)):
            pass

    async def _advance(self, conversation_id: str) -> None:
        has_next = True
        while has_next or conversation_id in self._changed:
            self._changed.discard(conversation_id)
            one = await AttemptTable.find(self._db, conversation_id)
            task = await SetTable.find(self._db, one.set_id) if one else None
            if one is None or task is None or task.is_deleted:
                return
            try:
                has_next = await self._step(task, one)
            except AgentsvcError as exc:
                # The next sweep retries it.
                extra = {"conversation_id": conversation_id, "reason": exc.message}
                log.warning("attempt could not be continued", extra=extra)
                return

    async def _step(self, task: AttemptSet, one: Attempt) -> bool:
        """Do the next step of an attempt; return whether another step may follow at once."""
        if one.status is AttemptStatus.QUEUED:
            await self._begin(task, one)
            return False
        [view] = await self._conversations.find_many(
            task.user_id, [one.conversation_id], include_starting=True
        )
        if one.status in (AttemptStatus.CHOSEN, AttemptStatus.DISCARDED):
            return await self._settle(task, one, view)
        if view is None:
            return await self._end(one, AttemptStatus.CANCELLED, _GONE)
        if one.status is not AttemptStatus.RUNNING:
            return one.status is AttemptStatus.STARTING and await self._send_task(task, one, view)
        advance = self._watch_agent if one.outcome is None else self._measure
        return await advance(task, one, view)

    # Steps

    async def _begin(self, task: AttemptSet, one: Attempt) -> None:
        """Start its conversation."""
        begun = msgspec.structs.replace(one, status=AttemptStatus.STARTING, detail="")

        async def claim(tx: Transaction, _: StartTask) -> None:
            await check_may_run(tx, task.user_id)
            await _claim(tx, begun, since=one.status)

        settings = await self._settings.get(task.user_id)
        order = order_of(task.definition, one.model, settings, one)
        source = task.definition.conversation_id
        try:
            if source is None:
                await self._conversations.starts.start(task.user_id, order, claim=claim)
            else:
                await self._conversations.fork(
                    task.user_id,
                    source,
                    order,
                    up_to=task.definition.up_to_event_id,
                    claim=claim,
                )
        except _AlreadyTaken:
            return
        except _TRANSIENT as exc:
            waiting = msgspec.structs.replace(one, detail=exc.message)
            await self._db.write(
                lambda tx: AttemptTable.change(tx, waiting, since=AttemptStatus.QUEUED)
            )
        except AgentsvcError as exc:
            await self._end(one, AttemptStatus.FAILED, exc.message)

    async def _send_task(self, task: AttemptSet, one: Attempt, view: ConversationView) -> bool:
        """Send the task to the agent, once the tree of its files is stored."""
        conversation = view.conversation
        if conversation.start_failed:
            return await self._end(one, AttemptStatus.FAILED, find_end(view) or "")
        if task.stop:
            await self._delete(task, one)
            return await self._end(one, AttemptStatus.CANCELLED, task.stop)
        if not conversation.is_ready:
            return False
        if view.sandbox_status in (SandboxStatus.ERROR, SandboxStatus.MISSING):
            return await self._end(one, AttemptStatus.FAILED, find_end(view) or "")
        if view.sandbox is not None and view.sandbox_status is SandboxStatus.PAUSED:
            await self._conversations.resume(
                task.user_id, view.sandbox.id, when_full=WhenFull.QUEUE
            )
            return False
        base = await write_tree(self._conversations.require_agent(view), conversation.working_dir)
        started = msgspec.structs.replace(
            one, status=AttemptStatus.RUNNING, base=base, started_at=now()
        )
        pending = PendingMessage(
            id=one.conversation_id,
            conversation_id=one.conversation_id,
            kind=PendingKind.MESSAGE,
            message=text_message(task.definition.message),
        )
        claim = partial(_claim, one=started, since=one.status)
        with contextlib.suppress(_AlreadyTaken):
            await self._messages.say_later(task.user_id, pending, claim=claim)
        return True

    async def _watch_agent(self, task: AttemptSet, one: Attempt, view: ConversationView) -> bool:
        """Check whether its agent has ended, and store the cost."""
        cost = cost_of(view)
        if cost != one.cost:
            one = msgspec.structs.replace(one, cost=cost)
            task = await self._store_cost(task, one)
        conversation, reason = view.conversation, find_end(view)
        if task.stop and reason != DONE:
            await self._interrupt(task, one)
            return await self._finish(one, AttemptStatus.CANCELLED, task.stop)
        idle_time = now() - conversation.updated_at
        if reason is None:
            if _got_task(view) or min(now() - (one.started_at or now()), idle_time) < _SEND_TIME:
                return False
            return await self._finish(one, AttemptStatus.FAILED, "Its agent could not get the task")
        if timedelta(0) <= idle_time < _IDLE_TIME:
            await asyncio.sleep(_IDLE_TIME.total_seconds())
            return True
        status = AttemptStatus.FINISHED if reason == DONE else AttemptStatus.FAILED
        return await self._finish(one, status, reason)

    async def _store_cost(self, task: AttemptSet, one: Attempt) -> AttemptSet:
        """Store the cost of an attempt; stop all attempts if the budget of the task is used up."""

        async def body(tx: Transaction) -> AttemptSet:
            found = await SetTable.find(tx, task.id)
            if found is None or not await AttemptTable.change(tx, one, since=one.status):
                return task
            attempts = (await AttemptTable.of_sets(tx, [task.id]))[task.id]
            budget, spent = task.definition.budget, sum(other.cost or 0.0 for other in attempts)
            if budget is None or spent < budget or found.stop:
                return found
            reason = f"The budget of all attempts is used up: they have cost {spent:.4f} US dollars"
            stopped = msgspec.structs.replace(found, stop=reason, is_over_budget=True)
            await stop(tx, stopped)
            tx.after_commit(self.wake)
            return stopped

        return await self._db.write(body)

    async def _finish(self, one: Attempt, outcome: AttemptStatus, detail: str) -> bool:
        """Store how its agent has ended; the next step measures its changes."""
        ended = msgspec.structs.replace(one, outcome=outcome, detail=detail, ended_at=now())
        return await self._db.write(
            lambda tx: AttemptTable.change(tx, ended, since=AttemptStatus.RUNNING)
        )

    async def _measure(self, task: AttemptSet, one: Attempt, view: ConversationView) -> bool:
        """Measure its changes, run its tests, and end it."""
        sandbox, outcome = view.sandbox, one.outcome or AttemptStatus.FAILED
        is_finished, since = outcome is AttemptStatus.FINISHED, now() - (one.ended_at or now())
        if sandbox is None or since > self._test_time + _MAX_WAIT:
            return await self._end(one, outcome, one.detail)
        if view.sandbox_status is SandboxStatus.PAUSED and is_finished:
            await self._conversations.resume(task.user_id, sandbox.id, when_full=WhenFull.QUEUE)
            return False
        if view.sandbox_status is SandboxStatus.STARTING and is_finished:
            return False
        if view.sandbox_status is not SandboxStatus.RUNNING:
            return await self._end(one, outcome, one.detail)
        with self._sandboxes.usage.hold(sandbox.id):
            one = await self._compare(one, view)
            if is_finished and task.definition.test_command is not None:
                tested = await self._test(task.definition.test_command, one, view)
                if tested is None and since < self._test_time:
                    return True
                one = tested or msgspec.structs.replace(one, output=_TOO_LONG)
        await self._end(one, outcome, one.detail)
        # Paused like an idle sandbox: the next message resumes it.
        await self._sandboxes.idle.cull(sandbox.id, Target.PAUSED, unused_since=now())
        return False

    async def _compare(self, one: Attempt, view: ConversationView) -> Attempt:
        """Add the size of its changes to an attempt."""
        if not one.base:
            return one
        agent, place = self._conversations.require_agent(view), view.conversation.working_dir
        changes = await compare_files(agent, place, one.base)
        return msgspec.structs.replace(one, **msgspec.structs.asdict(changes)) if changes else one

    async def _test(self, command: str, one: Attempt, view: ConversationView) -> Attempt | None:
        """Start its tests or wait for them a while; return it with their result, or None."""
        agent, place = self._conversations.require_agent(view), view.conversation.working_dir
        result = await watch_once(agent, one.conversation_id, command, directory=place)
        if result is not None:
            output = result.output.replace("\0", "")
            return msgspec.structs.replace(one, exit_code=result.exit_code, output=output)
        if now() - (one.ended_at or now()) > self._test_time:
            await stop_once(agent, one.conversation_id)
        return None

    async def _end(self, one: Attempt, status: AttemptStatus, detail: str) -> bool:
        ended = msgspec.structs.replace(
            one, status=status, detail=detail, outcome=None, ended_at=one.ended_at or now()
        )

        async def body(tx: Transaction) -> None:
            await AttemptTable.change(tx, ended, since=one.status)
            await complete(tx, one.set_id)

        await self._db.write(body)
        return False

    # Conversations

    async def _interrupt(self, task: AttemptSet, one: Attempt) -> None:
        """Stop its agent, unless it does not run; an unreachable one is retried."""
        try:
            await self._conversations.interrupt(task.user_id, one.conversation_id)
        except (AgentUnavailable, BackendUnavailable):
            raise
        except AgentsvcError:
            return

    async def _settle(self, task: AttemptSet, one: Attempt, view: ConversationView | None) -> bool:
        """Rename the conversation of a chosen attempt, or delete that of a discarded one."""
        if one.status is AttemptStatus.DISCARDED:
            await self._delete(task, one)
        elif view is not None and view.conversation.title == title_of(task.definition, one):
            patch = ConversationPatch(title=task.definition.name)
            with contextlib.suppress(NotFound):
                await self._conversations.update(task.user_id, one.conversation_id, patch)
        settled = msgspec.structs.replace(one, is_settled=True)
        await self._db.write(lambda tx: AttemptTable.change(tx, settled, since=one.status))
        return False

    async def _delete(self, task: AttemptSet, one: Attempt) -> None:
        with contextlib.suppress(NotFound):
            await self._conversations.delete(task.user_id, one.conversation_id)

    async def _remove(self, task: AttemptSet) -> None:
        """Delete the conversations of a task except the chosen one, and then its record."""
        attempts = await AttemptTable.of_sets(self._db, [task.id])
        for one in attempts[task.id]:
            if one.status is not AttemptStatus.CHOSEN:
                await self._delete(task, one)
        await self._db.write(lambda tx: SetTable.delete(tx, task.id))


async def _claim(tx: Transaction, one: Attempt, *, since: AttemptStatus) -> None:
    """Update an attempt; raises _AlreadyTaken if it has changed, or its task has ended."""
    task = await SetTable.find(tx, one.set_id)
    if task is None or task.stop or task.is_deleted:
        raise _AlreadyTaken
    if not await AttemptTable.change(tx, one, since=since):
        raise _AlreadyTaken


def _got_task(view: ConversationView) -> bool:
    conversation = view.conversation
    is_idle = conversation.execution_status in (None, ExecutionStatus.IDLE)
    was_asked = bool(conversation.facts.run_asked_at) or conversation.has_run_queued
    return was_asked or not is_idle
