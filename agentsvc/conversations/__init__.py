"""Conversations: asked for, started step by step, kept up to date, found again, deleted.

`model` holds the structs, `table` the SQL, `start` the steps of a start, `recorder` what sandboxes
report, and `service` the class that others use.
"""

from agentsvc.conversations.model import (
    SANDBOX_GONE,
    Conversation,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    Generation,
    Metrics,
    Stage,
    StartTask,
    TokenUsage,
    default_title,
)
from agentsvc.conversations.service import Conversations

__all__ = [
    "SANDBOX_GONE",
    "Conversation",
    "ConversationPatch",
    "ConversationQuery",
    "ConversationView",
    "Conversations",
    "Generation",
    "Metrics",
    "Stage",
    "StartTask",
    "TokenUsage",
    "default_title",
]
