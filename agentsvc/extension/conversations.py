"""Conversations that a plugin starts, and what becomes of them.

`Server.conversations.starts` has `start`, whose `claim` runs in the transaction that creates the start task,
so that what a plugin keeps of it is true together with it or not at all.
"""

from agentsvc.accounts import Role, check_starts, get_user
from agentsvc.base import NotAllowed
from agentsvc.conversations import (
    Conversation,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    EventQuery,
    StartTask,
    error_event,
)
from agentsvc.domain import (
    Content,
    ContentKind,
    ExecutionStatus,
    Message,
    Provider,
    SentBranch,
    SentRepository,
    StartOrder,
    Trigger,
    WhenFull,
    check_branch,
    check_repository,
    locate,
    refuse_credentials,
)
from agentsvc.settings import NAME_PATTERN as PROFILE_PATTERN
from agentsvc.storage import Transaction

__all__ = [
    "PROFILE_PATTERN",
    "Content",
    "ContentKind",
    "Conversation",
    "ConversationPatch",
    "ConversationQuery",
    "ConversationView",
    "EventQuery",
    "ExecutionStatus",
    "Message",
    "Provider",
    "SentBranch",
    "SentRepository",
    "StartOrder",
    "StartTask",
    "Trigger",
    "WhenFull",
    "check_branch",
    "check_may_run",
    "check_repository",
    "check_starts",
    "error_event",
    "locate",
    "refuse_credentials",
]


async def check_may_run(tx: Transaction, user_id: str) -> None:
    """Raise NotAllowed for a user who is blocked or may only read; their keys are not looked at."""
    user = await get_user(tx, user_id)
    if user.blocked_at is not None or user.role is Role.VIEWER:
        raise NotAllowed("The user is blocked, or may only read")
