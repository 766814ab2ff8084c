"""Streams: events of a conversation, and changes to a user's conversations and sandboxes."""

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
from agentsvc.http.wire import encode, parse_in_thread
from agentsvc.sandboxes import Sandbox


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """An empty object."""


class Id(msgspec.Struct, frozen=True, kw_only=True):
    """Id of a deleted object."""

    id: str
    """Id of the deleted object"""


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """Position from which a client has to resume."""

    last_event_id: int | None
    """Number of the last event known to be sent; resume after it. Null: start from the beginning"""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason for the end of a stream."""

    reason: Literal["deleted", "not_authenticated", "not_found", "too_many_streams"]
    """`deleted`: the conversation was deleted. `not_authenticated`: the key is not valid any more.
    The others refuse a `follow` in a WebSocket"""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message of a stream."""


class _OfStream(_Message, frozen=True, kw_only=True):
    """A message of a stream that may share a WebSocket with others."""

    stream: str | UnsetType = UNSET
    """Name of the stream, if the WebSocket carries several streams"""


class ReadyMessage(_OfStream, frozen=True, kw_only=True, tag="ready"):
    """All stored events have been sent; what follows is new."""

    data: Nothing
    """An empty object"""


class ResyncMessage(_OfStream, frozen=True, kw_only=True, tag="resync"):
    """The last message: the client was too slow or ahead of the server and may have missed events.

    A WebSocket does not send it for its own stream: it is closed with the code 4008 and the number
    as the reason.
    """

    data: Last
    """Position from which to resume"""


class EndMessage(_OfStream, frozen=True, kw_only=True, tag="end"):
    """The last message. For its own stream a WebSocket is closed with code 4004 or 4001 instead."""

    data: Reason
    """Why the stream ended"""


class EventMessage(_OfStream, frozen=True, kw_only=True, tag="event"):
    """An event of the conversation."""

    id: int
    """Number of the event in its conversation, starting at 0; pass it as `after` to resume"""
    data: ShownEvent
    """The event"""


class DeltaMessage(_OfStream, frozen=True, kw_only=True, tag="delta"):
    """A delta of a streamed model response, sent live only; the complete event follows later."""

    data: dict[str, Any]
    """The delta, as the agent server sends it in a `StreamingDeltaEvent`"""


class ConversationMessage(_Message, frozen=True, kw_only=True, tag="conversation"):
    """A new or changed conversation."""

    data: AppConversation
    """Present state of the conversation"""


class StartTaskMessage(_Message, frozen=True, kw_only=True, tag="start_task"):
    """A new or changed start task."""

    data: StartTaskView
    """Present state of the start task"""


class SandboxMessage(_Message, frozen=True, kw_only=True, tag="sandbox"):
    """A new or changed sandbox."""

    data: SandboxInfo
    """Present state of the sandbox; `usage` is null"""


class ConversationDeletedMessage(_Message, frozen=True, kw_only=True, tag="conversation_deleted"):
    """A deleted conversation."""

    data: Id
    """Id of the conversation"""


class StartTaskDeletedMessage(_Message, frozen=True, kw_only=True, tag="start_task_deleted"):
    """A deleted start task."""

    data: Id
    """Id of the start task"""


class SandboxDeletedMessage(_Message, frozen=True, kw_only=True, tag="sandbox_deleted"):
    """A deleted sandbox."""

    data: Id
    """Id of the sandbox"""


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
    """Query of a stream: the event after which it starts or resumes."""

    after: EventNumber | UnsetType = UNSET
    """Send the events after the one with this number, which is the `id` of its message; omitted:
    from the first event on. The header `Last-Event-ID` overrides it"""
    latest: EventNumber | UnsetType = UNSET
    """Start with this number of the last events; omitted: with the first event. `after` overrides
    it"""


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
    """Stream the events of a conversation, as server-sent events or over a WebSocket.

    Sends the stored events, then new events as they happen, until the conversation is deleted, the
    key becomes invalid or the server stops. The response is a stream of server-sent events, or a
    WebSocket if the client requests an upgrade. To resume, send the last `id` as `Last-Event-ID` or
    `after`.
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
    """Stream changes to your conversations and sandboxes, by server-sent events or a WebSocket.

    Sends each conversation, start task and sandbox of the user whenever it changes or is deleted.
    Earlier changes are not sent: list the objects after `ready`, and connect and list again after
    `resync`. The response is a stream of server-sent events, or a WebSocket if the client requests
    an upgrade. Over a WebSocket a client can also follow the events of up to 64 conversations, with
    `{"type": "follow", "stream": NAME, "conversation_id": ID, "after": N}`; it takes `latest`, too.
    Their messages have the name as `stream`; `unfollow` ends such a stream.
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
    """Return the number of the event to resume after, or -1; raises InvalidRequest.

    A browser that reconnects sends the header together with its original query.
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
                    shown = body if reader is None else await parse_in_thread(body, reader.event)
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
