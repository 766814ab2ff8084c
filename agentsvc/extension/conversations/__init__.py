"""Types for plugins that start conversations and follow them.

`Server.conversations.starts` has `start`, whose `claim` runs in the transaction that creates the start task,
so that a plugin's own records are committed together with it.
"""

from typing import Final

from agentsvc.accounts import Role, get_user
from agentsvc.accounts import check_starts as check_starts
from agentsvc.base import NotAllowed
from agentsvc.conversations import Conversation as Conversation
from agentsvc.conversations import ConversationPatch as ConversationPatch
from agentsvc.conversations import ConversationQuery as ConversationQuery
from agentsvc.conversations import ConversationView as ConversationView
from agentsvc.conversations import EventQuery as EventQuery
from agentsvc.conversations import StartTask as StartTask
from agentsvc.conversations import error_event as error_event
from agentsvc.domain import Content as Content
from agentsvc.domain import ContentKind as ContentKind
from agentsvc.domain import ExecutionStatus as ExecutionStatus
from agentsvc.domain import Message as Message
from agentsvc.domain import Provider as Provider
from agentsvc.domain import SentBranch as SentBranch
from agentsvc.domain import SentRepository as SentRepository
from agentsvc.domain import StartOrder as StartOrder
from agentsvc.domain import Trigger as Trigger
from agentsvc.domain import WhenFull as WhenFull
from agentsvc.domain import check_branch as check_branch
from agentsvc.domain import check_repository as check_repository
from agentsvc.domain import locate as locate
from agentsvc.domain import refuse_credentials as refuse_credentials
from agentsvc.settings import NAME_PATTERN
from agentsvc.storage import Transaction

PROFILE_PATTERN: Final = NAME_PATTERN


async def check_may_run(tx: Transaction, user_id: str) -> None:
    """Raise NotAllowed for a user who is blocked or read-only; their keys are not checked."""
    user = await get_user(tx, user_id)
    if user.blocked_at is not None or user.role is Role.VIEWER:
        raise NotAllowed("The user is blocked, or may only read")


def text_message(text: str) -> Message:
    """Return a message with a text."""
    return Message(content=(Content(kind=ContentKind.TEXT, text=text),))
