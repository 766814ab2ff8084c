"""Streams: the events of a conversation, and whatever changes for a user."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.base import MAX_INT, BadRequest, CapacityExceeded, InvalidRequest, NotFound
from agentsvc.conversations import (
    ConversationStream,
    ConversationView,
    Delta,
    Mark,
    StartTask,
    StoredEvent,
    StreamedChange,
)
from agentsvc.http.following import Follow, Item, Items, StreamItem
from agentsvc.http.keys import SDK_VERSION, STREAMS, user_of
from agentsvc.http.routes import Routes
from agentsvc.http.sdk_versions import EventReader, reader_of
from agentsvc.http.streaming import DELETED, EVENT_STREAM, resync, serve
from agentsvc.http.urls import Links, links_of
from agentsvc.http.v1.conversations import AppConversation, from_view
from agentsvc.http.v1.events import StoredEvent as ShownEvent
from agentsvc.http.v1.sandboxes import SandboxInfo, from_sandbox
from agentsvc.http.v1.start_tasks import StartTaskView, from_start_task
from agentsvc.http.wire import encode, read_apart
from agentsvc.sandboxes import Sandbox


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """An object without members."""


class Id(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted."""

    id: str
    """Its id, as the operations have it"""


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client has to go on."""

    last_event_id: int | None
    """Number of the last event that is sure; go on behind it. Null: begin anew"""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream is over."""

    reason: Literal["deleted", "not_authenticated", "not_found", "too_many_streams"]
    """The conversation was deleted, or the key counts no more; or why what was asked for in a
    WebSocket is refused"""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What is told."""


class _OfStream(_Message, frozen=True, kw_only=True):
    """What is told of one of several streams, perhaps."""

    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""


class ReadyMessage(_OfStream, frozen=True, kw_only=True, tag="ready"):
    """All that was stored has been told; what follows is new."""

    data: Nothing
    """Nothing"""


class ResyncMessage(_OfStream, frozen=True, kw_only=True, tag="resync"):
    """The last message: the client was too slow, or is ahead of the server, and may miss something.

    A WebSocket has no such message for its own stream: it is closed with 4008, and the number as the
    reason.
    """

    data: Last
    """Where to go on"""


class EndMessage(_OfStream, frozen=True, kw_only=True, tag="end"):
    """The last message; a WebSocket's own stream ends by a close with 4004 or 4001 instead."""

    data: Reason
    """Why the stream is over"""


class EventMessage(_OfStream, frozen=True, kw_only=True, tag="event"):
    """An event of the conversation."""

    id: int
    """Number of the event in its conversation, counted from 0; `after` takes it"""
    data: ShownEvent
    """The event"""


class DeltaMessage(_OfStream, frozen=True, kw_only=True, tag="delta"):
    """A piece of what the model is saying, told live only; the event with all of it comes later."""

    data: dict[str, Any]
    """The piece, as the agent server sends it in a `StreamingDeltaEvent`"""


class ConversationMessage(_Message, frozen=True, kw_only=True, tag="conversation"):
    """A conversation that is new or has changed."""

    data: AppConversation
    """The conversation as it is now"""


class StartTaskMessage(_Message, frozen=True, kw_only=True, tag="start_task"):
    """A start task that is new or has changed."""

    data: StartTaskView
    """The task as it is now"""


class SandboxMessage(_Message, frozen=True, kw_only=True, tag="sandbox"):
    """A sandbox that is new or has changed."""

    data: SandboxInfo
    """The sandbox as it is now; `usage` is null"""


class ConversationDeletedMessage(_Message, frozen=True, kw_only=True, tag="conversation_deleted"):
    """A conversation that was deleted."""

    data: Id
    """Which one"""


class StartTaskDeletedMessage(_Message, frozen=True, kw_only=True, tag="start_task_deleted"):
    """A start task that was deleted."""

    data: Id
    """Which one"""


class SandboxDeletedMessage(_Message, frozen=True, kw_only=True, tag="sandbox_deleted"):
    """A sandbox that was deleted."""

    data: Id
    """Which one"""


