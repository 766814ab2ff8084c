"""Stored events and webhooks on the V1 wire. An event itself stays the bytes it came as."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

import msgspec

from agentsvc.base import InvalidRequest
from agentsvc.conversations import EventQuery
from agentsvc.http.routes import shown_as
from agentsvc.http.wire import PAGE_MAX, Limit, Time, find_time

WEBHOOK_EVENTS_MAX: Final = 10_000


class EventKind(StrEnum):
    """The kinds of events an agent server writes."""

    ACTION = "ActionEvent"
    OBSERVATION = "ObservationEvent"
    MESSAGE = "MessageEvent"
    SYSTEM_PROMPT = "SystemPromptEvent"
    USER_REJECT = "UserRejectObservation"
    AGENT_ERROR = "AgentErrorEvent"
    CONVERSATION_ERROR = "ConversationErrorEvent"
    STATE_UPDATE = "ConversationStateUpdateEvent"
    PAUSE = "PauseEvent"
    INTERRUPT = "InterruptEvent"
    CONDENSATION = "Condensation"
    CONDENSATION_REQUEST = "CondensationRequest"
    CONDENSATION_SUMMARY = "CondensationSummaryEvent"
    HOOK_EXECUTION = "HookExecutionEvent"
    COMPLETION_LOG = "LLMCompletionLogEvent"
    STREAMING_DELTA = "StreamingDeltaEvent"
    TOKEN = "TokenEvent"  # noqa: S105  # the name of a kind, no secret
    ACP_TOOL_CALL = "ACPToolCallEvent"
    SECURITY_ANALYSIS = "SecurityAnalysisEvent"
    SERVER_ERROR = "ServerErrorEvent"


class EventSort(StrEnum):
    """The orders in which events can be listed."""

    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_DESC = "TIMESTAMP_DESC"


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of events."""

    kind: EventKind | None = msgspec.field(name="kind__eq", default=None)
    """Only events of this kind; left out: of all kinds"""
    timestamp_gte: Time | None = msgspec.field(name="timestamp__gte", default=None)
    """Only events of this moment or later, compared as text with their `timestamp`, so in the same
    form; left out: all"""
    timestamp_lt: Time | None = msgspec.field(name="timestamp__lt", default=None)
    """Only events before this moment, compared as text with their `timestamp`, so in the same form;
    left out: all"""


class EventSearch(EventFilter, frozen=True, kw_only=True):
    """The query of the search of events."""

    sort_order: EventSort = EventSort.TIMESTAMP
    """`TIMESTAMP` lists the earliest first, `TIMESTAMP_DESC` the latest"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


class OfConversation(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation, where the query names it and not the path."""

    conversation_id: UUID = msgspec.field(name="conversation_id__eq")


class OldEventFilter(EventFilter, frozen=True, kw_only=True):
    """The filters of events, where the query names the conversation."""

    conversation_id: UUID = msgspec.field(name="conversation_id__eq")
    """Id of the conversation, with or without dashes"""


class OldEventSearch(EventSearch, frozen=True, kw_only=True):
    """The query of the search of events, where it names the conversation."""

    conversation_id: UUID = msgspec.field(name="conversation_id__eq")
    """Id of the conversation, with or without dashes"""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has; the rest depends on its kind, and is what the agent server wrote."""

    id: str
    """Id of the event, as the agent server made it"""
    timestamp: str
    """When it happened, ISO 8601 by the clock of the sandbox, without an offset"""
    source: str
    """Where it comes from: `agent`, `user`, `environment` or `hook`"""
    kind: str
    """What it is, such as `MessageEvent`; it says which further fields there are"""


type EventsBody = Annotated[
    list[Annotated[msgspec.Raw, shown_as(StoredEvent)]], msgspec.Meta(max_length=WEBHOOK_EVENTS_MAX)
]


def to_query(
    wanted: EventFilter, *, sort: EventSort = EventSort.TIMESTAMP, logged: bool = False
) -> EventQuery:
    """Return the filters in the core's words; raises InvalidRequest.

    Times stay texts, since they compare as texts; they only have to be times.
    """
    find_time(wanted.timestamp_gte, "timestamp__gte")
    find_time(wanted.timestamp_lt, "timestamp__lt")
    return EventQuery(
        kind=wanted.kind,
        timestamp_gte=wanted.timestamp_gte,
        timestamp_lt=wanted.timestamp_lt,
        descending=sort is EventSort.TIMESTAMP_DESC,
        logged=logged,
    )


def to_raw_events(body: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return each event as it came; raises InvalidRequest for what is no object."""
    events = [bytes(raw) for raw in body]
    for i, event in enumerate(events):
        if not event.startswith(b"{"):
            raise InvalidRequest("Input should be an object", loc=("body", i), kind="dict_type")
    return events
