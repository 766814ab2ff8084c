"""Rewrites a conversation's history so that an agent in another sandbox can continue it. Pure.

The events of a conversation make a tree, of which the agent knows the branch it is on. A copy has
that branch as a plain list: without what agent servers only tell, without what cannot be read, and
with an end for each tool call that has none.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from agentsvc.base import dashed, decode_or_none, new_id
from agentsvc.conversations.event_table import StoredEvent

_TOLD_ONLY: Final = frozenset(
    {
        "ConversationErrorEvent",
        "ConversationStateUpdateEvent",
        "ServerErrorEvent",
        "StreamingDeltaEvent",
    }
)
"""What never becomes a part of what the agent knows."""

_ROOT: Final = "__root__"
"""The parent of an event with which the agent began anew."""

_PROMPT_WITHIN: Final = 2
"""Among how many events at the beginning agent servers look for the instructions."""

_PROMPT: Final = (
    "You are a software agent that works in a sandbox with the tools you are given. Do what the user"
    " asks for, and check what you did."
)
_ID: Final = re.compile(r"[0-9a-fA-F-]{8,64}")
_OPEN_CALL: Final = (
    "The conversation was copied into another sandbox before this ended, and its result is not"
    " known here."
)
_MOVED: Final = (
    "This conversation is a copy of an earlier one and goes on in a new sandbox. What ran in the"
    " earlier one does not run here, and its terminal is gone. {files}"
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of an event to see where it belongs."""

    id: str
    kind: str
    timestamp: str
    parent_id: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    truncated: bool = False


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a copied history: one that there was, or one that ends a tool call."""

    id: str
    made: dict[str, Any] | None = None
    """The event itself where there was none."""


_step: Final = msgspec.json.Decoder(Step)
_body: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_step(event: StoredEvent) -> Step | None:
    """Return what counts of an event, or None for one that no agent server can have written."""
    step = decode_or_none(event.body, _step)
    return step if step is not None and _ID.fullmatch(step.id) else None


def lines_of(steps: Iterable[Step]) -> list[HistoryLine]:
    """Return what the agent knew, oldest first, given all events in the order of their times."""
    branch = [step for step in _branch(list(steps)) if step.kind not in _TOLD_ONLY]
    return list(_closed([step for step in branch if not step.truncated]))


def with_prompt(lines: Sequence[HistoryLine], steps: Sequence[Step]) -> list[HistoryLine]:
    """Return the lines behind instructions for the agent, made where it has none to begin with."""
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
    """Return an event without its place in the tree; it follows the one before it."""
    event = _body.decode(body)
    event.pop("parent_id", None)
    return msgspec.json.encode(event)


def moved_id(conversation_id: str) -> str:
    """Return the id of the last event of a copied history, by which it is found again."""
    return str(uuid5(UUID(conversation_id), "moved"))


def moved_event(
    conversation_id: str, timestamp: str, *, old_dir: str | None, new_dir: str
) -> dict[str, Any]:
    """Return the event that tells the agent of its new environment; None where no files came."""
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
    """Return the events from the first one to the last on which the agent went on."""
    numbers = {step.id: number for number, step in enumerate(steps)}
    before = _last_real(steps)
    found: list[Step] = []
    seen: set[int] = set()
    at = before[len(steps)]
    while at is not None and at not in seen:
        seen.add(at)
        step = steps[at]
        found.append(step)
        if step.parent_id == _ROOT:
            break
        # What was never told, and what older agent servers wrote, follows the one before it.
        known = numbers.get(step.parent_id) if step.parent_id else None
        at = before[at] if known is None else known
    return found[::-1]


def _last_real(steps: Sequence[Step]) -> list[int | None]:
    """Return for each event, and for the end, which one before it the agent knows of."""
    found: list[int | None] = [None]
    for number, step in enumerate(steps):
        found.append(found[-1] if step.kind in _TOLD_ONLY else number)
    return found


def _closed(branch: Sequence[Step]) -> Iterable[HistoryLine]:
    """Yield the events with each tool call answered, and without answers to no call."""
    answered = {
        step.tool_call_id for step in branch if step.kind != "ActionEvent" and step.tool_call_id
    }
    called: set[str] = set()
    due: list[Step] = []
    for step in branch:
        if step.tool_call_id is None:
            # Models want all answers before anything else is said.
            yield from map(_closing, due)
            due.clear()
            yield HistoryLine(id=step.id)
        elif step.kind == "ActionEvent":
            called.add(step.tool_call_id)
            if step.tool_call_id not in answered:
                due.append(step)
            yield HistoryLine(id=step.id)
        elif step.tool_call_id in called:
            yield HistoryLine(id=step.id)
    yield from map(_closing, due)


def _closing(action: Step) -> HistoryLine:
    event_id = dashed(new_id())
    return HistoryLine(
        id=event_id,
        made={
            "id": event_id,
            "timestamp": action.timestamp,
            "source": "agent",
            "tool_name": action.tool_name or "",
            "tool_call_id": action.tool_call_id,
            "error": _OPEN_CALL,
            "kind": "AgentErrorEvent",
        },
    )