type OfConversation = EventMessage | DeltaMessage | ReadyMessage | ResyncMessage | EndMessage
type OfUser = (
    ConversationMessage
    | StartTaskMessage
    | SandboxMessage
    | ConversationDeletedMessage
    | StartTaskDeletedMessage
    | SandboxDeletedMessage
    | EventMessage
    | DeltaMessage
    | ReadyMessage
    | ResyncMessage
    | EndMessage
)

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
    media=EVENT_STREAM,
    errors=(BadRequest, NotFound, CapacityExceeded),
    example={"after": 0},
    is_stream=True,
    message=OfConversation,
    takes_query_key=True,
)
async def stream_events(
    request: web.Request, conversation_id: str, query: Resumption
) -> web.StreamResponse:
    """Follow the events of a conversation, as server-sent events or over a WebSocket.

    First what is stored, then what happens, to the end of the conversation, of the key or of the
    server. Server-sent events, or a WebSocket if the client asks for one. A client that connects
    again sends the last `id` it has, as `Last-Event-ID` or `after`.
    """
    after = _after(request, query)
    return await serve(request, lambda: _find_events(request, conversation_id, after, query.latest))


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
        changes = request.app[STREAMS].of_user(user_of(request))
        return _changes(changes, links_of(request))

    async def find_more(wanted: Follow) -> Items:
        after = -1 if wanted.after is UNSET else wanted.after
        return await _find_events(request, wanted.conversation_id.hex, after, wanted.latest)

    return await serve(request, find, find_more)


async def _find_events(
    request: web.Request, conversation_id: str, after: int, latest: int | UnsetType
) -> Items:
    stream = await request.app[STREAMS].of_conversation(
        user_of(request),
        conversation_id,
        after=after,
        latest=None if latest is UNSET or after >= 0 else latest,
    )
    return _events(stream, reader_of(request.get(SDK_VERSION)))


def _after(request: web.Request, query: Resumption) -> int:
    """Return the number behind which to go on, -1 for the beginning; raises InvalidRequest.

    A browser that connects again sends the header, and the query it began with.
    """
    header = request.headers.get(_LAST_EVENT_ID, "").strip()
    if not header:
        return -1 if query.after is UNSET else query.after
    is_number = header.isascii() and header.isdigit() and len(header) <= _NUMBER_DIGITS
    if not is_number or int(header) > MAX_INT:
        raise InvalidRequest(
            "Input should be the id of an event of this stream",
            loc=("header", _LAST_EVENT_ID),
            kind="int_parsing",
        )
    return int(header)


async def _events(stream: ConversationStream, reader: EventReader | None) -> Items:
    async with aclosing(stream.read()) as items:
        async for item in items:
            match item:
                case StoredEvent():
                    body = item.body
                    shown = body if reader is None else await read_apart(body, reader.event)
                    if shown is not None:
                        yield StreamItem(type="event", data=shown, id=item.seq)
                case Delta():
                    yield StreamItem(type="delta", data=item.body)
                case Mark():
                    yield _from_mark(item, stream.last)
                case _:
                    assert_never(item)


async def _changes(changes: AsyncGenerator[StreamedChange | Mark, None], links: Links) -> Items:
    async with aclosing(changes) as items:
        async for item in items:
            yield _from_mark(item, None) if isinstance(item, Mark) else _from_change(item, links)


def _from_mark(mark: Mark, last: int | None) -> Item:
    return resync(last) if mark is Mark.RESYNC else _OF_MARKS[mark]


_OF_MARKS: Final[dict[Mark, Item]] = {
    Mark.READY: StreamItem(type="ready"),
    Mark.BEAT: None,
    Mark.DELETED: DELETED,
}


def _from_change(change: StreamedChange, links: Links) -> StreamItem:
    match change.value:
        case ConversationView():
            shown: Any = from_view(change.value, links)
        case StartTask():
            shown = from_start_task(change.value, links)
        case Sandbox():
            shown = from_sandbox(change.value, links)
        case None:
            return StreamItem(type=f"{change.subject}_deleted", data=encode({"id": change.id}))
        case _:
            assert_never(change.value)
    return StreamItem(type=str(change.subject), data=encode(shown))
