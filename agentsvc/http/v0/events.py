"""Handlers of the older generation for what happens in a conversation."""

from typing import Annotated, Final

from aiohttp import web

from agentsvc.base import BadRequest, QuotaExceeded, TooManyRequests
from agentsvc.conversations import Queued
from agentsvc.domain import Message
from agentsvc.http.keys import PENDING, PRINCIPAL
from agentsvc.http.routes import OF_AGENTS, Effect, Routes, Socket, shown_as
from agentsvc.http.v0.conversations import get_view
from agentsvc.http.v0.frames import ErrorFrame, StateFrame, StatusFrame
from agentsvc.http.v0.transcripts import TRANSCRIPTS, select
from agentsvc.http.v0.types_conversations import to_message
from agentsvc.http.v0.types_events import (
    EventSearch,
    History,
    HistoryEvent,
    MessageBody,
    Trajectory,
    to_range,
)
from agentsvc.http.v0.types_socket import SOCKET_PATHS, SocketQuery
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
    Success,
    encode,
    json_response,
    raw_array,
    raw_json_response,
    read_json,
)

ROUTES: Final = Routes("/api/conversations/{conversation_id}")


def _answer_queued(_request: web.Request, _queued: Queued) -> web.Response:
    return json_response(SUCCESS)


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
    wanted = to_range(query)
    conversation = (await get_view(request)).conversation
    history = await request.app[TRANSCRIPTS].read(conversation.id, conversation.created_at)
    events, has_more = select(history, wanted)
    body = b'{"events":' + raw_array(events) + b',"has_more":' + encode(has_more) + b"}"
    return raw_json_response(body)


@ROUTES.add(
    "POST",
    "/events",
    Success,
    body=Annotated[ActionBody, shown_as(ShownAction)],
    effect=Effect(kind=Queued, answer=_answer_queued),
    errors=(BadRequest, *OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"action": "message", "args": {"content": "Add a test for it"}},
)
async def post_event(request: web.Request) -> web.Response:
    """Say something in a conversation, or tell its agent what to do, as an action.

    The actions are those of the event socket: `message`, and `change_agent_state` to run, pause,
    stop, confirm or reject. Events tell what comes of it.
    """
    return await _pass_on(request, to_user_action(await read_json(request, ACTION_BODY)))


@ROUTES.add(
    "POST",
    "/message",
    Success,
    effect=Effect(kind=Queued, answer=_answer_queued),
    errors=(BadRequest, *OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"message": "Add a test for it"},
)
async def post_message(request: web.Request, body: MessageBody) -> web.Response:
    """Say something in a conversation.

    One that rests because nobody used it is woken; one that was stopped has to be started first
    (409).
    """
    return await _pass_on(request, to_message(body.message, []) or Message())


@ROUTES.add("GET", "/trajectory", Trajectory, errors=(BadRequest,))
async def get_trajectory(request: web.Request) -> web.Response:
    """Return a conversation's whole history.

    Events of V1 in the words of this generation: each is an action or an observation. `replay_json`
    of a start takes it.
    """
    conversation = (await get_view(request)).conversation
    history = await request.app[TRANSCRIPTS].read(conversation.id, conversation.created_at)
    return raw_json_response(b'{"trajectory":' + raw_array(history) + b"}")


async def _pass_on(request: web.Request, action: UserAction) -> web.Response:
    conversation = (await get_view(request)).conversation
    await perform(
        request.app[PENDING],
        request[PRINCIPAL].user_id,
        conversation.id,
        action,
    )
    return json_response(SUCCESS)
