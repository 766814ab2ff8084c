"""Frames of the V0 event socket, as encoded JSON. Pure.

Events have the same numbers as over HTTP.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.conversations import SANDBOX_GONE, ConversationView
from agentsvc.domain import StartStatus
from agentsvc.http.v0.agent_events import string_of
from agentsvc.http.v0.conversations import ConversationStatus, shown_id, status_of
from agentsvc.http.wire import encode

_STATE_CHANGED: Final = "agent_state_changed"
_STATE_MARK: Final = _STATE_CHANGED.encode()
_NOTHING: Final = "null"
_NOT_REPLAYED: Final = (_NOTHING, "recall")
_SENT_LIVE: Final = frozenset({"run", _STATE_CHANGED, "recall", "error"})
_STAGES: Final = {
    StartStatus.PREPARING_REPOSITORY: "STATUS$RUNTIME_STARTED",
    StartStatus.RUNNING_SETUP_SCRIPT: "STATUS$SETTING_UP_WORKSPACE",
    StartStatus.SETTING_UP_GIT_HOOKS: "STATUS$SETTING_UP_GIT_HOOKS",
    StartStatus.SETTING_UP_SKILLS: "STATUS$SETTING_UP_WORKSPACE",
    StartStatus.STARTING_CONVERSATION: "STATUS$SETTING_UP_WORKSPACE",
}


class StatusFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a conversation or stage of its start, or its title."""

    status_update: bool = True
    """Always true; events do not have this field"""
    type: str = "info"
    """`error` if the conversation has failed, otherwise `info`"""
    id: str | UnsetType = UNSET
    """Status, such as `STATUS$STARTING_RUNTIME`, `STATUS$READY`, `STATUS$STOPPED` or
    `STATUS$ERROR`; omitted in a frame with the title"""
    message: str = ""
    """Reason of a failure; in a frame with the title the id of the conversation; otherwise empty"""
    conversation_title: str | UnsetType = UNSET
    """Title of the conversation; omitted in a frame with a status"""


class StateFrame(msgspec.Struct, frozen=True, kw_only=True):
    """An agent state that is not sent to the client as an event, and so has no number.

    `stopped` when the conversation is stopped. Otherwise the present state: when the agent waits
    for a first message, when the conversation runs again, and for a client that reconnects.
    """

    observation: str = _STATE_CHANGED
    """Always `agent_state_changed`"""
    source: str = "agent"
    """Always `agent`"""
    content: str = ""
    """Always empty"""
    message: str = ""
    """Always empty"""
    extras: dict[str, str]
    """`agent_state`, and an empty `reason`"""


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True):
    """An error in response to a request of this client."""

    error: bool = True
    """Always true; events do not have this field"""
    message: str
    """Reason, for people"""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    source: str = ""
    action: Any = None
    observation: str = ""


class _StateEvent(msgspec.Struct, frozen=True, kw_only=True):
    observation: str = ""
    extras: dict[str, Any] = {}


_head = msgspec.json.Decoder(_Head)
_state_event = msgspec.json.Decoder(_StateEvent)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def replay(history: Sequence[bytes], latest_event_id: int) -> Iterator[bytes]:
    """Yield the events after a number; of the state changes only the last one, at the end.

    Skips the `recall` actions and `null` events of an imported history.
    """
    state: bytes | None = None
    for number in range(latest_event_id + 1, len(history)):
        event = history[number]
        head = _head.decode(event)
        if head.observation == _STATE_CHANGED:
            state = event
        elif head.action not in _NOT_REPLAYED and head.observation != _NOTHING:
            yield event
    if state is not None:
        yield state


def live(event: bytes) -> bytes | None:
    """Return an event in its form for live delivery, or None if it is not delivered live.

    Some observations of the environment are sent with the source `agent`, the others are dropped.
    """
    head = _head.decode(event)
    if head.source != "environment":
        return event
    if head.observation not in _SENT_LIVE:
        return None
    members = _members.decode(event)
    members["source"] = msgspec.Raw(b'"agent"')
    return encode(members)


def error_frame(message: str) -> bytes:
    """Return the frame that reports an error to one client."""
    return encode(ErrorFrame(message=message))


def title_frame(view: ConversationView) -> bytes | None:
    """Return the frame with the title of a conversation, or None if it has no title."""
    title = view.conversation.title
    if title is None:
        return None
    return encode(StatusFrame(message=shown_id(view), conversation_title=title))


def last_state(history: Sequence[bytes], latest_event_id: int = -1) -> str | None:
    """Return the last agent state in the events after a number, or None."""
    for number in range(len(history) - 1, latest_event_id, -1):
        # Searching for the word is far cheaper than decoding the event.
        if _STATE_MARK in history[number]:
            event = _state_event.decode(history[number])
            if event.observation == _STATE_CHANGED:
                return string_of(event.extras, "agent_state")
    return None


def state_frame(state: str) -> bytes:
    """Return the frame with an agent state that is not an event."""
    return encode(StateFrame(extras={"agent_state": state, "reason": ""}))


def status_frame(view: ConversationView, stage: StartStatus | None) -> bytes:
    """Return the frame with the status of a conversation, or the stage of its start."""
    conversation, sandbox = view.conversation, view.sandbox
    match _shown_status(view):
        case ConversationStatus.STARTING if not conversation.is_ready and stage in _STAGES:
            return _info(_STAGES[stage])
        case ConversationStatus.STARTING:
            return _info("STATUS$STARTING_RUNTIME")
        case ConversationStatus.RUNNING:
            return READY
        case ConversationStatus.STOPPED:
            return _info("STATUS$STOPPED")
        case ConversationStatus.ARCHIVED:
            return _failure("STATUS$ERROR_RUNTIME_DISCONNECTED", SANDBOX_GONE)
        case ConversationStatus.ERROR:
            reason = conversation.start_detail or (sandbox.reason if sandbox else "")
            return _failure("STATUS$ERROR", reason)


def _shown_status(view: ConversationView) -> ConversationStatus:
    """Return the status of a conversation, but STARTING for a failed sandbox during the start.

    The start task is about to report why the sandbox failed, and what to do.
    """
    status = status_of(view)
    is_starting = not view.conversation.is_ready and not view.conversation.start_failed
    has_failed = status is ConversationStatus.ERROR
    return ConversationStatus.STARTING if has_failed and is_starting else status


def _info(status_id: str) -> bytes:
    return encode(StatusFrame(id=status_id))


READY: Final = _info("STATUS$READY")
"""The frame for a running conversation."""


def _failure(status_id: str, message: str) -> bytes:
    return encode(StatusFrame(type="error", id=status_id, message=message))
