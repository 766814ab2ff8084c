"""Handlers of stored events. They are sent as the bytes that were stored, but to older clients."""

from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest
from agentsvc.http.keys import CONVERSATIONS, EVENTS, PRINCIPAL, SDK_VERSION
from agentsvc.http.routes import EXAMPLE_ID, Routes
from agentsvc.http.sdk_versions import reader_of
from agentsvc.http.v1.types_events import (
    EventFilter,
    EventSearch,
    OfConversation,
    OldEventFilter,
    OldEventSearch,
    StoredEvent,
    to_query,
)
from agentsvc.http.v1.types_sandboxes import Ids, check_ids
from agentsvc.http.wire import (
    Page,
    json_response,
    path_id,
    raw_array,
    raw_json_response,
    raw_page,
    read_query,
)

PREFIX: Final = "/api/v1/conversation/{conversation_id}/events"
OLD_PREFIX: Final = "/api/v1/events"

_NO_CONVERSATION: Final = ""

ROUTES: Final = Routes()


@ROUTES.add(
    "GET",
    f"{PREFIX}/search",
    Page[StoredEvent],
    query=EventSearch,
    example={"kind__eq": "MessageEvent", "limit": 10},
)
async def search_events(request: web.Request) -> web.Response:
    """Search the events of a conversation.

    In the form the agent server wrote them. An unknown conversation has no events: the page is
    empty.
    """
    return await _search(request, path_id(request, "conversation_id"))


@ROUTES.add("GET", f"{PREFIX}/count", int, query=EventFilter)
async def count_events(request: web.Request) -> web.Response:
    """Count the events of a conversation.

    With the filters of the search; 0 for an unknown conversation.
    """
    return await _count(request, path_id(request, "conversation_id"))


@ROUTES.add(
    "GET",
    PREFIX,
    list[StoredEvent | None],
    query=Ids,
    errors=(BadRequest,),
    example={"id": ["08cd748d-de9f-40da-ad3a-a06df58cf5bf"]},
)
async def get_events(request: web.Request) -> web.Response:
    """Get events of a conversation by id.

    A list of as many items as `id` is given, in their order, null for each that is unknown.
    """
    conversation_id = await _readable(request, path_id(request, "conversation_id"))
    ids = check_ids(read_query(request, Ids).ids)
    events = await request.app[EVENTS].find_many(conversation_id, ids)
    reader = reader_of(request.get(SDK_VERSION))
    bodies = (event.body if event else None for event in events)
    shown = (reader.event(body) if reader and body else body for body in bodies)
    return raw_json_response(raw_array(shown))


@ROUTES.add(
    "GET",
    f"{OLD_PREFIX}/search",
    Page[StoredEvent],
    query=OldEventSearch,
    example={"conversation_id__eq": EXAMPLE_ID, "limit": 10},
)
async def search_events_of(request: web.Request) -> web.Response:
    """Search the events of a conversation, as clients of 2025 do.

    The same as `conversation/{conversation_id}/events/search`, where the query names the
    conversation.
    """
    return await _search(request, read_query(request, OfConversation).conversation_id.hex)


@ROUTES.add(
    "GET",
    f"{OLD_PREFIX}/count",
    int,
    query=OldEventFilter,
    example={"conversation_id__eq": EXAMPLE_ID},
)
async def count_events_of(request: web.Request) -> web.Response:
    """Count the events in the agent server's log, as clients of 2025 do.

    The same as `conversation/{conversation_id}/events/count`, where the query names the
    conversation.
    """
    conversation_id = read_query(request, OfConversation).conversation_id.hex
    # Front ends of 2025 ask this and take the history for loaded when so many events have come
    # out of the agent server's socket, which replays its log.
    return await _count(request, conversation_id, logged=True)


async def _search(request: web.Request, conversation_id: str) -> web.Response:
    wanted = read_query(request, EventSearch)
    query = to_query(wanted, sort=wanted.sort_order)
    bodies, next_page_id = await request.app[EVENTS].search_bodies(
        await _readable(request, conversation_id),
        query,
        page_id=wanted.page_id,
        limit=wanted.limit,
    )
    reader = reader_of(request.get(SDK_VERSION))
    shown = bodies if reader is None else reader.events(bodies)
    return raw_json_response(raw_page(shown, next_page_id))


async def _count(
    request: web.Request, conversation_id: str, *, logged: bool = False
) -> web.Response:
    query = to_query(read_query(request, EventFilter), logged=logged)
    readable = await _readable(request, conversation_id)
    return json_response(await request.app[EVENTS].count(readable, query))


async def _readable(request: web.Request, conversation_id: str) -> str:
    """Return the id if the conversation is the caller's, else one that has no events."""
    user_id = request[PRINCIPAL].user_id
    is_own = await request.app[CONVERSATIONS].is_of_user(user_id, conversation_id)
    return conversation_id if is_own else _NO_CONVERSATION
