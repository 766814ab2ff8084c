"""Deletion of conversations: their rows at once, their remains in sandboxes in the background.

A sandbox without further conversations is deleted as a whole. Otherwise its agent server is told to
delete the conversation; that is retried until it succeeds.
"""

import contextlib
import logging
import posixpath
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import AgentsvcError, NotFound, Supervisor, now, stored_or_none
from agentsvc.conversations.archives import Archive, Archives
from agentsvc.conversations.model import Conversation, StartTask
from agentsvc.conversations.stores import ConversationStores
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus, Target
from agentsvc.storage import Queryable, Transaction

log = logging.getLogger(__name__)

_PENDING: Final = """SELECT r.id, r.sandbox_id FROM removed_conversations AS r
    JOIN sandboxes AS b ON b.id = r.sandbox_id
    WHERE r.told_at IS NULL AND b.phase = 'running'"""
_BATCH: Final = 500
_DELETE_SOME: Final = """DELETE FROM events WHERE conversation_id = :id AND seq IN (
    SELECT seq FROM events WHERE conversation_id = :id AND seq < :end ORDER BY seq LIMIT :batch)"""
_RETRY: Final = "ON CONFLICT (id) DO UPDATE SET sandbox_id = excluded.sandbox_id, told_at = NULL"


_WITH_FILES: Final = (SandboxStatus.STARTING, SandboxStatus.RUNNING, SandboxStatus.PAUSED)


def archive_of(conversation: Conversation, sandbox_id: str, *, releases: bool) -> Archive:
    """Return the record of a workspace archive that is to be saved.

    `releases` deletes the sandbox once the archive is saved.
    """
    has_repository = conversation.selected_repository is not None
    return Archive(
        user_id=conversation.user_id,
        conversation_id=conversation.id,
        title=conversation.title or "",
        sandbox_id=sandbox_id,
        working_dir=conversation.working_dir,
        directory=posixpath.basename(conversation.working_dir) if has_repository else "",
        releases=releases,
    )


