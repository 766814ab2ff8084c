"""The stages and the result of a start task: stored in its row and published to subscribers."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from agentsvc.agentserver import ConversationInfo
from agentsvc.base import ConversationDeleted, monotonic, now
from agentsvc.conversations.event_ingestor import TOOL_SERVER_FAILED, error_event
from agentsvc.conversations.model import Stage, StartTask
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.states import Start
from agentsvc.domain import StartStatus
from agentsvc.sandboxes import Sandbox
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)

_ORDER: Final = list(StartStatus)


class Progress:
    """Stores the stage, the details and the result of a start.

    Methods that store raise ConversationDeleted if the conversation was deleted meanwhile.
    """

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._stores = parts.stores

    async def enter(self, start: Start, status: StartStatus) -> None:
        """Store that a stage has begun, unless the task had reached it before a restart."""
        # After a restart the steps run again from the first one; clients see no stage twice.
        if _ORDER.index(status) > _ORDER.index(start.task.status):
            await self._store(start, entered(start.task, status))

    async def check_exists(self, start: Start) -> None:
        """Raise ConversationDeleted if the conversation was deleted meanwhile."""
        if await self._stores.tasks.find(start.task.id) is None:
            raise ConversationDeleted

    async def show_agent_url(self, start: Start, sandbox: Sandbox) -> None:
        """Store the URL of the agent server in the task."""
        await self._change(start, agent_server_url=sandbox.agent_url)

    async def link_sandbox(self, tx: Transaction, start: Start, sandbox_id: str) -> None:
        """Store the sandbox of the conversation; raises ConversationDeleted."""
        conversation = await self._stores.conversations.find(start.conversation.id, tx)
        if conversation is None:
            raise ConversationDeleted
        start.conversation = msgspec.structs.replace(conversation, sandbox_id=sandbox_id)
        start.task = msgspec.structs.replace(start.task, sandbox_id=sandbox_id, updated_at=now())
        await self._stores.conversations.update(tx, start.conversation)
        await self._update(tx, start.task)
        await self._parts.archives.forget_rest(tx, sandbox_id)

    async def set_position(
        self, start: Start, position: int | None, *, queue: str = "capacity", cause: str = ""
    ) -> None:
        """Store the position in a queue and the cause, if changed; None ends the wait."""
        reason = f": {cause}" if cause else ""
        words = f"Waiting for {queue}, position {position} in the queue{reason}"
        detail = words if position else None
        if position == start.task.queue_position and (not position or detail == start.task.detail):
            return
        await self._change(start, queue_position=position, detail=detail)

    async def set_detail(self, start: Start, detail: str | None) -> None:
        """Store the text on what the start waits for, if changed."""
        if detail != start.task.detail:
            await self._change(start, detail=detail)

    async def note(self, start: Start, problem: str | None) -> None:
        """Store a non-fatal problem as the note of the present stage; ignore None."""
        if problem is None:
            return
        log.warning(
            "conversation start continues without an optional step",
            extra={"task_id": start.task.id, "reason": problem.partition("\n")[0]},
        )
        *earlier, last = start.task.stages
        await self._change(start, stages=(*earlier, msgspec.structs.replace(last, note=problem)))

    # The result

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

        `run_asked_at` is when the first message was sent to the agent, empty without one.
        """

        async def body(tx: Transaction) -> None:
            conversation = await self._stores.conversations.find(start.conversation.id, tx)
            if conversation is None:
                raise ConversationDeleted
            start.conversation = msgspec.structs.replace(
                conversation.with_facts(run_asked_at=run_asked_at),
                is_ready=True,
                working_dir=working_dir,
                llm_model=info.model or conversation.llm_model,
                updated_at=now(),
            )
            await self._stores.conversations.update(tx, start.conversation)
            failures = [error_event(TOOL_SERVER_FAILED, text) for text in failed_servers]
            await self._parts.events.append(tx, conversation.id, failures)
            detail = "\n".join(failed_servers) or None
            await self._end(tx, start, StartStatus.READY, detail)

        await self._stores.db.write(body)
        self._parts.sandboxes.usage.note(start.task.sandbox_id)
        self._parts.ingestor.sync_soon(start.conversation.id)
        log.info(
            "conversation started",
            extra={
                "conversation_id": start.conversation.id,
                "sandbox_id": start.task.sandbox_id,
                "duration_ms": milliseconds(now() - start.task.created_at),
            },
        )

    async def fail(self, start: Start, message: str, detail: str) -> None:
        """Store that a start failed with a message for its user; `detail` is only logged.

        A start that failed in its first stage releases the sandbox that was reserved for it.
        """
        stage = start.task.status
        text = f"{message}\n(at stage {stage})"

        async def body(tx: Transaction) -> bool:
            if await self._stores.tasks.find(start.task.id, tx) is None:
                return False
            await self._end(tx, start, StartStatus.ERROR, text)
            if stage is StartStatus.WORKING:
                await self._parts.deletion.give_back(tx, start.task)
            failure = error_event("StartFailed", text)
            await self._parts.events.append(tx, start.conversation.id, [failure])
            return True

        if not await self._stores.db.write(body):
            await self.forget(start)
            return
        log.error(
            "conversation did not start",
            extra={
                "task_id": start.task.id,
                "stage": str(stage),
                # Further lines come from the sandbox's log and may contain the user's secrets.
                "reason": message.partition("\n")[0],
                "why": detail,
            },
        )

    async def forget(self, start: Start) -> None:
        """Delete at its agent server a conversation that was deleted here while it started."""
        log.info("conversation deleted while starting", extra={"task_id": start.task.id})
        # The agent server may have created it after it was told to delete it.
        await self._parts.deletion.retry_at_agent(start.conversation.id)

    async def _end(
        self, tx: Transaction, start: Start, status: StartStatus, detail: str | None
    ) -> None:
        start.task = msgspec.structs.replace(entered(start.task, status), detail=detail)
        await self._update(tx, start.task)

    # Storing

    async def _change(self, start: Start, **changes: Any) -> None:
        """Replace fields of the task and store it; raises ConversationDeleted."""
        await self._store(start, msgspec.structs.replace(start.task, **changes, updated_at=now()))

    async def _store(self, start: Start, task: StartTask) -> None:
        start.task = task

        async def body(tx: Transaction) -> None:
            if await self._stores.tasks.find(task.id, tx) is None:
                raise ConversationDeleted
            await self._update(tx, task)

        await self._stores.db.write(body)

    async def _update(self, tx: Transaction, task: StartTask) -> None:
        await self._stores.tasks.update(tx, task)
        tx.after_commit(lambda: self._parts.followers.announce(task))


def entered(task: StartTask, status: StartStatus) -> StartTask:
    """Return the task in a new stage, with the duration of the previous one."""
    moment = now()
    *earlier, last = task.stages
    ended = msgspec.structs.replace(last, duration_ms=milliseconds(moment - last.started_at))
    stages = (*earlier, ended, Stage(status=status, started_at=moment))
    return msgspec.structs.replace(task, status=status, stages=stages, updated_at=moment)


@contextlib.contextmanager
def timed(start: Start, part: str) -> Iterator[None]:
    """Measure a part of the present stage inside the context; stored with the next change."""
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
