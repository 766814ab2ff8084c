"""What starts and steers conversations, beside the services that every extension gets."""

from agentsvc.accounts import Principal
from agentsvc.conversations import (
    ConversationFiles,
    ConversationQuery,
    EventLog,
    MessageQueue,
    Pending,
    PendingKind,
    StoredEvent,
)
from agentsvc.domain import Content, ContentKind, ExecutionStatus, StartOrder
from agentsvc.domain import Message as SpokenMessage
from agentsvc.http import FILES, PENDING

__all__ = [
    "FILES",
    "PENDING",
    "Content",
    "ContentKind",
    "ConversationFiles",
    "ConversationQuery",
    "EventLog",
    "ExecutionStatus",
    "MessageQueue",
    "Pending",
    "PendingKind",
    "Principal",
    "SpokenMessage",
    "StartOrder",
    "StoredEvent",
]
