"""Converts events of the first generation to those of the second, for clients of both.

Each event becomes a state update `imported_event` that contains the original, followed, if the second
generation has an equivalent, by a twin: its clients display the twin, and an agent continues from
it. Clients of the first generation get the original and not the twin. Pure.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from agentsvc.base import now, parse_time, to_stored
from agentsvc.extension.history import IMPORTED_KEY
from agentsvc.extension.reading import member

from .model import Unreadable
from .records import id_within, is_storable
from .v0_tools import (
    ANSWERED,
    Fields,
    ToolCall,
    list_of,
    observation_of,
    string_of,
    text_part,
    use_of,
)

_STATUSES: Final = {
    "loading": "idle",
    "running": "running",
    "awaiting_user_input": "idle",
    "paused": "paused",
    "stopped": "paused",
    "finished": "finished",
    "error": "error",
    "rate_limited": "error",
    "awaiting_user_confirmation": "waiting_for_confirmation",
    "user_confirmed": "running",
}
_INVISIBLE: Final = frozenset({"null", "change_agent_state", "agent_state_changed"})
"""Events that agents of the first generation do not see."""
_VISIBLE: Final = frozenset(
    {
        "SystemPromptEvent",
        "MessageEvent",
        "ActionEvent",
        "ObservationEvent",
        "UserRejectObservation",
        "AgentErrorEvent",
    }
)
"""Events that agents of the second generation see."""
_RISKS: Final = {0: "LOW", 1: "MEDIUM", 2: "HIGH"}

type Twin = dict[str, Any] | None


class _KnownCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: the id of its event, and the call."""

    event_id: str
    use: ToolCall
    call_id: str


class Converter:
    """Converts the events of one conversation; add each of them once, in order.

    Raises Unreadable if the result exceeds `max_bytes`: small events may repeat the content of large ones.
    """

    def __init__(self, conversation_id: str, *, max_bytes: int) -> None:
        self.bodies: list[bytes] = []
        self.first_at: datetime | None = None
        self.last_at: datetime | None = None
        self._conversation_id = conversation_id
        self._bytes_left = max_bytes
        self._next_number = 0
        self._calls: dict[int, _KnownCall] = {}
        self._by_call: dict[str, _KnownCall] = {}
        self._seen: list[tuple[int, bool]] = []
        self._time = ""

    def add(self, number: int, event: Fields, original: msgspec.Raw) -> None:
        """Convert one event; missing numbers before it are filled with empty events."""
        self._set_time(event)
        while self._next_number < number:
            nothing = {
                "id": self._next_number,
                "timestamp": self._time,
                "source": "environment",
                "message": "",
                "action": "null",
                "args": {},
            }
            self._store(self._next_number, msgspec.Raw(msgspec.json.encode(nothing)), None)
        is_action = isinstance(event.get("action"), str)
        twin = self._action(number, event) if is_action else self._observation(number, event)
        name = string_of(event, "action") or string_of(event, "observation")
        if name not in _INVISIBLE:
            self._seen.append((number, twin is not None and twin["kind"] in _VISIBLE))
        self._store(number, original, twin)

    def _store(self, number: int, original: msgspec.Raw, twin: Twin) -> None:
        self._next_number = number + 1
        twin_id = id_within(self._conversation_id, f"twin {number}") if twin else None
        value = {"event": original, "twin": twin_id}
        whole = self._head(id_within(self._conversation_id, str(number)), "environment") | {
            "key": IMPORTED_KEY,
            "value": value,
            "kind": "ConversationStateUpdateEvent",
        }
        self._append(whole)
        if twin is not None and twin_id is not None:
            head = self._head(twin_id, str(twin.pop("source", "environment")))
            self._append(head | twin)

    def _append(self, event: Fields) -> None:
        self.bodies.append(msgspec.json.encode(event))
        self._bytes_left -= len(self.bodies[-1])
        if self._bytes_left < 0:
            raise Unreadable("has events that repeat too much of each other")

    def _head(self, event_id: str, source: str) -> dict[str, Any]:
        return {"id": event_id, "timestamp": self._time, "source": source}

    def _set_time(self, event: Fields) -> None:
        text = string_of(event, "timestamp")
        moment = parse_time(text) if len(text) < 64 and text.isprintable() else None  # noqa: PLR2004
        if moment is not None and is_storable(moment):
            self.first_at = self.first_at or moment
            self.last_at = moment
            self._time = text
        elif not self._time:
            self._time = to_stored(now()).removesuffix("Z")

    # Actions

    def _action(self, number: int, event: Fields) -> Twin:
        name, args = string_of(event, "action"), member(event, "args")
        if (convert := _CONVERTERS.get(name)) is not None:
            return convert(event, args)
        if name == "condensation":
            return self._condense(args)
        use = use_of(name, args)
        return None if use is None else self._use(number, event, args, use)

    def _use(self, number: int, event: Fields, args: Fields, use: ToolCall) -> Twin:
        call_id = _call_id(event) or f"imported-{number}"
        earlier = self._by_call.get(call_id)
        if earlier is not None:
            # The event is repeated after the user has confirmed the action.
            self._calls[number] = earlier
            return None
        call = _KnownCall(
            event_id=id_within(self._conversation_id, f"twin {number}"), use=use, call_id=call_id
        )
        self._calls[number] = self._by_call[call_id] = call
        arguments = {key: value for key, value in use.action.items() if key != "kind"}
        thought = string_of(args, "thought")
        risk = args.get("security_risk")
        return {
            "source": "agent",
            "thought": [text_part(thought)] if thought else [],
            "thinking_blocks": [],
            "action": use.action,
            "tool_name": use.tool,
            "tool_call_id": call_id,
            "tool_call": {
                "id": call_id,
                "name": use.tool,
                "arguments": msgspec.json.encode(arguments).decode(),
                "origin": "completion",
            },
            "llm_response_id": call.event_id,
            "security_risk": _RISKS.get(risk, "UNKNOWN") if isinstance(risk, int) else "UNKNOWN",
            "kind": "ActionEvent",
        }

    def _condense(self, args: Fields) -> Twin:
        listed = list_of(args, "forgotten_event_ids")
        first, last = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
        if not listed and isinstance(first, int) and isinstance(last, int):
            listed = list(range(max(first, 0), min(last + 1, self._next_number)))
        numbers = {
            number for number in listed if type(number) is int and number < self._next_number
        }
        offset = args.get("summary_offset")
        left = [is_seen for number, is_seen in self._seen if number not in numbers]
        return {
            "source": "environment",
            "forgotten_event_ids": [
                id_within(self._conversation_id, f"twin {number}") for number in sorted(numbers)
            ],
            "summary": string_of(args, "summary") or None,
            # The offset counts events that the agent sees, which are fewer here.
            "summary_offset": sum(left[: max(offset, 0)]) if type(offset) is int else None,
            "llm_response_id": f"imported-{self._next_number}",
            "kind": "Condensation",
        }

    # Observations

    def _observation(self, number: int, event: Fields) -> Twin:
        name = string_of(event, "observation")
        content = string_of(event, "content")
        extras = member(event, "extras")
        if name == "agent_state_changed":
            return _state(extras)
        cause = event.get("cause")
        call = self._calls.get(cause) if isinstance(cause, int) else None
        if call is None:
            return _without_action(name, content)
        self._by_call.pop(call.call_id, None)
        result = {"tool_name": call.use.tool, "tool_call_id": call.call_id}
        if name == "error":
            return {**result, "error": content, "kind": "AgentErrorEvent"}
        result["action_id"] = call.event_id
        if name == "user_rejected":
            return {**result, "rejection_reason": content, "kind": "UserRejectObservation"}
        built = observation_of(call.use, content, extras, event)
        return {**result, "observation": built, "kind": "ObservationEvent"}