class ConversationDeletion(msgspec.Struct, kw_only=True, eq=False):
    """Deletes conversations here and at their agent servers."""

    stores: ConversationStores
    sandboxes: Sandboxes
    archives: Archives
    supervisor: Supervisor
    keep_failed_seconds: float

    async def remove(self, conversation_id: str) -> list[str]:
        """Delete a conversation and its descendants; return the ids of their start tasks.

        The sandboxes that are empty then are released in the same transaction. The events of long
        conversations are deleted before it, in batches, so that other writes can run in between.
        """
        conversations = self.stores.conversations
        for member in await conversations.family(self.stores.db, conversation_id):
            await self._delete_older_events(member.id)

        async def body(tx: Transaction) -> list[str]:
            family = await conversations.family(tx, conversation_id)
            ids = [member.id for member in family]
            tasks = await self.stores.tasks.ids_of_conversations(tx, ids)
            await conversations.delete(tx, family)
            await self._leave_sandboxes(tx, family)
            return tasks

        return await self.stores.db.write(body)

    async def _delete_older_events(self, conversation_id: str) -> None:
        """Delete the events of a conversation in batches, except the last batch."""
        sql = "SELECT next_seq FROM conversations WHERE id = :id"
        end = await self.stores.db.value(sql, {"id": conversation_id})
        if end is None or end <= _BATCH:
            return
        params = {"id": conversation_id, "end": end - _BATCH, "batch": _BATCH}

        async def body(tx: Transaction) -> int:
            return await tx.run(_DELETE_SOME, params)

        while await self.stores.db.write(body) == _BATCH:
            pass

    async def give_back(self, tx: Transaction, task: StartTask) -> None:
        """Release the sandbox that was reserved for a start which failed before it used it."""
        order = task.request
        if task.sandbox_id is None or order.sandbox_id or order.parent_conversation_id:
            return
        await self._release_alone(tx, task.sandbox_id)

    async def is_removed(
        self, conversation_id: str, sandbox_id: str, reader: Queryable | None = None
    ) -> bool:
        """Return whether an unknown conversation was deleted while it was in this sandbox."""
        found = await _find_sandbox(reader or self.stores.db, conversation_id)
        return found == sandbox_id

    async def retry_at_agent(self, conversation_id: str) -> None:
        """Delete a conversation at its agent server again, which may have started it since."""
        await self._set_told(conversation_id, None)
        self._tell_soon(conversation_id)

    async def delete_before_reuse(
        self, conversation_id: str, sandbox_id: str, agent: AgentServer
    ) -> None:
        """Delete a deleted conversation at an agent server before its id is used again there.

        Raises the errors of the agent server.
        """
        await self.supervisor.join(_task_name(conversation_id))
        sql = "SELECT sandbox_id FROM removed_conversations WHERE id = :id AND told_at IS NULL"
        if await self.stores.db.value(sql, {"id": conversation_id}) == sandbox_id:
            await self._forget_at(agent, conversation_id)

    async def retry_pending(self) -> None:
        """Retry all deletions at agent servers that have not succeeded yet."""
        for conversation_id in await self.stores.db.column(_PENDING):
            self._tell_soon(conversation_id)

    async def remove_failed(self) -> None:
        """Release the sandboxes of starts that failed more than `keep_failed_seconds` ago."""
        for conversation in await self.stores.conversations.failed_before(
            now() - timedelta(seconds=self.keep_failed_seconds)
        ):
            task = await self.stores.tasks.find_of_conversation(conversation.id)
            order = task.request if task else None
            if order is None or order.sandbox_id or order.parent_conversation_id:
                # The sandbox existed before the start and is not deleted with it.
                continue
            release = partial(self._release_alone, sandbox_id=conversation.sandbox_id or "")
            if await self.stores.db.write(release):
                log.info(
                    "sandbox of a failed start released",
                    extra={"sandbox_id": conversation.sandbox_id},
                )

    async def _release_alone(self, tx: Transaction, sandbox_id: str) -> bool:
        """Release a sandbox with exactly one conversation; return whether it was released."""
        is_alone = len(await self.stores.conversations.of_sandbox(sandbox_id, tx)) == 1
        if is_alone:
            await self.archives.give_up(tx, sandbox_id)
        return is_alone

    async def _leave_sandboxes(self, tx: Transaction, family: Collection[Conversation]) -> None:
        for member in family:
            if member.sandbox_id is None:
                continue
            if not await self.stores.conversations.of_sandbox(member.sandbox_id, tx):
                await self._give_up(tx, member, member.sandbox_id)
            sandbox = await self.sandboxes.find_any(member.sandbox_id, tx)
            if sandbox is not None and sandbox.target is not Target.DELETED:
                row = {"id": member.id, "sandbox_id": member.sandbox_id}
                await tx.insert("removed_conversations", row, _RETRY)
                tx.after_commit(partial(self._tell_soon, member.id))

    async def _give_up(self, tx: Transaction, last: Conversation, sandbox_id: str) -> None:
        """Release a sandbox with its last conversation, after an archive if so configured."""
        sandbox = await self.sandboxes.find_any(sandbox_id, tx)
        if self.archives.config.on_delete and last.is_ready and _has_files(sandbox):
            await self.archives.insert(tx, archive_of(last, sandbox_id, releases=True))
        else:
            await self.archives.release(tx, sandbox_id)

    async def _set_told(self, conversation_id: str, told_at: datetime | None) -> None:
        """Store when the agent server deleted the conversation; None schedules a new attempt."""
        sql = "UPDATE removed_conversations SET told_at = :told_at WHERE id = :id"
        row = {"id": conversation_id, "told_at": stored_or_none(told_at)}
        await self.stores.db.write(lambda tx: tx.run(sql, row))

    def _tell_soon(self, conversation_id: str) -> None:
        self.supervisor.spawn(_task_name(conversation_id), lambda: self._tell(conversation_id))

    async def _tell(self, conversation_id: str) -> None:
        sandbox_id = await _find_sandbox(self.stores.db, conversation_id)
        agent = await self.sandboxes.find_agent(sandbox_id)
        if agent is None:
            return
        if await self.stores.conversations.find(conversation_id) is not None:
            # A new conversation has the same id; the agent server no longer has the deleted one.
            return
        try:
            await self._forget_at(agent, conversation_id)
        except AgentsvcError as exc:
            log.info(
                "conversation not yet deleted at its agent server",
                extra={"conversation_id": conversation_id, "reason": str(exc)},
            )

    async def _forget_at(self, agent: AgentServer, conversation_id: str) -> None:
        # Interrupt first, because a deletion waits for the end of the agent's step.
        with contextlib.suppress(NotFound):
            await agent.interrupt(conversation_id)
        await agent.delete_conversation(conversation_id)
        await self._set_told(conversation_id, now())


def _task_name(conversation_id: str) -> str:
    return f"forget {conversation_id}"


async def _find_sandbox(reader: Queryable, conversation_id: str) -> str | None:
    """Return the id of the sandbox of a deleted conversation, or None."""
    sql = "SELECT sandbox_id FROM removed_conversations WHERE id = :id"
    return await reader.value(sql, {"id": conversation_id})


def _has_files(sandbox: Sandbox | None) -> bool:
    """Return whether a sandbox has files and is not being deleted."""
    if sandbox is None or sandbox.target is Target.DELETED:
        return False
    return sandbox.status in _WITH_FILES
