"""Rewriting of a conversation's history so that an agent in another sandbox can continue it. Pure.

The events of a conversation form a tree, and the agent's context is the branch it is on. The copy
has that branch as a list: without status events and truncated events, and with an error event for
each tool call without a result.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from agentsvc.base import dashed, decode_or_none, new_id
from agentsvc.conversations.event_table import StoredEvent

_STATUS_KINDS: Final = frozenset(
    {
        "ConversationErrorEvent",
        "ConversationStateUpdateEvent",
        "ServerErrorEvent",
        "StreamingDeltaEvent",
    }
)
"""Kinds of events that never become part of the agent's context."""

_ROOT: Final = "__root__"
"""The parent id of an event with which the agent started from scratch."""

_PROMPT_WITHIN: Final = 2
"""Agent servers look for the system prompt in this many events at the beginning."""

_PROMPT: Final = (
    "You are a software agent that works in a sandbox with the tools you are given. Do what the user"
    " asks for, and check what you did."
)
_ID: Final = re.compile(r"[0-9a-fA-F-]{8,64}")
_NO_RESULT: Final = (
    "The conversation was copied into another sandbox before this ended, and its result is not"
    " known here."
)
_MOVED: Final = (
    "This conversation is a copy of an earlier one and goes on in a new sandbox. What ran in the"
    " earlier one does not run here, and its terminal is gone. {files}"
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The members of an event that determine its place in the history."""

    id: str
    kind: str
    timestamp: str
    parent_id: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    truncated: bool = False


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a copied history: a stored one, or a new one."""

    id: str
    made: dict[str, Any] | None = None
    """The body of a new event; None for a stored one."""


_step: Final = msgspec.json.Decoder(Step)
_body: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_step(event: StoredEvent) -> Step | None:
    """Parse an event; return None if no agent server can have written it."""
    step = decode_or_none(event.body, _step)
    return step if step is not None and _ID.fullmatch(step.id) else None


def lines_of(steps: Iterable[Step]) -> list[HistoryLine]:
    """Return the agent's context, oldest event first, from all events in the order of time."""
    branch = [step for step in _branch(list(steps)) if step.kind not in _STATUS_KINDS]
    return list(_with_results([step for step in branch if not step.truncated]))


def with_prompt(lines: Sequence[HistoryLine], steps: Sequence[Step]) -> list[HistoryLine]:
    """Prepend a system prompt to the lines, unless they begin with one."""
    prompts = {step.id: step for step in steps if step.kind == "SystemPromptEvent"}
    if not lines or any(line.id in prompts for line in lines[:_PROMPT_WITHIN]):
        return list(lines)
    event_id = dashed(new_id())
    made = {
        "id": event_id,
        "timestamp": steps[0].timestamp,
        "source": "agent",
        "system_prompt": {"type": "text", "text": _PROMPT, "cache_prompt": False},
        "tools": [],
        "kind": "SystemPromptEvent",
    }
    return [HistoryLine(id=event_id, made=made), *lines]


def without_parent(body: bytes) -> bytes:
    """Return an event without its parent id; its parent is then the event before it."""
    event = _body.decode(body)
    event.pop("parent_id", None)
    return msgspec.json.encode(event)


def moved_id(conversation_id: str) -> str:
    """Return the id of the last event of a copied history, which marks its end."""
    return str(uuid5(UUID(conversation_id), "moved"))


def moved_event(
    conversation_id: str, timestamp: str, *, old_dir: str | None, new_dir: str
) -> dict[str, Any]:
    """Return the event that tells the agent of its new sandbox; `old_dir` None: without files."""
    if old_dir is None:
        files = f"Its files are not here: look at what is in {new_dir} before you rely on any."
    elif old_dir == new_dir:
        files = f"The files are where they were: {new_dir}"
    else:
        files = f"The files that were in {old_dir} are in {new_dir} now."
    text = {"type": "text", "text": _MOVED.format(files=files), "cache_prompt": False}
    return {
        "id": moved_id(conversation_id),
        "timestamp": timestamp,
        "source": "environment",
        "llm_message": {"role": "user", "content": [text], "thinking_blocks": []},
        "activated_skills": [],
        "kind": "MessageEvent",
    }


def _branch(steps: Sequence[Step]) -> list[Step]:
    """Return the branch that ends with the agent's last event, oldest event first."""
    numbers = {step.id: number for number, step in enumerate(steps)}
    before = _previous_in_context(steps)
    found: list[Step] = []
    seen: set[int] = set()
    at = before[len(steps)]
    while at is not None and at not in seen:
        seen.add(at)
        step = steps[at]
        found.append(step)
        if step.parent_id == _ROOT:
            break
        # Without a known parent, as from older agent servers, the event before is the parent.
        known = numbers.get(step.parent_id) if step.parent_id else None
        at = before[at] if known is None else known
    return found[::-1]


def _previous_in_context(steps: Sequence[Step]) -> list[int | None]:
    """Return for each event, and for the end, the index of the last context event before it."""
    found: list[int | None] = [None]
    for number, step in enumerate(steps):
        found.append(found[-1] if step.kind in _STATUS_KINDS else number)
    return found


def _with_results(branch: Sequence[Step]) -> Iterable[HistoryLine]:
    """Yield the events with a result for each tool call, and without results of unknown calls."""
    answered = {
        step.tool_call_id for step in branch if step.kind != "ActionEvent" and step.tool_call_id
    }
    called: set[str] = set()
    unanswered: list[Step] = []
    for step in branch:
        if step.tool_call_id is None:
            # Models require all results of tool calls before the next message.
            yield from map(_missing_result, unanswered)
            unanswered.clear()
            yield HistoryLine(id=step.id)
        elif step.kind == "ActionEvent":
            called.add(step.tool_call_id)
            if step.tool_call_id not in answered:
                unanswered.append(step)
            yield HistoryLine(id=step.id)
        elif step.tool_call_id in called:
            yield HistoryLine(id=step.id)
    yield from map(_missing_result, unanswered)


def _missing_result(action: Step) -> HistoryLine:
    event_id = dashed(new_id())
    return HistoryLine(
        id=event_id,
        made={
            "id": event_id,
            "timestamp": action.timestamp,
            "source": "agent",
            "tool_name": action.tool_name or "",
            "tool_call_id": action.tool_call_id,
            "error": _NO_RESULT,
            "kind": "AgentErrorEvent",
        },
    )
