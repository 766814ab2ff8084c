"""Wire structs and handlers of pending messages: queued until their conversation is ready."""

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
    NOT_EMPTY,
    ImageContent,
    MessagePart,
    TextContent,
    from_message,
    to_nonempty_message,
)
from agentsvc.http.wire import SUCCESS, Success, read_json

_PARTS_MAX: Final = 1000

type PendingParts = Annotated[
    list[MessagePart], msgspec.Meta(min_length=1, max_length=_PARTS_MAX), NOT_EMPTY
]


def _empty_list() -> msgspec.Raw:
    return msgspec.Raw(b"[]")


class PendingBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a conversation that may not be ready yet; its content must not be empty."""

    role: Literal["user"] = "user"
    """Role of the author; always the user"""
    content: Annotated[msgspec.Raw, shown_as(PendingParts)] = msgspec.field(
        default_factory=_empty_list
    )
    """The parts of the message, 1 to 1000; at least one is an image or a non-empty text"""


type PendingMessage = Annotated[PendingBody, stated(required=["content"])]
"""The body as described: `content` is required. Without it the error is that of an empty list."""


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """PendingMessageResponse: an accepted message and its position in the queue."""

    id: str
    """Id of the message, with dashes"""
    queued: bool = True
    """Always true: the message was accepted"""
    position: int
    """Position in the queue, starting at 1"""


class WaitingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A queued message that the agent has not read yet."""

    id: str
    """Id of the message, with dashes"""
    content: list[TextContent | ImageContent]
    """The parts of the message"""
    is_sent: bool
    """Whether the message was sent to the agent, which reads it after its present step; it cannot
    be cancelled any more"""


_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


def to_pending(body: PendingBody) -> Message:
    """Convert the body to a message; raises BadRequest with this operation's texts."""
    try:
        parts = _PARTS.decode(body.content)
    except msgspec.ValidationError as exc:
        raise BadRequest("content must be a non-empty list", detail=str(exc)) from exc
    if not parts:
        raise BadRequest("content must be a non-empty list")
    if len(parts) > _PARTS_MAX:
        raise BadRequest(f"Invalid content format: more than {_PARTS_MAX} parts")
    try:
        return to_nonempty_message(body.role, parts, loc=())
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
    """Queue a message for delivery once the conversation is ready.

    The path has the id of a conversation, or the id of a start task with the prefix `task-`.
    Messages are delivered in order and start the agent; if the conversation is ready, at once. At
    most 10 messages can be queued (429).
    """
    message = to_pending(await read_json(request, PendingBody))
    return await request.app[PENDING].queue(user_of(request), conversation_id, message)


@ROUTES.add("GET", "")
async def get_pending_messages(request: web.Request, conversation_id: str) -> list[WaitingMessage]:
    """List the queued messages of a conversation.

    In the order of delivery. The path has the id of a conversation, or the id of a start task with
    the prefix `task-`.
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
    """Cancel a queued message.

    The agent never gets the message. Refused (409) if the message was already sent to the agent,
    and 404 if it is not in the queue any more.
    """
    await request.app[PENDING].cancel(user_of(request), conversation_id, message_id)
    return SUCCESS
