"""Deleting conversations: the records at once, what is left in sandboxes in the background.

A sandbox that nobody lives in any more goes as a whole. Where others live, the agent server is
told to forget the conversation, until that works.
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

_UNTOLD: Final = """SELECT r.id, r.sandbox_id FROM removed_conversations AS r
    JOIN sandboxes AS b ON b.id = r.sandbox_id
    WHERE r.told_at IS NULL AND b.phase = 'running'"""
_BATCH: Final = 500
_DELETE_SOME: Final = """DELETE FROM events WHERE conversation_id = :id AND seq IN (
    SELECT seq FROM events WHERE conversation_id = :id AND seq < :end ORDER BY seq LIMIT :batch)"""
_AGAIN: Final = "ON CONFLICT (id) DO UPDATE SET sandbox_id = excluded.sandbox_id, told_at = NULL"


_WITH_FILES: Final = (SandboxStatus.STARTING, SandboxStatus.RUNNING, SandboxStatus.PAUSED)


def archive_of(conversation: Conversation, sandbox_id: str, *, releases: bool) -> Archive:
    """Return the record of a workspace that is to be saved."""
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
    """Deletes conversations, and sees to it that their agents end too."""

    stores: ConversationStores
    sandboxes: Sandboxes
    archives: Archives
    supervisor: Supervisor
    keep_failed_seconds: float

    async def remove(self, conversation_id: str) -> list[str]:
        """Delete a conversation and its descendants; return the ids of their start tasks.

        In the same transaction the sandboxes that are empty then are given up. The events of long
        ones have gone before, in pieces between which others write.
        """
        conversations = self.stores.conversations
        for member in await conversations.family(self.stores.db, conversation_id):
            await self._shorten(member.id)

        async def body(tx: Transaction) -> list[str]:
            family = await conversations.family(tx, conversation_id)
            ids = [member.id for member in family]
            tasks = await self.stores.tasks.ids_of_conversations(tx, ids)
            await conversations.delete(tx, family)
            await self._leave_sandboxes(tx, family)
            return tasks

        return await self.stores.db.write(body)

    async def _shorten(self, conversation_id: str) -> None:
        """Delete the events of a conversation but for the last ones, which go with it."""
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
        """Give up the sandbox that was reserved for a start which failed before it used it."""
        order = task.request
        if task.sandbox_id is None or order.sandbox_id or order.parent_conversation_id:
            return
        await self._release_alone(tx, task.sandbox_id)

    async def is_removed(
        self, conversation_id: str, sandbox_id: str, reader: Queryable | None = None
    ) -> bool:
        """Whether a conversation that nobody knows was deleted out of this sandbox."""
        found = await _find_sandbox(reader or self.stores.db, conversation_id)
        return found == sandbox_id

    async def tell_again(self, conversation_id: str) -> None:
        """Tell the agent server of a deleted conversation, which it may have started since."""
        await self._set_told(conversation_id, None)
        self._tell_soon(conversation_id)

    async def tell_before(self, conversation_id: str, sandbox_id: str, agent: AgentServer) -> None:
        """Have an agent server forget a deleted conversation before another one has its id there.

        Raises as the agent server does.
        """
        await self.supervisor.join(_task_name(conversation_id))
        sql = "SELECT sandbox_id FROM removed_conversations WHERE id = :id AND told_at IS NULL"
        if await self.stores.db.value(sql, {"id": conversation_id}) == sandbox_id:
            await self._forget_at(agent, conversation_id)

    async def tell_all(self) -> None:
        """Tell the agent servers that could not be told so far."""
        for conversation_id in await self.stores.db.column(_UNTOLD):
            self._tell_soon(conversation_id)

    async def remove_failed(self) -> None:
        """Delete the sandboxes that were made for starts which failed long ago."""
        for conversation in await self.stores.conversations.failed_before(
            now() - timedelta(seconds=self.keep_failed_seconds)
        ):
            task = await self.stores.tasks.find_of_conversation(conversation.id)
            order = task.request if task else None
            if order is None or order.sandbox_id or order.parent_conversation_id:
                # The sandbox was there before the start and is not the start's to remove.
                continue
            release = partial(self._release_alone, sandbox_id=conversation.sandbox_id or "")
            if await self.stores.db.write(release):
                log.info(
                    "removing the sandbox of a failed start",
                    extra={"sandbox_id": conversation.sandbox_id},
                )

    async def _release_alone(self, tx: Transaction, sandbox_id: str) -> bool:
        """Give up a sandbox in which one conversation lives; say whether that is so."""
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
                await tx.insert("removed_conversations", row, _AGAIN)
                tx.after_commit(partial(self._tell_soon, member.id))

    async def _give_up(self, tx: Transaction, last: Conversation, sandbox_id: str) -> None:
        """Let a sandbox go with its last conversation, once the workspace is saved if it is to be."""
        sandbox = await self.sandboxes.find_any(sandbox_id, tx)
        if self.archives.config.on_delete and last.is_ready and _has_files(sandbox):
            await self.archives.insert(tx, archive_of(last, sandbox_id, releases=True))
        else:
            await self.archives.release(tx, sandbox_id)

    async def _set_told(self, conversation_id: str, told_at: datetime | None) -> None:
        """Store when the agent server was told, or that it has to be told again."""
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
            # Started anew under the same id; the agent's is not the deleted one any more.
            return
        try:
            await self._forget_at(agent, conversation_id)
        except AgentsvcError as exc:
            log.info(
                "conversation not yet deleted at its agent server",
                extra={"conversation_id": conversation_id, "reason": str(exc)},
            )

    async def _forget_at(self, agent: AgentServer, conversation_id: str) -> None:
        # Deleting waits for the end of a step, and interrupting ends it.
        with contextlib.suppress(NotFound):
            await agent.interrupt(conversation_id)
        await agent.delete_conversation(conversation_id)
        await self._set_told(conversation_id, now())


def _task_name(conversation_id: str) -> str:
    return f"forget {conversation_id}"


async def _find_sandbox(reader: Queryable, conversation_id: str) -> str | None:
    """Return the sandbox a deleted conversation was in."""
    sql = "SELECT sandbox_id FROM removed_conversations WHERE id = :id"
    return await reader.value(sql, {"id": conversation_id})


def _has_files(sandbox: Sandbox | None) -> bool:
    """Whether there are files that are not going anyway."""
    if sandbox is None or sandbox.target is Target.DELETED:
        return False
    return sandbox.status in _WITH_FILES
