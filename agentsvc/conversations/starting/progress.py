"""Progress of a start task: stored in its row and published to subscribers."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import ConversationDeleted, NotFound, Secret, monotonic, now
from agentsvc.conversations.model import Conversation, Stage, StartTask
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.starting.workspace import Workspace
from agentsvc.conversations.table import ConversationTable
from agentsvc.domain import Provider, StartStatus
from agentsvc.sandboxes import Sandbox
from agentsvc.settings import Settings
from agentsvc.storage import Database, Transaction

log = logging.getLogger(__name__)

_ORDER: Final = list(StartStatus)

type OnTaskChange = Callable[[StartTask], None]


class Start(msgspec.Struct, kw_only=True):
    """What the steps of one start hand on to each other."""

    task: StartTask
    conversation: Conversation
    deadline: datetime
    """Until when steps are tried again; the time the server was down does not count."""
    settings: Settings = Settings()
    tokens: dict[Provider, tuple[str, Secret]] = {}
    sandbox: Sandbox | None = None
    agent: AgentServer | None = None
    workspace: Workspace | None = None
    hook_config: dict[str, Any] | None = None
    failed_tool_servers: list[str] = []
    """What is told of each tool server that does not start."""


class Progress:
    """Stores each step that a start takes; a deleted conversation ends it."""

    def __init__(
        self,
        *,
        db: Database,
        table: ConversationTable,
        tasks: StartTaskTable,
        on_change: OnTaskChange,
    ) -> None:
        self._db = db
        self._table = table
        self._tasks = tasks
        self._on_change = on_change

    async def enter(self, start: Start, status: StartStatus) -> None:
        """Store that a stage has begun, unless it was passed before a restart."""
        # After a restart the steps run again from the first one; clients only see the way on.
        if _ORDER.index(status) > _ORDER.index(start.task.status):
            start.task = entered(start.task, status)
            await self.store(start)

    async def store(self, start: Start) -> None:
        """Store the task as it is; raises ConversationDeleted."""
        task = start.task

        async def body(tx: Transaction) -> None:
            if await self._tasks.find(task.id, tx) is None:
                raise ConversationDeleted
            await self._tasks.update(tx, task)
            tx.after_commit(lambda: self._on_change(task))

        await self._db.write(body)

    async def link_sandbox(self, tx: Transaction, start: Start, sandbox_id: str) -> None:
        """Store in which sandbox the conversation lives; raises ConversationDeleted."""
        conversation = await self._table.find(start.conversation.id, tx)
        if conversation is None:
            raise ConversationDeleted
        start.conversation = msgspec.structs.replace(conversation, sandbox_id=sandbox_id)
        start.task = msgspec.structs.replace(start.task, sandbox_id=sandbox_id, updated_at=now())
        await self._table.update(tx, start.conversation)
        await self._tasks.update(tx, start.task)
        task = start.task
        tx.after_commit(lambda: self._on_change(task))

    async def set_position(
        self, start: Start, position: int | None, *, queue: str = "room"
    ) -> None:
        """Store the place in a queue, if it has changed; None is the end of the wait."""
        if position == start.task.queue_position:
            return
        detail = f"Waiting for {queue}: position {position} in the queue" if position else None
        start.task = msgspec.structs.replace(
            start.task, queue_position=position, detail=detail, updated_at=now()
        )
        await self.store(start)

    async def set_detail(self, start: Start, detail: str | None) -> None:
        """Store what the start is waiting for, if it has changed."""
        if detail == start.task.detail:
            return
        start.task = msgspec.structs.replace(start.task, detail=detail, updated_at=now())
        await self.store(start)

    async def note(self, start: Start, problem: str | None) -> None:
        """Store what went wrong without stopping the start, if anything did."""
        if problem is None:
            return
        log.warning(
            "conversation start continues without an optional step",
            extra={"task_id": start.task.id, "reason": problem.partition("\n")[0]},
        )
        *earlier, last = start.task.stages
        stages = (*earlier, msgspec.structs.replace(last, note=problem))
        start.task = msgspec.structs.replace(start.task, stages=stages, updated_at=now())
        await self.store(start)


def made[T](value: T | None) -> T:
    """Return what an earlier step has made."""
    if value is None:
        raise NotFound("A step of the start ran before the one it needs")
    return value


def entered(task: StartTask, status: StartStatus) -> StartTask:
    """Return the task in a new stage, and how long it was in the one before."""
    moment = now()
    *earlier, last = task.stages
    ended = msgspec.structs.replace(last, duration_ms=milliseconds(moment - last.started_at))
    stages = (*earlier, ended, Stage(status=status, started_at=moment))
    return msgspec.structs.replace(task, status=status, stages=stages, updated_at=moment)


@contextlib.contextmanager
def timed(start: Start, part: str) -> Iterator[None]:
    """Note how long a part of the present stage takes; it is stored with the next change."""
    began = monotonic()
    try:
        yield
    finally:
        *earlier, last = start.task.stages
        took = last.parts.get(part, 0) + round((monotonic() - began) * 1000)
        longer = msgspec.structs.replace(last, parts={**last.parts, part: took})
        start.task = msgspec.structs.replace(start.task, stages=(*earlier, longer))


def milliseconds(duration: timedelta) -> int:
    """Return a duration as a whole number of milliseconds."""
    return round(duration / timedelta(milliseconds=1))
