"""Messages that wait for their conversation, on the V1 wire."""

from typing import Annotated, Final, Literal

import msgspec

from agentsvc.conversations.pending import Queued
from agentsvc.errors import BadRequest, InvalidRequest
from agentsvc.http.routes import shown_as
from agentsvc.http.v1.types_messages import MessageParts, to_said
from agentsvc.misfits import in_text
from agentsvc.orders import Message
from agentsvc.values import dashed

_PARTS_MAX: Final = 1000


def _nothing() -> msgspec.Raw:
    return msgspec.Raw(b"[]")


class PendingBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a conversation that may not be ready yet; the content is not empty."""

    role: Literal["user"] = "user"
    content: Annotated[msgspec.Raw, shown_as(MessageParts)] = msgspec.field(
        default_factory=_nothing
    )


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """PendingMessageResponse: a message that was taken, and its place in the queue."""

    id: str
    queued: bool = True
    position: int


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


def from_queued(queued: Queued) -> PendingView:
    """Return what became of a message as it is shown."""
    return PendingView(id=dashed(queued.id), position=queued.position)
