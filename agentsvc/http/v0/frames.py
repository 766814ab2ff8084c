"""Frames of the V0 event socket. Pure.

Frames are JSON already. Events have the numbers they have over HTTP.
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
_TOLD_LIVE: Final = frozenset({"run", _STATE_CHANGED, "recall", "error"})
_STAGES: Final = {
    StartStatus.PREPARING_REPOSITORY: "STATUS$RUNTIME_STARTED",
    StartStatus.RUNNING_SETUP_SCRIPT: "STATUS$SETTING_UP_WORKSPACE",
    StartStatus.SETTING_UP_GIT_HOOKS: "STATUS$SETTING_UP_GIT_HOOKS",
    StartStatus.SETTING_UP_SKILLS: "STATUS$SETTING_UP_WORKSPACE",
    StartStatus.STARTING_CONVERSATION: "STATUS$SETTING_UP_WORKSPACE",
}


class StatusFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a conversation runs, or how far its start has come; or its title."""

    status_update: bool = True
    """Always true; no event has it"""
    type: str = "info"
    """`error` if the conversation has failed, else `info`"""
    id: str | UnsetType = UNSET
    """The state, such as `STATUS$STARTING_RUNTIME`, `STATUS$READY`, `STATUS$STOPPED` or
    `STATUS$ERROR`; left out where the frame tells the title"""
    message: str = ""
    """Why the conversation has failed, or its id where the frame tells the title; else empty"""
    conversation_title: str | UnsetType = UNSET
    """The title; left out where the frame tells a state"""


class StateFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the agent that no event tells which the client is sent, so it has no number.

    `stopped` when the conversation is; else how the agent is, where it waits for a first message,
    when the conversation runs again, and for a client that comes back.
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
    """What could not be done of what this client has asked for."""

    error: bool = True
    """Always true; no event has it"""
    message: str
    """Why, for people"""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    source: str = ""
    action: Any = None
    observation: str = ""


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    observation: str = ""
    extras: dict[str, Any] = {}


_head = msgspec.json.Decoder(_Head)
_told_state = msgspec.json.Decoder(_Told)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def replay(history: Sequence[bytes], latest_event_id: int) -> Iterator[bytes]:
    """Yield the events behind a number; of the states only the last one, at the end.

    What an imported history has of the agent's looks into its memory, and of nothing, is left out.
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
    """Return an event as it is told when it happens, or None if it is not.

    What the environment tells is the agent's then, as far as it is of interest.
    """
    head = _head.decode(event)
    if head.source != "environment":
        return event
    if head.observation not in _TOLD_LIVE:
        return None
    members = _members.decode(event)
    members["source"] = msgspec.Raw(b'"agent"')
    return encode(members)


def error_frame(message: str) -> bytes:
    """Return the frame that tells one client what went wrong."""
    return encode(ErrorFrame(message=message))


def title_frame(view: ConversationView) -> bytes | None:
    """Return the frame that tells the title of a conversation, None while it has none."""
    title = view.conversation.title
    if title is None:
        return None
    return encode(StatusFrame(message=shown_id(view), conversation_title=title))


def last_state(history: Sequence[bytes], latest_event_id: int = -1) -> str | None:
    """Return the last state that events behind a number tell, None if they tell none."""
    for number in range(len(history) - 1, latest_event_id, -1):
        # Most events are far larger than a look for a word in them is worth decoding.
        if _STATE_MARK in history[number]:
            told = _told_state.decode(history[number])
            if told.observation == _STATE_CHANGED:
                return string_of(told.extras, "agent_state")
    return None


def state_frame(state: str) -> bytes:
    """Return the frame that tells a state that no event tells, so it is no event."""
    return encode(StateFrame(extras={"agent_state": state, "reason": ""}))


def status_frame(view: ConversationView, stage: StartStatus | None) -> bytes:
    """Return the frame that tells whether a conversation runs, or how far its start has come."""
    conversation, sandbox = view.conversation, view.sandbox
    match _told_status(view):
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


def _told_status(view: ConversationView) -> ConversationStatus:
    """Return the state of a conversation; a failure in its start is that of the start.

    When its sandbox has failed, the start is about to say why, and what to do.
    """
    status = status_of(view)
    is_starting = not view.conversation.is_ready and not view.conversation.start_failed
    has_failed = status is ConversationStatus.ERROR
    return ConversationStatus.STARTING if has_failed and is_starting else status


def _info(status_id: str) -> bytes:
    return encode(StatusFrame(id=status_id))


READY: Final = _info("STATUS$READY")
"""The frame that tells that all is well."""


def _failure(status_id: str, message: str) -> bytes:
    return encode(StatusFrame(type="error", id=status_id, message=message))
