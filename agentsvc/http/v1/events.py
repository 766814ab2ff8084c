"""Stored events: wire structs and handlers. Only older clients get other bytes than were stored."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, ExportTooLarge, InvalidRequest, copy_to
from agentsvc.conversations import EventQuery
from agentsvc.http.keys import CONVERSATIONS, EVENTS, SDK_VERSION, user_of
from agentsvc.http.routes import EXAMPLE_ID, Routes, shown_as
from agentsvc.http.sdk_versions import reader_of
from agentsvc.http.v1.sandboxes import Ids, check_ids
from agentsvc.http.wire import (
    PAGE_MAX,
    Limit,
    Page,
    Time,
    find_time,
    parse_in_thread,
    raw_array,
    raw_json_response,
    raw_page,
)

WEBHOOK_EVENTS_MAX: Final = 10_000


class EventKind(StrEnum):
    """Kinds of events of an agent server."""

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
    """Sort orders of events."""

    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_DESC = "TIMESTAMP_DESC"


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of events."""

    kind: EventKind | None = msgspec.field(name="kind__eq", default=None)
    """Only events of this kind; omitted: all kinds"""
    timestamp_gte: Time | None = msgspec.field(name="timestamp__gte", default=None)
    """Only events at this time or later. Compared as a string with `timestamp`, so use the same
    format; omitted: all"""
    timestamp_lt: Time | None = msgspec.field(name="timestamp__lt", default=None)
    """Only events before this time. Compared as a string with `timestamp`, so use the same format;
    omitted: all"""


class EventSearch(EventFilter, frozen=True, kw_only=True):
    """Query of the search of events."""

    sort_order: EventSort = EventSort.TIMESTAMP
    """Sort order: `TIMESTAMP` lists the earliest event first, `TIMESTAMP_DESC` the latest"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


class OldEventFilter(EventFilter, frozen=True, kw_only=True):
    """Filters of events with the conversation in the query."""

    conversation_id: UUID = msgspec.field(name="conversation_id__eq")
    """Id of the conversation, with or without dashes"""


class OldEventSearch(EventSearch, frozen=True, kw_only=True):
    """Query of the search of events with the conversation in the query."""

    conversation_id: UUID = msgspec.field(name="conversation_id__eq")
    """Id of the conversation, with or without dashes"""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Fields common to all events; the agent server adds further fields depending on the kind."""

    id: str
    """Id of the event, assigned by the agent server"""
    timestamp: str
    """Time of the event by the clock of the sandbox, ISO 8601 without an offset"""
    source: str
    """Source of the event: `agent`, `user`, `environment` or `hook`"""
    kind: str
    """Kind of the event, such as `MessageEvent`; it determines the further fields"""


type EventsBody = Annotated[
    list[Annotated[msgspec.Raw, shown_as(StoredEvent)]], msgspec.Meta(max_length=WEBHOOK_EVENTS_MAX)
]


def to_query(
    wanted: EventFilter, *, sort: EventSort = EventSort.TIMESTAMP, logged: bool = False
) -> EventQuery:
    """Convert the filters to the query of the domain; raises InvalidRequest.

    Times are validated but stay strings, because events are compared by the stored strings.
    """
    find_time(wanted.timestamp_gte, "timestamp__gte")
    find_time(wanted.timestamp_lt, "timestamp__lt")
    is_descending = sort is EventSort.TIMESTAMP_DESC
    return copy_to(EventQuery, wanted, descending=is_descending, logged=logged)


