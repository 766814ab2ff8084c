"""Events of an agent server, and what the older generation is shown of them."""

import json
from typing import Any

import msgspec

from agentsvc.http.v0.event_types import HistoryEvent
from agentsvc.http.v0.translate import Translator


def translate(bodies: list[bytes]) -> list[HistoryEvent | msgspec.Raw]:
    translator = Translator()
    return [event for body in bodies for event in translator.feed(body)]


def shown(bodies: list[bytes]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(msgspec.json.encode(translate(bodies)))
    return events


def outline(event: dict[str, Any]) -> str:
    words = [event["source"], event.get("action") or event["observation"]]
    details = event.get("args") or event.get("extras") or {}
    words += [details[key] for key in ("agent_state", "confirmation_state") if key in details]
    if "cause" in event:
        words.append(f"for {event['cause']}")
    return " ".join(words)


def reported(kind: str, **members: Any) -> bytes:
    base = {"id": f"id-of-{kind}", "timestamp": "2026-01-01T00:00:00.000001", "kind": kind}
    return msgspec.json.encode({**base, **members})


def status(value: str) -> bytes:
    return reported("ConversationStateUpdateEvent", key="execution_status", value=value)


def action(fields: dict[str, Any] | None, **members: Any) -> bytes:
    event = {"id": "a1", "source": "agent", "tool_name": "tool", "tool_call_id": "call"}
    return reported("ActionEvent", **{**event, "action": fields, **members})


def observation(fields: dict[str, Any], **members: Any) -> bytes:
    return reported("ObservationEvent", **{"observation": fields, "action_id": "a1", **members})


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


def last(bodies: list[bytes]) -> dict[str, Any]:
    return shown(bodies)[-1]
