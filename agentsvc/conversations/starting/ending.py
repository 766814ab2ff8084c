"""Ends of starts: ready, failed, or deleted meanwhile."""

import logging
from collections.abc import Sequence

import msgspec

from agentsvc.agentserver import ConversationInfo
from agentsvc.base import ConversationDeleted, now
from agentsvc.conversations.event_ingestor import TOOL_SERVER_FAILED
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import entered, milliseconds
from agentsvc.conversations.starting.states import Start
from agentsvc.domain import StartStatus
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)


class Ending:
    """Stores what became of starts, and tells who is concerned."""

    def __init__(self, parts: StartParts) -> None:
        self._db = parts.stores.db
        self._table = parts.stores.conversations
        self._tasks = parts.stores.tasks
        self._sandboxes = parts.sandboxes
        self._ingestor = parts.ingestor
        self._deletion = parts.deletion
        self._followers = parts.followers

    async def finish(
        self,
        start: Start,
        info: ConversationInfo,
        *,
        working_dir: str,
        failed_servers: Sequence[str],
        run_asked_at: str,
    ) -> None:
        """Store that the conversation is ready; raises ConversationDeleted.

        `run_asked_at` is when its agent had its first message, empty without one.
        """

        async def body(tx: Transaction) -> None:
            conversation = await self._table.find(start.conversation.id, tx)
            if conversation is None:
                raise ConversationDeleted
            known = msgspec.structs.replace(conversation.facts, run_asked_at=run_asked_at)
            start.conversation = msgspec.structs.replace(
                conversation,
                facts=known,
                is_ready=True,
                working_dir=working_dir,
                llm_model=info.model or conversation.llm_model,
                updated_at=now(),
            )
            await self._table.update(tx, start.conversation)
            for text in failed_servers:
                await self._ingestor.announce_failure(tx, conversation.id, TOOL_SERVER_FAILED, text)
            detail = "\n".join(failed_servers) or None
            await self._end(tx, start, StartStatus.READY, detail)

        await self._db.write(body)
        self._sandboxes.usage.note(start.task.sandbox_id)
        self._ingestor.sync_soon(start.conversation.id)
        log.info(
            "conversation started",
            extra={
                "conversation_id": start.conversation.id,
                "sandbox_id": start.task.sandbox_id,
                "duration_ms": milliseconds(now() - start.task.created_at),
            },
        )

    async def fail(self, start: Start, message: str, detail: str) -> None:
        """Store why a start failed, in words for its user; `detail` is for the log."""
        stage = start.task.status
        text = f"{message}\n(at stage {stage})"

        async def body(tx: Transaction) -> bool:
            if await self._tasks.find(start.task.id, tx) is None:
                return False
            await self._end(tx, start, StartStatus.ERROR, text)
            if stage is StartStatus.WORKING:
                await self._deletion.give_back(tx, start.task)
            await self._ingestor.announce_failure(tx, start.conversation.id, "StartFailed", text)
            return True

        if not await self._db.write(body):
            await self.forget(start)
            return
        log.error(
            "conversation did not start",
            extra={
                "task_id": start.task.id,
                "stage": str(stage),
                # What follows is what the sandbox wrote, and may hold the user's secrets.
                "reason": message.partition("\n")[0],
                "why": detail,
            },
        )

    async def forget(self, start: Start) -> None:
        """Have the agent server forget a conversation that was deleted while it started."""
        log.info("conversation deleted while starting", extra={"task_id": start.task.id})
        # The agent server may have got it after it was told to forget it.
        await self._deletion.tell_again(start.conversation.id)

    async def _end(
        self, tx: Transaction, start: Start, status: StartStatus, detail: str | None
    ) -> None:
        start.task = task = msgspec.structs.replace(entered(start.task, status), detail=detail)
        await self._tasks.update(tx, task)
        tx.after_commit(lambda: self._followers.announce(task))
