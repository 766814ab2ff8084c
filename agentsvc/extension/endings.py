"""Determines from a conversation whether its agent has finished its task."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from agentsvc.base import decode_or_none
from agentsvc.conversations import ConversationView, StoredEvent
from agentsvc.domain import ExecutionStatus
from agentsvc.extension.reading import texts
from agentsvc.sandboxes import SandboxStatus

AT_WORK: Final = (ExecutionStatus.RUNNING, ExecutionStatus.WAITING_FOR_CONFIRMATION)
DONE: Final = ""
"""The result of `find_end` for an agent that has finished its task."""

_FAILURES: Final = {
    ExecutionStatus.ERROR: "The agent has failed",
    ExecutionStatus.STUCK: "The agent has repeated itself and was stopped",
}


def find_end(view: ConversationView) -> str | None:
    """Return why a conversation's agent failed, `DONE` if it has finished, None if neither."""
    conversation = view.conversation
    if conversation.start_failed:
        return f"The conversation did not start: {conversation.start_detail}"
    if not conversation.is_ready or conversation.has_run_queued:
        return None
    status = conversation.execution_status
    # It may have been asked to continue, without having reported that it runs.
    is_asked = conversation.facts.run_asked_at > conversation.facts.status_at
    if status is ExecutionStatus.FINISHED and not is_asked:
        return DONE
    reason = _FAILURES.get(status) if status else None
    if conversation.facts.budget_stop_cost is not None and status not in AT_WORK:
        reason = "The budget is used up"
    if view.sandbox_status in (SandboxStatus.ERROR, SandboxStatus.MISSING):
        cause = view.sandbox.reason if view.sandbox else "it is gone"
        reason = reason or f"The sandbox has failed: {cause}"
    return reason


def cost_of(view: ConversationView) -> float | None:
    """Return the cost of a conversation in US dollars, or None if it is unknown."""
    metrics = view.conversation.metrics
    return metrics.accumulated_cost if metrics else None


class _Message(msgspec.Struct, frozen=True):
    content: Any = None


class _Action(msgspec.Struct):
    kind: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    action: _Action | None = None
    llm_message: _Message = _Message()


def last_words(events: Iterable[StoredEvent]) -> str | None:
    """Return an agent's last message, given the newest events first; None if there is none."""
    for stored in events:
        event = decode_or_none(stored.body, _Event)
        if event is None:
            continue
        if event.action is not None and event.action.kind == "FinishAction":
            return event.action.message
        if stored.kind == "MessageEvent" and stored.source == "agent":
            return texts(event.llm_message.content)
    return None
