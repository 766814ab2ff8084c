"""Recorded trajectories a client wants replayed, read into steps of the core. Pure.

A trajectory is what this generation gives under `trajectory`, or a list of events of version 1.
What has no effect and is said to nobody is left out; an action that cannot be done again as it
was done is refused by name, before anything starts.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import BadRequest
from agentsvc.domain import Content, ContentKind, Message, RecordedStep, ToolUse
from agentsvc.http.v0.replay_actions import (
    NO_EFFECT,
    Fields,
    NotReplayableError,
    uses_of_action,
    uses_of_tool,
)
from agentsvc.http.wire import check_extremes

NOT_JSON: Final = "replay_json is not valid JSON"
NO_TRAJECTORY: Final = (
    "replay_json is not a recorded trajectory: it should be a list of events,"
    ' or an object with such a list under "trajectory"'
)
NO_MESSAGE: Final = "replay_json cannot be replayed: it should begin with a message of the user"
NO_TURN: Final = "replay_json cannot be replayed: the agent does nothing in it"
TOO_LONG: Final = "replay_json cannot be replayed: it has more than 2,000 steps"

_EVENT_MARKS: Final = ("action", "observation", "kind")
_STEPS_MAX: Final = 2000
_NOT_DONE: Final = frozenset({"rejected", "awaiting_confirmation"})


def read_recording(text: str) -> tuple[RecordedStep, ...]:
    """Return the steps of a recording; raises BadRequest with what is wrong with it."""
    try:
        value = msgspec.json.decode(text)
        check_extremes(text.encode())
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _refusal(NOT_JSON) from exc
    events = value.get("trajectory") if isinstance(value, dict) else value
    if not isinstance(events, list) or not events or not all(map(_is_event, events)):
        raise _refusal(NO_TRAJECTORY)
    is_newer = any(isinstance(event.get("kind"), str) for event in events)
    reader = _Newer(events) if is_newer else _Older()
    for number, event in enumerate(events):
        try:
            reader.add(event)
        except NotReplayableError as exc:
            text = f"replay_json cannot be replayed: event {number} {exc}"
            raise _refusal(text) from exc
    reader.steps.flush()
    return _checked(tuple(reader.steps.done))


def _checked(steps: tuple[RecordedStep, ...]) -> tuple[RecordedStep, ...]:
    if not steps or steps[0].message is None:
        raise _refusal(NO_MESSAGE)
    if all(step.message is not None for step in steps):
        raise _refusal(NO_TURN)
    if len(steps) > _STEPS_MAX:
        raise _refusal(TOO_LONG)
    return steps


class _Steps:
    """The steps so far, and what the agent has said since."""

    def __init__(self) -> None:
        self.done: list[RecordedStep] = []
        self._said: list[str] = []

    def user(self, text: str, image_urls: Sequence[str]) -> None:
        """Add what the user says."""
        self.flush()
        content = [Content(kind=ContentKind.TEXT, text=text)] if text else []
        if image_urls:
            content.append(Content(kind=ContentKind.IMAGE, image_urls=tuple(image_urls)))
        if content:
            self.done.append(RecordedStep(message=Message(content=tuple(content))))

    def agent(self, text: str) -> None:
        """Add what the agent says; it goes with what it does next, if it does something."""
        if text:
            self._said.append(text)

    def use(self, uses: tuple[ToolUse, ...]) -> None:
        """Add what the agent does."""
        text, self._said = "\n\n".join(self._said), []
        self.done.append(RecordedStep(text=text, uses=uses))

    def flush(self) -> None:
        """Let what the agent has said be a turn of its own."""
        if self._said:
            self.use(())


class _Older:
    """Reads events of this generation."""

    def __init__(self) -> None:
        self.steps = _Steps()

    def add(self, event: Fields) -> None:
        """Take in one event; raises NotReplayableError."""
        name, args = _text(event.get("action")), event.get("args") or {}
        if not name or event.get("observation") is not None or name in NO_EFFECT:
            return
        if not isinstance(args, dict):
            raise NotReplayableError("has no `args`")
        if name == "message":
            self._say(event.get("source"), args)
        elif _text(args.get("confirmation_state")) not in _NOT_DONE:
            uses = uses_of_action(name, args)
            self.steps.agent(_text(args.get("thought")))
            self.steps.use(uses)

    def _say(self, source: object, args: Fields) -> None:
        text = _text(args.get("content"))
        if source == "user":
            self.steps.user(text, _texts(args.get("image_urls")))
        else:
            self.steps.agent(text)


class _Newer:
    """Reads events of version 1."""

    def __init__(self, events: Sequence[Fields]) -> None:
        self.steps = _Steps()
        self._rejected = {
            _text(event.get("action_id"))
            for event in events
            if event.get("kind") == "UserRejectObservation"
        }

    def add(self, event: Fields) -> None:
        """Take in one event; raises NotReplayableError."""
        if event.get("kind") == "MessageEvent":
            self._say(event)
        elif event.get("kind") == "ActionEvent" and self._is_done(event):
            self._do(event)

    def _is_done(self, event: Fields) -> bool:
        return event.get("action") is not None and _text(event.get("id")) not in self._rejected

    def _say(self, event: Fields) -> None:
        message = event.get("llm_message")
        parts = _parts(message.get("content")) if isinstance(message, dict) else []
        text = "".join(_text(part.get("text")) for part in parts)
        if event.get("source") == "user":
            self.steps.user(text, [url for part in parts for url in _texts(part.get("image_urls"))])
        else:
            self.steps.agent(text)

    def _do(self, event: Fields) -> None:
        action, call = event["action"], event.get("tool_call")
        if not isinstance(action, dict):
            raise NotReplayableError("has no `action`")
        written = _text(call.get("arguments")) if isinstance(call, dict) else ""
        uses = uses_of_tool(_text(event.get("tool_name")), written, action)
        for part in _parts(event.get("thought")):
            self.steps.agent(_text(part.get("text")))
        self.steps.use(uses)


def _is_event(value: Any) -> bool:
    """Whether this is an event of either generation."""
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