def to_raw_events(body: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return the bytes of each event; raises InvalidRequest for a value that is not an object."""
    events = [bytes(raw) for raw in body]
    for i, event in enumerate(events):
        if not event.startswith(b"{"):
            raise InvalidRequest("Input should be an object", loc=("body", i), kind="dict_type")
    return events


PREFIX: Final = "/api/v1/conversation/{conversation_id}/events"
OLD_PREFIX: Final = "/api/v1/events"

_NO_CONVERSATION: Final = ""

ROUTES: Final = Routes()


@ROUTES.add(
    "GET",
    f"{PREFIX}/search",
    Page[StoredEvent],
    example={"kind__eq": "MessageEvent", "limit": 10},
)
async def search_events(
    request: web.Request, conversation_id: str, query: EventSearch
) -> web.Response:
    """Search the events of a conversation.

    Events have the form in which the agent server sent them. The page of an unknown conversation is
    empty. A page with large events may have fewer events than `limit`.
    """
    return await _search(request, conversation_id, query)


@ROUTES.add("GET", f"{PREFIX}/count")
async def count_events(request: web.Request, conversation_id: str, query: EventFilter) -> int:
    """Count the events of a conversation.

    Takes the filters of the search; 0 for an unknown conversation.
    """
    return await _count(request, conversation_id, to_query(query))


@ROUTES.add(
    "GET",
    PREFIX,
    list[StoredEvent | None],
    errors=(BadRequest, ExportTooLarge),
    example={"id": ["08cd748d-de9f-40da-ad3a-a06df58cf5bf"]},
)
async def get_events(request: web.Request, conversation_id: str, query: Ids) -> web.Response:
    """Get events of a conversation by id.

    The response has one item per `id`, in the same order, null for an unknown id. More than 32 MiB
    of events are refused (413): request fewer events at a time.
    """
    readable = await _readable(request, conversation_id)
    events = await request.app[EVENTS].find_many(readable, check_ids(query.ids))
    reader = reader_of(request.get(SDK_VERSION))
    bodies = [event.body if event else None for event in events]
    if reader is not None:
        bodies = [body and await parse_in_thread(body, reader.event) for body in bodies]
    return raw_json_response(raw_array(bodies))


@ROUTES.add(
    "GET",
    f"{OLD_PREFIX}/search",
    Page[StoredEvent],
    example={"conversation_id__eq": EXAMPLE_ID, "limit": 10},
)
async def search_events_of(request: web.Request, query: OldEventSearch) -> web.Response:
    """Search the events of a conversation (clients of 2025).

    The same as `conversation/{conversation_id}/events/search`, with the conversation in the query.
    """
    return await _search(request, query.conversation_id.hex, query)


@ROUTES.add("GET", f"{OLD_PREFIX}/count", example={"conversation_id__eq": EXAMPLE_ID})
async def count_events_of(request: web.Request, query: OldEventFilter) -> int:
    """Count the events in the agent server's log (clients of 2025).

    As `conversation/{conversation_id}/events/count`, with the conversation in the query, but only
    the events that the agent server's log has.
    """
    # Front ends of 2025 show the history as loaded when they have received this number of events
    # from the agent server's socket, which replays its log.
    return await _count(request, query.conversation_id.hex, to_query(query, logged=True))


async def _search(request: web.Request, conversation_id: str, wanted: EventSearch) -> web.Response:
    query = to_query(wanted, sort=wanted.sort_order)
    bodies, next_page_id = await request.app[EVENTS].search_bodies(
        await _readable(request, conversation_id), query, page_id=wanted.page_id, limit=wanted.limit
    )
    reader = reader_of(request.get(SDK_VERSION))
    shown = bodies if reader is None else await asyncio.to_thread(reader.events, bodies)
    return raw_json_response(raw_page(shown, next_page_id))


async def _count(request: web.Request, conversation_id: str, query: EventQuery) -> int:
    readable = await _readable(request, conversation_id)
    return await request.app[EVENTS].count(readable, query)


async def _readable(request: web.Request, conversation_id: str) -> str:
    """Return the id of a conversation of the caller; otherwise an id that has no events."""
    user_id = user_of(request)
    is_own = await request.app[CONVERSATIONS].is_of_user(user_id, conversation_id)
    return conversation_id if is_own else _NO_CONVERSATION
