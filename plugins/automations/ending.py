"""Creates runs, and ends them according to the state of their conversations."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, NotFound, new_id, now, sha256
from agentsvc.extension.commands import stop_once
from agentsvc.extension.conversations import ConversationView, error_event
from agentsvc.extension.endings import AT_WORK, DONE, cost_of, find_end
from agentsvc.extension.server import EventLog, MessageQueue
from agentsvc.extension.storage import Transaction

from .model import Automation, Run, RunStatus, Source
from .table import AutomationTable, RunTable

log = logging.getLogger(__name__)

WAS_DISABLED: Final = "The automation was disabled"
DISABLED_CODE: Final = "AutomationDisabled"

_MAX_DETAIL: Final = 2000
"""Maximum length of a stored result or reason, in characters."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    status: RunStatus
    detail: str = ""
    result: str = ""
    cost: float | None = None


type EndRun = Callable[[Run, RunEnd], Awaitable[None]]


def new_run(
    automation: Automation, *, key: str, source: Source, due_at: datetime | None = None
) -> Run:
    """Return a new pending run, due now unless `due_at` is given."""
    moment = now()
    return Run(
        id=new_id(),
        automation_id=automation.id,
        user_id=automation.user_id,
        key=key if key.isascii() else sha256(key),
        source=source,
        due_at=due_at or moment,
        created_at=moment,
    )


def find_run_end(view: ConversationView) -> RunEnd | None:
    """Return the outcome of the run of a conversation, or None while it is running."""
    reason = find_end(view)
    if reason is None:
        return None
    status = RunStatus.COMPLETED if reason == DONE else RunStatus.FAILED
    return RunEnd(status=status, detail=reason, cost=cost_of(view))


def ended(run: Run, end: RunEnd) -> Run:
    """Return a run with its outcome set."""
    return msgspec.structs.replace(
        run,
        status=end.status,
        error_detail=end.detail[:_MAX_DETAIL],
        result=end.result[:_MAX_DETAIL],
        cost=end.cost,
        completed_at=now(),
        is_settled=run.conversation_id is None,
    )


async def store_end(tx: Transaction, events: EventLog, run: Run, run_end: RunEnd) -> None:
    """Store the outcome of a run; a failure adds a retry, or counts towards disabling."""
    after, payload = ended(run, run_end), await RunTable.find_sealed(tx, run.id)
    if not await RunTable.change(tx, after, since=run.status):
        return
    automation = await AutomationTable.find(tx, run.automation_id)
    if automation is None:
        return
    retry = next_try(run, automation) if run_end.status is RunStatus.FAILED else None
    if retry is not None:
        await RunTable.add(tx, retry, payload)
    if run_end.status is RunStatus.COMPLETED and automation.failures:
        await AutomationTable.update(tx, msgspec.structs.replace(automation, failures=0))
    if run_end.status is not RunStatus.FAILED or retry is not None:
        return
    reason = await _count_failure(tx, automation, run_end.detail)
    if not reason:
        return
    if run.conversation_id is not None:
        text = f"The automation `{automation.definition.name}` was disabled: {reason}"
        await events.append(tx, run.conversation_id, [error_event(DISABLED_CODE, text)])
    extra = {"automation_id": automation.id, "reason": reason}
    tx.after_commit(lambda: log.warning("automation disabled", extra=extra))


async def _count_failure(tx: Transaction, automation: Automation, detail: str) -> str:
    """Count a failed run; return why this disabled the automation, or an empty string."""
    failures = automation.failures + 1
    reason = ""
    after = msgspec.structs.replace(automation, failures=failures)
    if automation.is_enabled and failures >= automation.definition.max_failures:
        count = f"{failures} runs in a row have failed" if failures > 1 else "A run has failed"
        reason = f"{count}, the last one: {detail}"[:_MAX_DETAIL]
        after = disabled(after, reason)
        await RunTable.cancel_waiting(tx, automation.id, WAS_DISABLED, now())
    await AutomationTable.update(tx, after)
    return reason


def disabled(automation: Automation, reason: str) -> Automation:
    """Return an automation as disabled by the server."""
    return msgspec.structs.replace(
        automation, is_enabled=False, disabled_reason=reason, next_at=None, updated_at=now()
    )


def next_try(run: Run, automation: Automation) -> Run | None:
    """Return the retry of a failed run, or None if there is none left."""
    definition = automation.definition
    if run.attempt > definition.retries or not automation.is_enabled:
        return None
    wait = timedelta(seconds=definition.retry_seconds * 2 ** (run.attempt - 1))
    retry = new_run(automation, key=f"retry:{run.id}", source=Source.RETRY, due_at=now() + wait)
    return msgspec.structs.replace(retry, attempt=run.attempt + 1)


async def stop_run(messages: MessageQueue, run: Run) -> None:
    """Stop the agent of a run; a conversation that is still being started is deleted."""
    if run.conversation_id is None:
        return
    conversations = messages.conversations
    with contextlib.suppress(NotFound):
        view = await conversations.get(run.user_id, run.conversation_id, include_starting=True)
        if not view.conversation.is_ready and not view.conversation.start_failed:
            await conversations.delete(run.user_id, run.conversation_id)
            return
        # A message that is still queued would start the agent when its sandbox is back.
        with contextlib.suppress(AgentsvcError):
            await messages.cancel(run.user_id, run.conversation_id, run.id)
        # An agent that does not run or cannot be reached counts as stopped.
        with contextlib.suppress(AgentsvcError):
            await conversations.interrupt(run.user_id, run.conversation_id)
        if view.execution_status not in AT_WORK:
            with contextlib.suppress(AgentsvcError):
                agent = conversations.require_agent(view)
                await stop_once(agent, run.id)
