"""V0 types of events."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import BadRequest, stated
from agentsvc.http.v0.transcripts import Range
from agentsvc.http.wire import Int64

LIMIT_MAX: Final = 100


class EventSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a history: numbers from `start_id` to `end_id`, both belonging to it."""

    start_id: Int64 = 0
    """Number of the first event to return"""
    end_id: Int64 | None = None
    """Number of the last event to return; left out: to the end"""
    reverse: bool = False
    """Whether the latest event comes first"""
    limit: Annotated[int, stated(minimum=0, maximum=LIMIT_MAX)] = 20
    """Most events to return; what is beyond is told by `has_more`"""


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """AddMessageRequest: what the user says."""

    message: Annotated[str, Meta(min_length=1)]
    """The message; not empty"""


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has; an action has `args` beside it, an observation `content` and `extras`."""

    id: int
    """Number of the event in its conversation, counted from 0 without a gap"""
    timestamp: str
    """When it happened, ISO 8601, without an offset"""
    source: str
    """Where it comes from: `user`, `agent` or `environment`"""
    message: str
    """What it is, in words"""
    action: str | UnsetType = UNSET
    """Kind of the action, such as `run` or `message`; left out in an observation"""
    observation: str | UnsetType = UNSET
    """Kind of the observation, such as `run` or `agent_state_changed`; left out in an action"""
    args: dict[str, Any] | UnsetType = UNSET
    """Arguments of the action, by its kind; left out in an observation"""
    content: str | UnsetType = UNSET
    """What was observed, as text; left out in an action"""
    extras: dict[str, Any] | UnsetType = UNSET
    """Further members of the observation, by its kind; left out in an action"""
    cause: int | UnsetType | None = UNSET
    """Number of the action an observation answers; null or left out: it answers none"""
    success: bool | UnsetType | None = UNSET
    """Whether a command has ended well; null or left out: it was no command"""
    timeout: float | UnsetType | None = UNSET
    """Seconds a command may take; null or left out: as long as the agent server lets it"""
    tool_call_metadata: dict[str, Any] | UnsetType | None = UNSET
    """The tool call it stems from, with what the model answered; null or left out: none"""
    llm_metrics: dict[str, Any] | UnsetType | None = UNSET
    """What the conversation has cost so far, in US dollars and tokens; null or left out: not told"""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation's history."""

    events: list[HistoryEvent]
    """The events, in the order that was asked for"""
    has_more: bool
    """Whether there are further events"""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's whole history."""

    trajectory: list[HistoryEvent]
    """The events, the earliest first"""


def to_range(wanted: EventSearch) -> Range:
    """Return which events are wanted; raises BadRequest for a limit out of its bounds."""
    if not 0 <= wanted.limit <= LIMIT_MAX:
        raise BadRequest("Invalid limit")
    return Range(
        start=wanted.start_id, end=wanted.end_id, reverse=wanted.reverse, limit=wanted.limit
    )
