"""Types and handlers of messages that wait until their conversation is ready."""

from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from agentsvc.base import (
    BadRequest,
    Conflict,
    Gone,
    InvalidRequest,
    QuotaExceeded,
    TooManyRequests,
    dashed,
    in_text,
    stated,
)
from agentsvc.conversations import Queued
from agentsvc.domain import Message
from agentsvc.http.keys import PENDING, user_of
from agentsvc.http.routes import Routes, effect_of, shown_as
from agentsvc.http.v1.types_messages import (
    SAYS_SOMETHING,
    ImageContent,
    MessagePart,
    TextContent,
    from_message,
    to_said,
)
from agentsvc.http.wire import SUCCESS, Success, read_json

_PARTS_MAX: Final = 1000

type PendingParts = Annotated[
    list[MessagePart], msgspec.Meta(min_length=1, max_length=_PARTS_MAX), SAYS_SOMETHING
]


def _nothing() -> msgspec.Raw:
    return msgspec.Raw(b"[]")


class PendingBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a conversation that may not be ready yet; the content is not empty."""

    role: Literal["user"] = "user"
    """Who speaks; always the user"""
    content: Annotated[msgspec.Raw, shown_as(PendingParts)] = msgspec.field(
        default_factory=_nothing
    )
    """The parts of the message, 1 to 1000; one is an image, or a text that is not empty"""


type PendingMessage = Annotated[PendingBody, stated(required=["content"])]
"""A message whose content is left out is refused like one without any, and by the same words."""


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """PendingMessageResponse: a message that was taken, and its place in the queue."""

    id: str
    """Id of the message, with dashes"""
    queued: bool = True
    """Always true: the message was taken"""
    position: int
    """Its place in the queue, counted from 1"""


class WaitingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its agent."""

    id: str
    """Id of the message, with dashes"""
    content: list[TextContent | ImageContent]
    """The parts of the message"""
    is_sent: bool
    """Whether its agent was sent it, and reads it after its step: it cannot be cancelled any more"""


_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


def to_pending(body: PendingBody) -> Message:
    """Return the message; raises BadRequest, as this operation words it, for its content."""
    try:
        parts = _PARTS.decode(body.content)
    except msgspec.ValidationError as exc:
        raise BadRequest("content must be a non-empty list", detail=str(exc)) from exc
    if not parts:
        raise BadRequest("content must be a non-empty list")
    if len(parts) > _PARTS_MAX:
        raise BadRequest(f"Invalid content format: more than {_PARTS_MAX} parts")
    try:
        return to_said(body.role, parts, loc=())
    except InvalidRequest as exc:
        raise BadRequest(f"Invalid content format: {in_text(exc)}") from exc


ROUTES: Final = Routes(
    "/api/v1/conversations/{conversation_id}/pending-messages", path_types={"conversation_id": str}
)


def _from_queued(queued: Queued) -> PendingView:
    return PendingView(id=dashed(queued.id), position=queued.position)


@ROUTES.add(
    "POST",
    "",
    body=PendingMessage,
    effect=effect_of(Queued, _from_queued, status=HTTPStatus.CREATED),
    errors=(BadRequest, Conflict, Gone, QuotaExceeded, TooManyRequests),
    example={"content": [{"type": "text", "text": "And then?"}]},
)
async def post_pending_message(request: web.Request, conversation_id: str) -> Queued:
    """Queue a message; it is delivered once the conversation is ready.

    The path names a conversation, or with `task-` in front of its id a start task. Messages are
    delivered in their order once the conversation is ready, and start the agent; if it is ready, at
    once. At most 10 wait (429).
    """
    message = to_pending(await read_json(request, PendingBody))
    return await request.app[PENDING].queue(user_of(request), conversation_id, message)


@ROUTES.add("GET", "")
async def get_pending_messages(request: web.Request, conversation_id: str) -> list[WaitingMessage]:
    """List the messages that wait for their agent.

    In their order. The path names a conversation, or with `task-` in front of its id a start task.
    """
    waiting = await request.app[PENDING].waiting(user_of(request), conversation_id)
    return [
        WaitingMessage(
            id=dashed(one.id), content=from_message(one.message).content, is_sent=one.is_tried
        )
        for one in waiting
    ]


@ROUTES.add("DELETE", "/{message_id}", errors=(Conflict,))
async def delete_pending_message(
    request: web.Request, conversation_id: str, message_id: str
) -> Success:
    """Cancel a message that waits for its agent.

    Its agent is never told it. Refused (409) once its agent was sent it, and 404 when it waits no more.
    """
    await request.app[PENDING].cancel(user_of(request), conversation_id, message_id)
    return SUCCESS
