"""The replay of a recorded conversation: its progress, and the agent's next turn. Pure.

In a replay, the recording stands in for the agent's language model: the agent receives the
recorded turns one by one and executes their tool calls, so that its context is complete when the
real model takes over. The id of each tool call contains the number of its step, so the progress of
a replay can be derived from the messages and events; no other state is stored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import new_id, now
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.domain import RecordedStep, StartOrder

MODEL: Final = "openai/replay"
"""The model name of the recording."""

_CALL_ID: Final = re.compile(r"replay_([0-9]{1,9})_[0-9]{1,9}")
_TITLE_CHARS: Final = 50


class AskedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in the history that the agent sends."""

    id: str = ""
    """Id of the tool call"""


class AskedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the history that the agent sends."""

    role: str
    """Role of the sender: `system`, `user`, `assistant` or `tool`"""
    content: Any = None
    """Text or parts of the message; null in a message of tool calls only"""
    tool_calls: list[AskedCall] | None = None
    """Tool calls of the message; null: none"""


class AskedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the agent, with its arguments."""

    name: str
    """Name of the tool"""
    parameters: dict[str, Any] = {}
    """JSON schema of its arguments"""


class AskedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The wrapper of a tool."""

    function: AskedFunction
    """The tool"""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request of an agent to its model, in the format of OpenAI's chat completions."""

    model: str
    """Ignored: the recording answers"""
    messages: list[AskedMessage]
    """History of the conversation"""
    tools: list[AskedTool] | None = None
    """Tools of the agent; null: none"""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    source: str = ""
    tool_call_id: str = ""


_EVENT: Final = msgspec.json.Decoder(_Event)


def recording_of(order: StartOrder) -> tuple[RecordedStep, ...]:
    """Return the steps to replay, followed by the order's first message; empty without a replay."""
    if not order.replay:
        return ()
    message = first_message(order)
    behind = () if message is None else (RecordedStep(message=message),)
    return (*order.replay, *behind)


def find_turn(steps: Sequence[RecordedStep], messages: Iterable[AskedMessage]) -> int | None:
    """Return the index of the agent's next turn, None after the last one."""
    at = -1
    for message in messages:
        if message.role != "assistant":
            continue
        if message.tool_calls:
            at = max(at, *(_step_of(call.id) for call in message.tool_calls))
        else:
            at = _after_text(steps, _next_turn(steps, at), at)
    return _next_turn(steps, at)


def is_last_turn(steps: Sequence[RecordedStep], at: int) -> bool:
    """Return whether the recording has no turn of the agent after a step."""
    return _next_turn(steps, at) is None


def interjection(steps: Sequence[RecordedStep], at: int) -> RecordedStep | None:
    """Return the message that the user sent while the agent ran a step, or None."""
    follows = steps[at + 1] if at + 1 < len(steps) else None
    is_said = follows is not None and follows.message is not None
    return follows if is_said and not steps[at].ends_run else None


def reached(steps: Sequence[RecordedStep], events: Iterable[bytes], at: int = -1) -> int:
    """Return the index of the last step in the events, or `at` if there is none after it."""
    for raw in events:
        event = _EVENT.decode(raw)
        if event.kind == "ActionEvent":
            at = max(at, _step_of(event.tool_call_id))
        elif event.kind == "MessageEvent" and event.source == "user":
            messages = (index for index in range(at + 1, len(steps)) if steps[index].message)
            at = next(messages, at)
        elif event.kind == "MessageEvent":
            at = _after_text(steps, at + 1, at)
    return at


def acts_as_recorded(events: Iterable[bytes], *, before: bool = False) -> bool:
    """Return whether the agent's last action is from the recording.

    `before` is the result for the events before these, used if these have no action.
    """
    done = [event for event in map(_EVENT.decode, events) if event.kind == "ActionEvent"]
    return _step_of(done[-1].tool_call_id) >= 0 if done else before


def has_messages_behind(steps: Sequence[RecordedStep], at: int) -> bool:
    """Return whether the recording has messages of the user after a step."""
    return any(step.message is not None for step in steps[at + 1 :])


def completion(steps: Sequence[RecordedStep], at: int, question: Question) -> dict[str, Any]:
    """Return a recorded turn as a chat completion."""
    step = steps[at]
    known = {tool.function.name: tool.function.parameters for tool in question.tools or ()}
    calls = [
        {
            "id": f"replay_{at}_{index}",
            "type": "function",
            "function": {
                "name": use.tool,
                "arguments": _arguments(use.arguments, known.get(use.tool, {})),
            },
        }
        for index, use in enumerate(step.uses)
    ]
    return _answer(question, step.text, calls)


def title_answer(steps: Sequence[RecordedStep], question: Question) -> dict[str, Any]:
    """Return the beginning of the first message as a chat completion, for a request for a title."""
    said = steps[0].message
    text = " ".join(part.text for part in said.content).strip() if said else ""
    return _answer(question, text.partition("\n")[0][:_TITLE_CHARS] or "Replay", [])


def _next_turn(steps: Sequence[RecordedStep], at: int) -> int | None:
    turns = (index for index in range(at + 1, len(steps)) if steps[index].message is None)
    return next(turns, None)


def _after_text(steps: Sequence[RecordedStep], index: int | None, at: int) -> int:
    """Return `index` if its step is a turn without tool calls, otherwise `at`."""
    if index is None or index >= len(steps) or steps[index].message or steps[index].uses:
        return at
    return index


def _step_of(call_id: str) -> int:
    found = _CALL_ID.fullmatch(call_id)
    return int(found[1]) if found else -1


def _arguments(recorded: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the arguments of a tool call, with those that the agent adds to each of its tools."""
    known = schema.get("properties", {})
    added = {"security_risk": "LOW", "summary": "Replayed from a recording"}
    arguments = dict(recorded) | {name: text for name, text in added.items() if name in known}
    return msgspec.json.encode(arguments).decode()


def _answer(question: Question, text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else "stop"
    return {
        "id": f"replay-{new_id()}",
        "object": "chat.completion",
        "created": int(now().timestamp()),
        "model": question.model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
