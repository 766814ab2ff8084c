"""Handlers of what agent servers call back from their sandboxes."""

from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.agentserver import ConversationInfo
from agentsvc.base import (
    AgentRefused,
    AgentUnavailable,
    BadRequest,
    NotAllowed,
    NotFound,
    QuotaExceeded,
)
from agentsvc.conversations import Question
from agentsvc.http.keys import CALLBACKS, PASS, REPLAYS
from agentsvc.http.routes import EXAMPLE_ID, TEXT, Example, Route, Scope
from agentsvc.http.v1.sandboxes import calling_sandbox
from agentsvc.http.v1.types_events import EventsBody, to_raw_events
from agentsvc.http.wire import (
    SUCCESS,
    Success,
    decode,
    json_response,
    path_id,
    read_json,
    text_response,
)

PREFIX: Final = "/api/v1/webhooks"

_RAW = msgspec.json.Decoder(msgspec.Raw)
_INFO = msgspec.json.Decoder(ConversationInfo)
_QUESTION = msgspec.json.Decoder(Question)
_EVENTS = msgspec.json.Decoder(EventsBody)


async def post_conversation(request: web.Request) -> web.Response:
    """POST /webhooks/conversations.

    What agent servers post whenever a conversation of theirs changes. Model, costs and title are
    taken over.
    """
    sandbox = calling_sandbox(request)
    info = await read_json(request, _RAW, wide_integers=True)
    decode(info, _INFO)
    await request.app[CALLBACKS].receive_conversation(sandbox, bytes(info))
    return json_response(SUCCESS)


async def post_events(request: web.Request) -> web.Response:
    """POST /webhooks/events/{conversation_id}.

    What agent servers post as events happen. Events are stored by their id, so one that comes twice
    is stored once.
    """
    sandbox = calling_sandbox(request)
    conversation_id = path_id(request, "conversation_id")
    events = to_raw_events(await read_json(request, _EVENTS, wide_integers=True))
    await request.app[CALLBACKS].receive_events(sandbox, conversation_id, events)
    return json_response(SUCCESS)


async def get_provider_token(request: web.Request) -> web.Response:
    """GET /webhooks/secrets.

    The token as plain text. The pass names the user and the provider, and is in what agents know of
    their secrets.
    """
    token = await request.app[CALLBACKS].provider_token(request[PASS])
    return text_response(token.reveal())


async def post_replay(request: web.Request) -> web.Response:
    """POST /webhooks/replays/{conversation_id}/chat/completions.

    What the agent asks instead of its model while a recording is done again. The answer has the
    form of the chat completions of OpenAI.
    """
    sandbox = calling_sandbox(request)
    conversation_id = path_id(request, "conversation_id")
    question = await read_json(request, _QUESTION, wide_integers=True)
    return json_response(await request.app[REPLAYS].answer(sandbox, conversation_id, question))


_EVENTS_EXAMPLE: Final = Example(
    body=[
        {
            "id": "0d2b5f0e-6c3f-4b8e-9d7a-2f1e5c8b7a6d",
            "timestamp": "2026-01-31T12:00:00.000000",
            "source": "agent",
            "kind": "PauseEvent",
        }
    ]
)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{PREFIX}/secrets",
        handler=get_provider_token,
        scope=Scope.PASS,
        rank="P2",
        summary="Get the token of the git provider that the pass in X-Access-Token is for",
        answer=str,
        media=TEXT,
        errors=(NotFound,),
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/conversations",
        handler=post_conversation,
        scope=Scope.SANDBOX,
        rank="P1",
        summary="Tell about a conversation",
        body=ConversationInfo,
        answer=Success,
        errors=(BadRequest, NotAllowed, NotFound, QuotaExceeded),
        example=Example(body={"id": EXAMPLE_ID, "execution_status": "running"}),
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/events/{{conversation_id}}",
        handler=post_events,
        scope=Scope.SANDBOX,
        rank="P1",
        summary="Deliver events of a conversation",
        body=EventsBody,
        answer=Success,
        errors=(NotAllowed, QuotaExceeded),
        example=_EVENTS_EXAMPLE,
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/replays/{{conversation_id}}/chat/completions",
        handler=post_replay,
        scope=Scope.SANDBOX,
        rank="P2",
        summary="Get the next turn of a recording that is replayed, as a chat completion",
        body=Question,
        answer=dict[str, Any],
        errors=(NotAllowed, NotFound, AgentUnavailable, AgentRefused),
        example=Example(
            body={"model": "openai/replay", "messages": [{"role": "user", "content": "Go on"}]}
        ),
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/{{sandbox_id}}/conversations",
        handler=post_conversation,
        scope=Scope.SANDBOX,
        rank="P1",
        summary="Tell about a conversation, as agent servers of 2025 do",
        body=ConversationInfo,
        answer=Success,
        errors=(BadRequest, NotAllowed, NotFound, QuotaExceeded),
        example=Example(body={"id": EXAMPLE_ID, "execution_status": "running"}),
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/{{sandbox_id}}/events/{{conversation_id}}",
        handler=post_events,
        scope=Scope.SANDBOX,
        rank="P1",
        summary="Deliver events of a conversation, as agent servers of 2025 do",
        body=EventsBody,
        answer=Success,
        errors=(NotAllowed, QuotaExceeded),
        example=_EVENTS_EXAMPLE,
    ),
)
