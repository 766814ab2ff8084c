"""The messages of streams, for the published description; `streams` writes them piece by piece."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.http.v1.types_conversations import AppConversation
from agentsvc.http.v1.types_events import StoredEvent
from agentsvc.http.v1.types_sandboxes import SandboxInfo
from agentsvc.http.v1.types_start import StartTaskView


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """An object without members."""


class Id(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted."""

    id: str
    """Its id, as the operations have it"""


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client has to go on."""

    last_event_id: int | None
    """Number of the last event that is sure; go on behind it. Null: begin anew"""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a stream is over."""

    reason: Literal["deleted", "not_authenticated", "not_found", "too_many_streams"]
    """The conversation was deleted, or the key counts no more; or why what was asked for in a
    WebSocket is refused"""


class ReadyMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ready"):
    """All that was stored has been told; what follows is new."""

    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""
    data: Nothing
    """Nothing"""


class ResyncMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="resync"):
    """The last message: the client was too slow, or is ahead of the server, and may miss something.

    A WebSocket has no such message for its own stream: it is closed with 4008, and the number as the
    reason.
    """

    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""
    data: Last
    """Where to go on"""


class EndMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="end"):
    """The last message.

    A WebSocket has none for its own stream: it is closed with 4004 or 4001, and the reason.
    """

    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""
    data: Reason
    """Why the stream is over"""


class EventMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="event"):
    """An event of the conversation."""

    id: int
    """Number of the event in its conversation, counted from 0; `after` takes it"""
    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""
    data: StoredEvent
    """The event"""


class DeltaMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="delta"):
    """A piece of what the model is saying, told live only; the event with all of it comes later."""

    stream: str | UnsetType = UNSET
    """Which stream it belongs to, where several are in one WebSocket"""
    data: dict[str, Any]
    """The piece, as the agent server sends it in a `StreamingDeltaEvent`"""


class ConversationMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="conversation"
):
    """A conversation that is new or has changed."""

    data: AppConversation
    """The conversation as it is now"""


class StartTaskMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="start_task"
):
    """A start task that is new or has changed."""

    data: StartTaskView
    """The task as it is now"""


class SandboxMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="sandbox"):
    """A sandbox that is new or has changed."""

    data: SandboxInfo
    """The sandbox as it is now; `usage` is null"""


class ConversationDeletedMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="conversation_deleted"
):
    """A conversation that was deleted."""

    data: Id
    """Which one"""


class StartTaskDeletedMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="start_task_deleted"
):
    """A start task that was deleted."""

    data: Id
    """Which one"""


class SandboxDeletedMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="sandbox_deleted"
):
    """A sandbox that was deleted."""

    data: Id
    """Which one"""


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
