"""Parses recorded trajectories into replay steps of the domain. Pure.

A trajectory is the `trajectory` of V0, or a list of V1 events. Events without an effect are
skipped. An action that cannot be replayed exactly is refused with its name before the conversation
starts.
"""

from collections.abc import Container, Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import BadRequest, exceeds_value_limit
from agentsvc.domain import RecordedStep, ToolUse, message_of
from agentsvc.http.v0.replay_actions import (
    NO_EFFECT,
    Fields,
    NotReplayableError,
    tool_calls_of_v0_action,
    tool_calls_of_v1_action,
)
from agentsvc.http.wire import check_extremes

NOT_JSON: Final = "replay_json is not valid JSON"
NO_TRAJECTORY: Final = (
    "replay_json is not a recorded trajectory: it should be a list of events,"
    ' or an object with such a list under "trajectory"'
)
NO_MESSAGE: Final = "replay_json cannot be replayed: it should begin with a message of the user"
NO_TURN: Final = "replay_json cannot be replayed: the agent does nothing in it"
TOO_MANY_VALUES: Final = "replay_json cannot be replayed: it has too many values"
TOO_LONG: Final = "replay_json cannot be replayed: it has more than 2,000 steps"

_EVENT_MARKS: Final = ("action", "observation", "kind")
_STEPS_MAX: Final = 2000
_NOT_DONE: Final = frozenset({"rejected", "awaiting_confirmation"})


def read_recording(text: str) -> tuple[RecordedStep, ...]:
    """Parse the steps of a recording; raises BadRequest with the reason if it is invalid."""
    body = text.encode()
    if exceeds_value_limit(body):
        raise _refusal(TOO_MANY_VALUES)
    try:
        value = msgspec.json.decode(body)
        check_extremes(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _refusal(NOT_JSON) from exc
    events = value.get("trajectory") if isinstance(value, dict) else value
    if not isinstance(events, list) or not events or not all(map(_is_event, events)):
        raise _refusal(NO_TRAJECTORY)
    is_v1 = any(isinstance(event.get("kind"), str) for event in events)
    steps, rejected = _Steps(), _rejected_in(events)
    for number, event in enumerate(events):
        try:
            if is_v1:
                _add_v1(steps, event, rejected)
            else:
                _add_v0(steps, event)
        except NotReplayableError as exc:
            text = f"replay_json cannot be replayed: event {number} {exc}"
            raise _refusal(text) from exc
    steps.flush()
    return _checked(tuple(steps.done))


def _checked(steps: tuple[RecordedStep, ...]) -> tuple[RecordedStep, ...]:
    if not steps or steps[0].message is None:
        raise _refusal(NO_MESSAGE)
    if all(step.message is not None for step in steps):
        raise _refusal(NO_TURN)
    if len(steps) > _STEPS_MAX:
        raise _refusal(TOO_LONG)
    return steps


class _Steps:
    """Collects steps; text of the agent is buffered until its next action."""

    def __init__(self) -> None:
        self.done: list[RecordedStep] = []
        self._said: list[str] = []

    def say(self, source: object, text: str, image_urls: Sequence[str]) -> None:
        """Add a message of the user or the agent."""
        if source != "user":
            self.say_of_agent(text)
            return
        self.flush()
        message = message_of(text, image_urls)
        if message.content:
            self.done.append(RecordedStep(message=message))

    def say_of_agent(self, text: str) -> None:
        """Buffer text of the agent; it becomes part of the step with its next action."""
        if text:
            self._said.append(text)

    def use(self, uses: tuple[ToolUse, ...]) -> None:
        """Add a step with tool calls of the agent and its buffered text."""
        text, self._said = "\n\n".join(self._said), []
        self.done.append(RecordedStep(text=text, uses=uses))

    def flush(self) -> None:
        """Add buffered text of the agent as a step without tool calls."""
        if self._said:
            self.use(())


def _add_v0(steps: _Steps, event: Fields) -> None:
    """Add a V0 event; raises NotReplayableError."""
    name, args = _text(event.get("action")), event.get("args") or {}
    if not name or event.get("observation") is not None or name in NO_EFFECT:
        return
    if not isinstance(args, dict):
        raise NotReplayableError("has no `args`")
    if name == "message":
        steps.say(event.get("source"), _text(args.get("content")), _texts(args.get("image_urls")))
    elif _text(args.get("confirmation_state")) not in _NOT_DONE:
        uses = tool_calls_of_v0_action(name, args)
        steps.say_of_agent(_text(args.get("thought")))
        steps.use(uses)


def _add_v1(steps: _Steps, event: Fields, rejected: Container[str]) -> None:
    """Add a V1 event; raises NotReplayableError."""
    if event.get("kind") == "MessageEvent":
        message = event.get("llm_message")
        parts = _parts(message.get("content")) if isinstance(message, dict) else []
        text = "".join(_text(part.get("text")) for part in parts)
        urls = [url for part in parts for url in _texts(part.get("image_urls"))]
        steps.say(event.get("source"), text, urls)
    elif event.get("kind") == "ActionEvent" and _text(event.get("id")) not in rejected:
        _add_action(steps, event)


def _add_action(steps: _Steps, event: Fields) -> None:
    action, call = event.get("action"), event.get("tool_call")
    if action is None:
        return
    if not isinstance(action, dict):
        raise NotReplayableError("has no `action`")
    written = _text(call.get("arguments")) if isinstance(call, dict) else ""
    uses = tool_calls_of_v1_action(_text(event.get("tool_name")), written, action)
    for part in _parts(event.get("thought")):
        steps.say_of_agent(_text(part.get("text")))
    steps.use(uses)


def _rejected_in(events: Sequence[Fields]) -> set[str]:
    """Return the ids of the V1 actions that the user rejected."""
    return {
        _text(event.get("action_id"))
        for event in events
        if event.get("kind") == "UserRejectObservation"
    }


def _is_event(value: Any) -> bool:
    """Whether a value is a V0 or V1 event."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(value.get(mark), str) for mark in _EVENT_MARKS)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _parts(value: object) -> list[Fields]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _refusal(message: str) -> BadRequest:
    return BadRequest(
        message, extra={"status": "error", "message": message, "msg_id": "STATUS$ERROR"}
    )
