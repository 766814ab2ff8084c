"""Wire structs and handlers of V0 for the events and messages of a conversation."""

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
    """Query of a history: event numbers from `start_id` to `end_id`, both inclusive."""

    start_id: Int64 = 0
    """Number of the first event to return"""
    end_id: Int64 | None = None
    """Number of the last event to return; omitted: to the end"""
    reverse: bool = False
    """Whether the latest event comes first"""
    limit: Annotated[int, stated(minimum=0, maximum=LIMIT_MAX)] = 20
    """Maximum number of events to return; `has_more` tells whether there are more"""


class MessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """AddMessageRequest: a message of the user."""

    message: Annotated[str, Meta(min_length=1)]
    """Text of the message; not empty"""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a conversation's history."""

    events: list[HistoryEvent]
    """The events, in the requested order"""
    has_more: bool
    """Whether there are more events"""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole history of a conversation."""

    trajectory: list[HistoryEvent]
    """The events, earliest first"""


ROUTES: Final = Routes("/api/conversations/{conversation_id}")


_QUEUED: Final = effect_of(Queued, lambda _: SUCCESS)

EVENT_SOCKET: Final = Socket(
    path=SOCKET_PATHS[0],
    summary="Stream a conversation and send actions to its agent, over Socket.IO",
    text="Engine.IO 4 and Socket.IO 5 over polling or a WebSocket, in the default namespace. A"
    " refused connection gets the reason in `connect_error`. The server sends the events after"
    " `latest_event_id`, but only the last change of the agent state, then new events. Connecting"
    " resumes a stopped conversation. `x-messages` has the argument of each Socket.IO event: `sent`"
    " by the server as `oh_event`, `taken` from clients as `oh_user_action` or `oh_action`.",
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
    """Get a part of the history of a conversation.

    The events with the numbers from `start_id` to `end_id`, both inclusive. Events of V1 are
    converted to V0: each is an action or an observation.
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
    """Send an action to a conversation: a message, or a change of the agent state.

    The actions of the event socket: `message`, and `change_agent_state` to run, pause, stop,
    confirm or reject. Later events show the effect.
    """
    return await _perform(request, to_user_action(await read_json(request, ACTION_BODY)))


@ROUTES.add(
    "POST",
    "/message",
    Success,
    effect=_QUEUED,
    errors=(BadRequest, *OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"message": "Add a test for it"},
)
async def post_message(request: web.Request, body: MessageBody) -> Success:
    """Send a message to a conversation.

    A sandbox that an idle rule paused is resumed; a conversation that was stopped has to be started
    first (409).
    """
    return await _perform(request, message_of(body.message))


@ROUTES.add("GET", "/trajectory", Trajectory, errors=(BadRequest,))
async def get_trajectory(request: web.Request) -> web.Response:
    """Get the whole history of a conversation.

    Events of V1 are converted to V0: each is an action or an observation. Pass the response as
    `replay_json` to replay it in a new conversation.
    """
    return raw_json_response(b'{"trajectory":' + raw_array(await _history(request)) + b"}")


async def _perform(request: web.Request, action: UserAction) -> Success:
    conversation = (await get_view(request)).conversation
    await perform(request.app[PENDING], user_of(request), conversation.id, action)
    return SUCCESS


async def _history(request: web.Request) -> Sequence[bytes]:
    conversation = (await get_view(request)).conversation
    return await request.app[TRANSCRIPTS].read(conversation.id, conversation.created_at)
