"""Imports conversations that ended on another server."""

from collections.abc import Sequence

from agentsvc.base import EventBus
from agentsvc.conversations import IMPORTED_KEY as IMPORTED_KEY
from agentsvc.conversations import Conversation as Conversation
from agentsvc.conversations import ConversationTable, EventLog, Stage, StartTask, StartTaskTable
from agentsvc.conversations import ConversationView as ConversationView
from agentsvc.conversations import EventQuery as EventQuery
from agentsvc.conversations import Facts as Facts
from agentsvc.conversations import Generation as Generation
from agentsvc.conversations import Metrics as Metrics
from agentsvc.conversations import TitleSource as TitleSource
from agentsvc.conversations import TokenUsage as TokenUsage
from agentsvc.conversations import default_title as default_title
from agentsvc.domain import ExecutionStatus as ExecutionStatus
from agentsvc.domain import Provider as Provider
from agentsvc.domain import StartOrder, StartStatus
from agentsvc.domain import Trigger as Trigger
from agentsvc.domain import check_branch as check_branch
from agentsvc.domain import check_repository as check_repository
from agentsvc.storage import Database, Transaction, Vault


class Conversations:
    """The stored conversations, for additions while no server is running."""

    def __init__(self, db: Database, vault: Vault) -> None:
        event_bus = EventBus()
        self._db = db
        self._events = EventLog(db, event_bus, store_deltas=True)
        self._table = ConversationTable(db, event_bus)
        self._tasks = StartTaskTable(db, vault, event_bus)

    async def find(self, conversation_id: str) -> Conversation | None:
        """Return a conversation, whoever owns it."""
        return await self._table.find(conversation_id)

    async def find_by_alias(self, user_id: str, alias: str) -> str | None:
        """Return the id of a user's conversation by the name its client gave it."""
        return await self._table.find_by_alias(user_id, alias)

    async def add(
        self, conversation: Conversation, bodies: Sequence[bytes], *, task_id: str
    ) -> int:
        """Store a finished conversation with its events; return the number of skipped events.

        Invalid and duplicate events are skipped. A conversation of the first API generation also
        gets a start task with this id.
        """

        async def body(tx: Transaction) -> int:
            await self._table.insert(tx, conversation)
            if conversation.generation is Generation.V0:
                await self._tasks.insert(tx, _ended_start(conversation, task_id))
            return await self._events.load(tx, conversation.id, bodies)

        return await self._db.write(body)


def _ended_start(conversation: Conversation, task_id: str) -> StartTask:
    """Return a finished start task, which records the API generation of the conversation."""
    moment = conversation.created_at
    return StartTask(
        id=task_id,
        user_id=conversation.user_id,
        conversation_id=conversation.id,
        status=StartStatus.READY,
        detail=None,
        sandbox_id=None,
        agent_server_url=None,
        request=StartOrder(conversation_id=conversation.id, alias=conversation.alias),
        generation=Generation.V0,
        stages=(Stage(status=StartStatus.READY, started_at=moment),),
        created_at=moment,
        updated_at=moment,
    )
