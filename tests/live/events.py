"""Reading the events of a conversation."""

from collections.abc import Iterable
from typing import Any

type Event = dict[str, Any]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    return [event for event in events if event["kind"] == kind]


def outputs(events: Iterable[Event]) -> list[str]:
    """Return what each command of the terminal printed, oldest first."""
    found = [event["observation"] for event in of_kind(events, "ObservationEvent")]
    return [_text(one["content"]) for one in found if one["kind"] == "TerminalObservation"]


def said(events: Iterable[Event], source: str) -> list[str]:
    """Return the messages of the user or the agent, oldest first."""
    return [
        _text(event["llm_message"]["content"])
        for event in of_kind(events, "MessageEvent")
        if event["source"] == source
    ]


def finishes(events: Iterable[Event]) -> list[str]:
    """Return the words with which the agent ended its runs, oldest first."""
    actions = [event["action"] for event in of_kind(events, "ActionEvent") if event["action"]]
    return [one["message"] for one in actions if one["kind"] == "FinishAction"]


def errors(events: Iterable[Event]) -> list[Event]:
    """Return what went wrong with the conversation itself, oldest first."""
    return of_kind(events, "ConversationErrorEvent")


def states(history: Iterable[Event]) -> list[str]:
    """Return the states of the agent that V0 tells of, oldest first."""
    changes = [event for event in history if event.get("observation") == "agent_state_changed"]
    return [event["extras"]["agent_state"] for event in changes]


def _text(content: Iterable[dict[str, Any]]) -> str:
    return "".join(item.get("text") or "" for item in content).strip()
