"""Handlers of callbacks: agent servers in sandboxes report events and request secrets.

Their paths start with `/webhooks`, the name agent servers use; outgoing webhooks are a plugin.
"""

from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.agentserver import MAX_CONVERSATION_BYTES, ConversationInfo
from agentsvc.base import (
    AgentRefused,
    AgentUnavailable,
    BadRequest,
    BodyTooLarge,
    NotAllowed,
    NotFound,
    QuotaExceeded,
)
from agentsvc.conversations import Question
from agentsvc.http.keys import CALLBACKS, PASS, REPLAYS
from agentsvc.http.routes import EXAMPLE_ID, TEXT, Described, Routes, Scope
from agentsvc.http.v1.events import EventsBody, to_raw_events
from agentsvc.http.v1.sandboxes import calling_sandbox
from agentsvc.http.wire import (
    SUCCESS,
    Success,
    decode,
    parse_in_thread,
    path_id,
    read_json,
    text_response,
)

_INFO = msgspec.json.Decoder(ConversationInfo)
_EVENTS = msgspec.json.Decoder(EventsBody)

ROUTES: Final = Routes("/api/v1/webhooks", scope=Scope.SANDBOX)

_EVENT: Final = {
    "id": "0d2b5f0e-6c3f-4b8e-9d7a-2f1e5c8b7a6d",
    "timestamp": "2026-01-31T12:00:00.000000",
    "source": "agent",
    "kind": "PauseEvent",
}
_OF_CONVERSATION: Final[Described] = {
    "body": ConversationInfo,
    "answer": Success,
    "errors": (BadRequest, NotAllowed, NotFound, QuotaExceeded),
    "example": {"id": EXAMPLE_ID, "execution_status": "running"},
}
_OF_EVENTS: Final[Described] = {
    "body": EventsBody,
    "answer": Success,
    "errors": (NotAllowed, QuotaExceeded),
    "example": [_EVENT],
}


@ROUTES.add("GET", "/secrets", str, scope=Scope.PASS, media=TEXT, errors=(NotFound,))
async def get_provider_token(request: web.Request) -> web.Response:
    """Get a user's git provider token, with the signed pass in X-Access-Token.

    The response is the token as plain text. The pass names the sandbox and the provider; agents get
    it together with this URL.
    """
    token = await request.app[CALLBACKS].provider_token(request[PASS])
    return text_response(token.reveal())


@ROUTES.add("POST", "/conversations", **_OF_CONVERSATION)
async def post_conversation(request: web.Request) -> Success:
    """Report the state of a conversation.

    Agent servers post it whenever one of their conversations changes. The server stores its model,
    costs and title.
    """
    sandbox = calling_sandbox(request)
    raw = await read_json(request, msgspec.Raw, wide_integers=True)
    if len(bytes(raw)) > MAX_CONVERSATION_BYTES:
        raise BodyTooLarge(f"A conversation should have at most {MAX_CONVERSATION_BYTES} bytes")
    info = await parse_in_thread(bytes(raw), partial(decode, kind=_INFO))
    await request.app[CALLBACKS].receive_conversation(sandbox, info)
    return SUCCESS


@ROUTES.add("POST", "/events/{conversation_id}", **_OF_EVENTS)
async def post_events(request: web.Request) -> Success:
    """Report events of a conversation.

    Agent servers post events as they happen. Events are identified by their id: a repeated event is
    stored once.
    """
    sandbox = calling_sandbox(request)
    conversation_id = path_id(request, "conversation_id")
    events = to_raw_events(await read_json(request, _EVENTS, wide_integers=True))
    await request.app[CALLBACKS].receive_events(sandbox, conversation_id, events)
    return SUCCESS


@ROUTES.add(
    "POST",
    "/replays/{conversation_id}/chat/completions",
    body=Question,
    errors=(NotAllowed, NotFound, AgentUnavailable, AgentRefused),
    example={"model": "openai/replay", "messages": [{"role": "user", "content": "Go on"}]},
)
async def post_replay(request: web.Request) -> dict[str, Any]:
    """Get the next turn of a replayed recording, as a chat completion.

    During a replay the agent sends its model requests here instead of to its model. The response
    has the form of OpenAI's chat completions.
    """
    sandbox = calling_sandbox(request)
    conversation_id = path_id(request, "conversation_id")
    question = await read_json(request, Question, wide_integers=True)
    return await request.app[REPLAYS].answer(sandbox, conversation_id, question)


ROUTES.add(
    "POST",
    "/{sandbox_id}/conversations",
    summary="Report the state of a conversation (agent servers of 2025)",
    **_OF_CONVERSATION,
)(post_conversation)
ROUTES.add(
    "POST",
    "/{sandbox_id}/events/{conversation_id}",
    summary="Report events of a conversation (agent servers of 2025)",
    **_OF_EVENTS,
)(post_events)
