"""Handlers of messages that wait until their conversation is ready."""

from http import HTTPStatus
from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest, Conflict, Gone, QuotaExceeded, TooManyRequests
from agentsvc.conversations import Queued
from agentsvc.http.keys import PENDING, PRINCIPAL
from agentsvc.http.routes import Effect, Routes
from agentsvc.http.v1.types_pending import (
    Pending,
    PendingBody,
    PendingView,
    WaitingMessage,
    from_queued,
    from_waiting,
    to_pending,
)
from agentsvc.http.wire import SUCCESS, Success, json_response, path_id, path_text, read_json

ROUTES: Final = Routes("/api/v1/conversations/{conversation_id}/pending-messages")


def _answer(_request: web.Request, queued: Queued) -> web.Response:
    return json_response(from_queued(queued), status=201)


@ROUTES.add(
    "POST",
    "",
    PendingView,
    path_types={"conversation_id": str},
    body=Pending,
    status=HTTPStatus.CREATED,
    effect=Effect(kind=Queued, answer=_answer),
    errors=(BadRequest, Conflict, Gone, QuotaExceeded, TooManyRequests),
    example={"content": [{"type": "text", "text": "And then?"}]},
)
async def post_pending_message(request: web.Request) -> web.Response:
    """Queue a message; it is delivered once the conversation is ready.

    The path names a conversation, or with `task-` in front of its id a start task. Messages are
    delivered in their order once the conversation is ready, and start the agent; if it is ready, at
    once. At most 10 wait (429).
    """
    reference = path_text(request, "conversation_id")
    message = to_pending(await read_json(request, PendingBody))
    queued = await request.app[PENDING].queue(request[PRINCIPAL].user_id, reference, message)
    return _answer(request, queued)


@ROUTES.add("GET", "", path_types={"conversation_id": str})
async def get_pending_messages(request: web.Request) -> list[WaitingMessage]:
    """List the messages that wait for their agent.

    In their order. The path names a conversation, or with `task-` in front of its id a start task.
    """
    reference = path_text(request, "conversation_id")
    waiting = await request.app[PENDING].waiting(request[PRINCIPAL].user_id, reference)
    return [from_waiting(one) for one in waiting]


@ROUTES.add("DELETE", "/{message_id}", path_types={"conversation_id": str}, errors=(Conflict,))
async def delete_pending_message(request: web.Request) -> Success:
    """Cancel a message that waits for its agent.

    Its agent is never told it. Refused (409) once its agent was sent it, and 404 when it waits no more.
    """
    reference, message_id = path_text(request, "conversation_id"), path_id(request, "message_id")
    await request.app[PENDING].cancel(request[PRINCIPAL].user_id, reference, message_id)
    return SUCCESS