def _message(event: Fields, args: Fields) -> Twin:
    is_agent = event.get("source") == "agent"
    images = [url for url in list_of(args, "image_urls") if isinstance(url, str)]
    content: list[dict[str, Any]] = [text_part(string_of(args, "content"))]
    if images:
        content.append({"type": "image", "cache_prompt": False, "image_urls": images})
    return _message_event("agent" if is_agent else "user", content)


def _message_event(source: str, content: list[dict[str, Any]]) -> Twin:
    role = "assistant" if source == "agent" else "user"
    return {
        "source": source,
        "llm_message": {"role": role, "content": content, "thinking_blocks": []},
        "activated_skills": [],
        "kind": "MessageEvent",
    }


def _system(_event: Fields, args: Fields) -> Twin:
    return {
        "source": "agent",
        "system_prompt": text_part(string_of(args, "content")),
        "tools": [],
        "kind": "SystemPromptEvent",
    }


def _state_request(_event: Fields, args: Fields) -> Twin:
    kind = {"paused": "PauseEvent", "stopped": "InterruptEvent"}.get(string_of(args, "agent_state"))
    return {"source": "user", "kind": kind} if kind else None


def _condensation_request(_event: Fields, _args: Fields) -> Twin:
    return {"source": "environment", "kind": "CondensationRequest"}


def _state(extras: Fields) -> Twin:
    status = _STATUSES.get(string_of(extras, "agent_state"))
    if status is None:
        return None
    return {"key": "execution_status", "value": status, "kind": "ConversationStateUpdateEvent"}


def _without_action(name: str, content: str) -> Twin:
    """Return the twin of an observation without a known action."""
    if name == "error":
        return {"code": "ImportedError", "detail": content, "kind": "ConversationErrorEvent"}
    if name not in ANSWERED or not content:
        return None
    return _message_event("environment", [text_part(content)])


def _call_id(event: Fields) -> str:
    text = string_of(member(event, "tool_call_metadata"), "tool_call_id")
    return text if text.isprintable() and len(text) <= 200 else ""  # noqa: PLR2004


_CONVERTERS: Final[Mapping[str, Callable[[Fields, Fields], Twin]]] = {
    "message": _message,
    "system": _system,
    "change_agent_state": _state_request,
    "condensation_request": _condensation_request,
}
