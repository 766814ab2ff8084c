"""Progress of a start task: stored in its row and published to subscribers."""

import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import msgspec

from agentsvc.base import ConversationDeleted, monotonic, now
from agentsvc.conversations.model import Stage, StartTask
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.states import Start
from agentsvc.domain import StartStatus
from agentsvc.sandboxes import Sandbox
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)

_ORDER: Final = list(StartStatus)


class Progress:
    """Stores each step that a start takes; a deleted conversation ends it."""

    def __init__(self, parts: StartParts) -> None:
        self._db = parts.stores.db
        self._table = parts.stores.conversations
        self._tasks = parts.stores.tasks
        self._followers = parts.followers

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
            tx.after_commit(lambda: self._followers.announce(task))

        await self._db.write(body)

    async def check_exists(self, start: Start) -> None:
        """Raise ConversationDeleted where it was deleted meanwhile."""
        if await self._tasks.find(start.task.id) is None:
            raise ConversationDeleted

    async def show_agent_url(self, start: Start, sandbox: Sandbox) -> None:
        """Store where the agent server is."""
        start.task = msgspec.structs.replace(
            start.task, agent_server_url=sandbox.agent_url, updated_at=now()
        )
        await self.store(start)

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
        tx.after_commit(lambda: self._followers.announce(task))

    async def set_position(
        self, start: Start, position: int | None, *, queue: str = "room", cause: str = ""
    ) -> None:
        """Store the place in a queue and why, if they have changed; None is the end of the wait."""
        since = f", since {cause}" if cause else ""
        words = f"Waiting for {queue}: position {position} in the queue{since}"
        detail = words if position else None
        if position == start.task.queue_position and (not position or detail == start.task.detail):
            return
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
