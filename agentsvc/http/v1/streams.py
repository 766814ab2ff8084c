"""Handlers of streams: the events of a conversation, and whatever changes for a user."""

from contextlib import aclosing
from typing import Annotated, Any, Final, assert_never

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.base import MAX_INT, BadRequest, CapacityExceeded, InvalidRequest, NotFound
from agentsvc.conversations import (
    Change,
    ConversationStream,
    ConversationView,
    Delta,
    Mark,
    StartTask,
    StoredEvent,
    UserStream,
)
from agentsvc.http.following import Follow, Item, Items, Message
from agentsvc.http.keys import PRINCIPAL, SDK_VERSION, STREAMS
from agentsvc.http.routes import Routes
from agentsvc.http.sdk_versions import Reader, reader_of
from agentsvc.http.streaming import DELETED, EVENT_STREAM, resync, serve
from agentsvc.http.urls import Links, links_of
from agentsvc.http.v1.types_conversations import from_view
from agentsvc.http.v1.types_sandboxes import from_sandbox
from agentsvc.http.v1.types_start import from_start_task
from agentsvc.http.v1.types_streams import OfConversation, OfUser
from agentsvc.http.wire import encode, path_id, read_query
from agentsvc.sandboxes import Sandbox

_LAST_EVENT_ID: Final = "Last-Event-ID"
_NUMBER_DIGITS: Final = 19

type EventNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go on: behind the event of this number, or from the beginning."""

    after: EventNumber | UnsetType = UNSET
    """Tell what comes behind the event of this number, which is the `id` of a message; left out:
    from the first event on. The header `Last-Event-ID` wins over it"""
    latest: EventNumber | UnsetType = UNSET
    """Begin with so many of the last events; left out: with the first one. `after` wins over it"""


ROUTES: Final = Routes()


@ROUTES.add(
    "GET",
    "/api/v1/conversation/{conversation_id}/events/stream",
    str,
    query=Resumption,
    media=EVENT_STREAM,
    errors=(BadRequest, NotFound, CapacityExceeded),
    example={"after": 0},
    is_stream=True,
    message=OfConversation,
    takes_query_key=True,
)
async def stream_events(request: web.Request) -> web.StreamResponse:
    """Follow the events of a conversation, as server-sent events or over a WebSocket.

    First what is stored, then what happens, to the end of the conversation, of the key or of the
    server. Server-sent events, or a WebSocket if the client asks for one. A client that connects
    again sends the last `id` it has, as `Last-Event-ID` or `after`.
    """
    conversation_id, after = path_id(request, "conversation_id"), _after(request)
    wanted = read_query(request, Resumption).latest
    latest = None if wanted is UNSET else wanted

    async def find() -> Items:
        user_id, streams = request[PRINCIPAL].user_id, request.app[STREAMS]
        stream = await streams.of_conversation(
            user_id, conversation_id, after=after, latest=latest if after < 0 else None
        )
        return _events(stream, reader_of(request.get(SDK_VERSION)))

    return await serve(request, find)


@ROUTES.add(
    "GET",
    "/api/v1/events/stream",
    str,
    media=EVENT_STREAM,
    errors=(BadRequest, CapacityExceeded),
    is_stream=True,
    message=OfUser,
    takes_query_key=True,
)
async def stream_changes(request: web.Request) -> web.StreamResponse:
    """Follow what changes of the user's, as server-sent events or over a WebSocket.

    Conversations, start tasks and sandboxes of the user, each as the operations show it, whenever
    it changes or is deleted. Nothing is told of the past: list them when `ready` has come, and
    connect and list again after `resync`. Server-sent events, or a WebSocket if the client asks for
    one. Such a client may have conversations told in it, too, up to 64, by saying
    `{"type": "follow", "stream": NAME, "conversation_id": ID, "after": N}`, with `latest` as their
    own streams have it; their messages have the name as `stream`, and `unfollow` ends one.
    """

    async def find() -> Items:
        stream = request.app[STREAMS].of_user(request[PRINCIPAL].user_id)
        return _changes(stream, links_of(request))

    async def find_more(wanted: Follow) -> Items:
        after = -1 if wanted.after is UNSET else wanted.after
        latest = None if wanted.latest is UNSET or after >= 0 else wanted.latest
        stream = await request.app[STREAMS].of_conversation(
            request[PRINCIPAL].user_id, wanted.conversation_id.hex, after=after, latest=latest
        )
        return _events(stream, reader_of(request.get(SDK_VERSION)))

    return await serve(request, find, find_more)


def _after(request: web.Request) -> int:
    """Return the number behind which to go on, -1 for the beginning; raises InvalidRequest.

    A browser that connects again sends the header, and the query it began with.
    """
    wanted = read_query(request, Resumption).after
    header = request.headers.get(_LAST_EVENT_ID, "").strip()
    if not header:
        return -1 if wanted is UNSET else wanted
    is_number = header.isascii() and header.isdigit() and len(header) <= _NUMBER_DIGITS
    if not is_number or int(header) > MAX_INT:
        raise InvalidRequest(
            "Input should be the id of an event of this stream",
            loc=("header", _LAST_EVENT_ID),
            kind="int_parsing",
        )
    return int(header)


async def _events(stream: ConversationStream, reader: Reader | None) -> Items:
    async with aclosing(stream.read()) as items:
        async for item in items:
            match item:
                case StoredEvent():
                    body = item.body if reader is None else reader.event(item.body)
                    if body is not None:
                        yield Message(type="event", data=body, id=item.seq)
                case Delta():
                    yield Message(type="delta", data=item.body)
                case Mark():
                    yield _from_mark(item, stream.last)
                case _:
                    assert_never(item)


async def _changes(stream: UserStream, links: Links) -> Items:
    async with aclosing(stream.read()) as items:
        async for item in items:
            match item:
                case Change():
                    yield _from_change(item, links)
                case Mark():
                    yield _from_mark(item, None)
                case _:
                    assert_never(item)


def _from_mark(mark: Mark, last: int | None) -> Item:
    match mark:
        case Mark.READY:
            return Message(type="ready")
        case Mark.BEAT:
            return None
        case Mark.RESYNC:
            return resync(last)
        case Mark.DELETED:
            return DELETED
        case _:
            assert_never(mark)


def _from_change(change: Change, links: Links) -> Message:
    match change.value:
        case ConversationView():
            shown: Any = from_view(change.value, links)
        case StartTask():
            shown = from_start_task(change.value, links)
        case Sandbox():
            shown = from_sandbox(change.value, links)
        case None:
            return Message(type=f"{change.subject}_deleted", data=encode({"id": change.id}))
        case _:
            assert_never(change.value)
    return Message(type=str(change.subject), data=encode(shown))
