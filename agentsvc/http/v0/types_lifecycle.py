"""V0 types for starting and stopping conversations."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.conversations import ConversationView
from agentsvc.http.v0.types_conversations import (
    ConversationStatus,
    StartAnswer,
    shown_id,
    status_of,
)

STOPPED_MESSAGE: Final = "Conversation stopped successfully"
NOT_RUNNING_MESSAGE: Final = "Conversation was not running"


class StartAgainBody(msgspec.Struct, frozen=True, kw_only=True):
    """ProvidersSetModel: which git providers a front end knows of; nothing depends on it."""

    providers_set: (
        Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] | None
    ) = None
    """Names of git providers; read, and without effect. Null: none"""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation runs: the ids of its sandbox and of itself."""

    runtime_id: str | None
    """Id of its sandbox; null if there is none"""
    session_id: str
    """Id of the conversation"""


def is_running(view: ConversationView) -> bool:
    """Whether there is something to stop."""
    return status_of(view) in (ConversationStatus.STARTING, ConversationStatus.RUNNING)


def from_stopped(view: ConversationView) -> StartAnswer:
    """Return the answer to a stop, which tells the state the conversation was in before."""
    return StartAnswer(
        conversation_id=shown_id(view),
        message=STOPPED_MESSAGE,
        conversation_status=status_of(view),
    )


def from_not_running(name: str) -> StartAnswer:
    """Return the answer to a stop where nothing ran."""
    return StartAnswer(
        conversation_id=name,
        message=NOT_RUNNING_MESSAGE,
        conversation_status=ConversationStatus.STOPPED,
    )


def from_place(view: ConversationView) -> RuntimeConfig:
    """Return where a conversation runs."""
    return RuntimeConfig(runtime_id=view.conversation.sandbox_id, session_id=shown_id(view))
