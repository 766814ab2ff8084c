"""What clients of the older generation send to and ask of a conversation's history."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.errors import BadRequest
from agentsvc.http.v0.transcripts import Range
from agentsvc.http.wire import Int64

LIMIT_MAX: Final = 100


class EventSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a history: numbers from `start_id` to `end_id`, both belonging to it."""

    start_id: Int64 = 0
    end_id: Int64 | None = None
    reverse: bool = False
    limit: Int64 = 20


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """AddMessageRequest: what the user says."""

    message: Annotated[str, Meta(min_length=1)]


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has; an action has `args` beside it, an observation `content` and `extras`."""

    id: int
    timestamp: str
    source: str
    message: str
    action: str | UnsetType = UNSET
    observation: str | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    extras: dict[str, Any] | UnsetType = UNSET


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation's history."""

    events: list[HistoryEvent]
    has_more: bool


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's whole history."""

    trajectory: list[HistoryEvent]


MESSAGE_BODY: Final = msgspec.json.Decoder(MessageBody)


def to_range(wanted: EventSearch) -> Range:
    """Return which events are wanted; raises BadRequest for a limit out of its bounds."""
    if not 0 <= wanted.limit <= LIMIT_MAX:
        raise BadRequest("Invalid limit")
    return Range(
        start=wanted.start_id, end=wanted.end_id, reverse=wanted.reverse, limit=wanted.limit
    )
