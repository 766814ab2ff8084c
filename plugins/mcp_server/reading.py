"""Summaries of conversations and events for agents."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from agentsvc.base import to_stored
from agentsvc.extension.agents import ExecutionStatus, StoredEvent
from agentsvc.extension.history import ConversationView
from agentsvc.extension.reading import member, texts

LONGEST_TEXT: Final = 8000
"""Maximum characters of an event's text; the resource has the whole event."""

LONGEST_EVENT: Final = 2 * 1024 * 1024
"""Maximum size of an event in bytes; larger ones are not parsed, since that takes long."""

SUMMARIZED_KINDS: Final = (
    "ACPToolCallEvent",
    "ActionEvent",
    "AgentErrorEvent",
    "ConversationErrorEvent",
    "InterruptEvent",
    "MessageEvent",
    "ObservationEvent",
    "PauseEvent",
    "UserRejectObservation",
)

_STOPPED: Final = (
    ExecutionStatus.FINISHED,
    ExecutionStatus.IDLE,
    ExecutionStatus.PAUSED,
    ExecutionStatus.WAITING_FOR_CONFIRMATION,
    ExecutionStatus.ERROR,
    ExecutionStatus.STUCK,
)


def about(view: ConversationView) -> dict[str, Any]:
    """Return the summary of a conversation."""
    found = view.conversation
    return {
        "conversation_id": found.id,
        "title": found.title,
        "execution_status": view.execution_status,
        "sandbox_status": view.sandbox_status,
        "start_error": found.start_detail if found.start_failed else None,
        "repository": found.selected_repository,
        "branch": found.selected_branch,
        "model": found.llm_model,
        "cost_dollars": found.metrics.accumulated_cost if found.metrics else 0.0,
        "queued_messages": found.queued_messages,
        "updated_at": to_stored(found.updated_at),
    }


def is_over(view: ConversationView) -> bool:
    """Return whether the agent has stopped, and does not continue by itself."""
    found = view.conversation
    if found.start_failed:
        return True
    if not found.is_ready or found.queued_messages:
        return False
    # No agent works in a sandbox that does not run.
    return view.execution_status is None or view.execution_status in _STOPPED


def summaries(events: Iterable[StoredEvent]) -> Iterator[dict[str, Any]]:
    """Yield a summary of each event of `SUMMARIZED_KINDS`."""
    for event in events:
        if event.kind in SUMMARIZED_KINDS:
            text = text_of(read_event(event))
            yield {
                "seq": event.seq,
                "kind": event.kind,
                "source": event.source,
                "at": event.timestamp,
                "text": text[:LONGEST_TEXT],
                "is_cut": len(text) > LONGEST_TEXT or len(event.body) > LONGEST_EVENT,
            }


def read_event(stored: StoredEvent) -> dict[str, Any]:
    """Parse an event; an invalid or too large one becomes an empty object."""
    if len(stored.body) > LONGEST_EVENT:
        return {}
    try:
        found = json.loads(stored.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def text_of(event: dict[str, Any]) -> str:
    """Return the text of an event."""
    match event.get("kind"):
        case "MessageEvent":
            return texts(member(event, "llm_message").get("content"))
        case "ActionEvent":
            said = texts(event.get("thought")) or str(event.get("summary") or "")
            return f"{said}\n{event.get('tool_name')}: {_json(event.get('action'))}".strip()
        case "ObservationEvent":
            result = member(event, "observation")
            return texts(result.get("content")) or _json(result)
        case _:
            names = ("title", "error", "detail", "rejection_reason", "content", "raw_output")
            return "\n".join(
                texts(event[name]) or _json(event[name]) for name in names if event.get(name)
            )


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""
