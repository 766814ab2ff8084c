"""Types and handlers of the older generation for what happens in a conversation."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import BadRequest, QuotaExceeded, TooManyRequests, stated
from agentsvc.conversations import Queued
from agentsvc.domain import message_of
from agentsvc.http.keys import PENDING, user_of
from agentsvc.http.routes import OF_AGENTS, Routes, Socket, effect_of, shown_as
from agentsvc.http.v0.conversations import get_view
from agentsvc.http.v0.event_types import HistoryEvent
from agentsvc.http.v0.frames import ErrorFrame, StateFrame, StatusFrame
from agentsvc.http.v0.socket_opener import SOCKET_PATHS, SocketQuery
from agentsvc.http.v0.transcripts import TRANSCRIPTS, select
from agentsvc.http.v0.user_actions import (
    ACTION_BODY,
    ActionBody,
    ShownAction,
    UserAction,
    perform,
    to_user_action,
)
from agentsvc.http.wire import (
    SUCCESS,
    Int64,
    Success,
    encode,
    raw_array,
    raw_json_response,
    read_json,
)

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


ROUTES: Final = Routes("/api/conversations/{conversation_id}")


_QUEUED: Final = effect_of(Queued, lambda _: SUCCESS)

EVENT_SOCKET: Final = Socket(
    path=SOCKET_PATHS[0],
    summary="Follow a conversation and talk to its agent, over Socket.IO",
    text="Speaks Engine.IO 4 and Socket.IO 5 over polling or a WebSocket, in the default namespace;"
    " a connection that is refused says why in `connect_error`. It sends what is behind"
    " `latest_event_id`, of the states the last one only, and then what happens; to connect wakes a"
    " conversation that is stopped. `x-messages` has the one argument of each event: what is `sent`"
    " comes as `oh_event`, and `oh_user_action` is `taken`, also under its older name `oh_action`.",
    query=SocketQuery,
    sent={"oh_event": (HistoryEvent, StatusFrame, StateFrame, ErrorFrame)},
    taken=dict.fromkeys(("oh_user_action", "oh_action"), (ShownAction,)),
)


@ROUTES.add(
    "GET",
    "/events",
    History,
    socket=EVENT_SOCKET,
    errors=(BadRequest,),
    example={"start_id": 0, "limit": 20},
)
async def get_events(request: web.Request, query: EventSearch) -> web.Response:
    """Return a part of a conversation's history.

    Numbers from `start_id` to `end_id`, both belonging to it. Events of V1 in the words of this
    generation: each is an action or an observation.
    """
    if not 0 <= query.limit <= LIMIT_MAX:
        raise BadRequest("Invalid limit")
    events, has_more = select(
        await _history(request),
        query.start_id,
        query.end_id,
        reverse=query.reverse,
        limit=query.limit,
    )
    body = b'{"events":' + raw_array(events) + b',"has_more":' + encode(has_more) + b"}"
    return raw_json_response(body)


@ROUTES.add(
    "POST",
    "/events",
    Success,
    body=Annotated[ActionBody, shown_as(ShownAction)],
    effect=_QUEUED,
    errors=(BadRequest, *OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"action": "message", "args": {"content": "Add a test for it"}},
)
async def post_event(request: web.Request) -> Success:
    """Say something in a conversation, or tell its agent what to do, as an action.

    The actions are those of the event socket: `message`, and `change_agent_state` to run, pause,
    stop, confirm or reject. Events tell what comes of it.
    """
    return await _pass_on(request, to_user_action(await read_json(request, ACTION_BODY)))


@ROUTES.add(
    "POST",
    "/message",
    Success,
    effect=_QUEUED,
    errors=(BadRequest, *OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"message": "Add a test for it"},
)
async def post_message(request: web.Request, body: MessageBody) -> Success:
    """Say something in a conversation.

    One that rests because nobody used it is woken; one that was stopped has to be started first
    (409).
    """
    return await _pass_on(request, message_of(body.message))


@ROUTES.add("GET", "/trajectory", Trajectory, errors=(BadRequest,))
async def get_trajectory(request: web.Request) -> web.Response:
    """Return a conversation's whole history.

    Events of V1 in the words of this generation: each is an action or an observation. `replay_json`
    of a start takes it.
    """
    return raw_json_response(b'{"trajectory":' + raw_array(await _history(request)) + b"}")


async def _pass_on(request: web.Request, action: UserAction) -> Success:
    conversation = (await get_view(request)).conversation
    await perform(request.app[PENDING], user_of(request), conversation.id, action)
    return SUCCESS


async def _history(request: web.Request) -> Sequence[bytes]:
    conversation = (await get_view(request)).conversation
    return await request.app[TRANSCRIPTS].read(conversation.id, conversation.created_at)
