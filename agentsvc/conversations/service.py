"""The conversations of all users, as both API generations use them."""

import contextlib
from collections.abc import Collection, Iterable, Sequence

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import AgentsvcError, Conflict, Gone, NotFound, QuotaExceeded, parse_uuid
from agentsvc.conversations.archives import Archive, Archives
from agentsvc.conversations.deletion import ConversationDeletion, archive_of
from agentsvc.conversations.event_ingestor import EventIngestor, refusal_event
from agentsvc.conversations.model import (
    SANDBOX_GONE,
    Conversation,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    StartTask,
)
from agentsvc.conversations.model_tokens import ModelToken
from agentsvc.conversations.records import patched, shown
from agentsvc.conversations.starting.service import Claim, Starts
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import (
    CopySource,
    ExecutionStatus,
    StartOrder,
    WhenFull,
    check_branch,
    check_repository,
)
from agentsvc.plugin import Checkpoint
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus, failure_of
from agentsvc.storage import Transaction, note_effect


class Conversations(msgspec.Struct, kw_only=True, eq=False):
    """Searches, changes, forks and deletes conversations, and calls their agents."""

    stores: ConversationStores
    sandboxes: Sandboxes
    archives: Archives
    ingestor: EventIngestor
    deletion: ConversationDeletion
    starts: Starts
    """Starts of conversations."""

    def __post_init__(self) -> None:
        self.sandboxes.on_change(self.ingestor.sandbox_changed)

    # Queries

    async def find_many(
        self, user_id: str, ids: Sequence[str], *, include_starting: bool = False
    ) -> list[ConversationView | None]:
        """Return a user's conversations in the order of the ids, None for each unknown one."""
        silent = frozenset(self.ingestor.liveness.silent())

        async def read() -> list[ConversationView | None]:
            found = await self.stores.conversations.find_of_user(
                user_id, ids, include_starting=include_starting
            )
            shown = await self._view(user_id, found.values(), silent)
            views = {view.conversation.id: view for view in shown}
            return [views.get(conversation_id) for conversation_id in ids]

        key = (Conversations.find_many, user_id, *ids, include_starting, silent)
        return await self.stores.db.keep(key, read, weigh=len)

    async def get(
        self, user_id: str, conversation_id: str, *, include_starting: bool = False
    ) -> ConversationView:
        """Return a user's conversation; raises NotFound."""
        [view] = await self.find_many(user_id, [conversation_id], include_starting=include_starting)
        if view is None:
            raise NotFound(f"Conversation {shown(conversation_id)} not found")
        return view

    async def is_of_user(self, user_id: str, conversation_id: str) -> bool:
        """Return whether a conversation belongs to a user, whether it is started or not."""
        return await self.stores.db.keep(
            (Conversations.is_of_user, user_id, conversation_id),
            lambda: self.stores.conversations.is_of_user(user_id, conversation_id),
        )

    async def resolve(self, user_id: str, text: str) -> str | None:
        """Return the id of a conversation by its alias or its hex or dashed UUID, or None."""
        return await self.stores.conversations.find_by_alias(user_id, text) or parse_uuid(text)

    async def search(
        self, user_id: str, query: ConversationQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[ConversationView], str | None]:
        """Return a page of a user's conversations and the id of the next page."""
        silent = frozenset(self.ingestor.liveness.silent())

        async def read() -> tuple[list[ConversationView], str | None]:
            found, next_page_id = await self.stores.conversations.search(
                user_id, query, page_id=page_id, limit=limit
            )
            return await self._view(user_id, found, silent), next_page_id

        key = (Conversations.search, user_id, query, page_id, limit, silent)
        return await self.stores.db.keep(key, read, weigh=lambda page: len(page[0]))

    async def count(self, user_id: str, query: ConversationQuery) -> int:
        """Return how many of a user's conversations match a query."""
        return await self.stores.conversations.count(user_id, query)

    async def note_refusal(self, grant: ModelToken, status: int, message: str) -> None:
        """Store an event in the conversation that its model fails now."""
        with contextlib.suppress(NotFound, QuotaExceeded):
            await self.ingestor.record(
                grant.conversation_id,
                [refusal_event(status, message)],
                sandbox_id=grant.sandbox_id,
            )

    # Changes

    async def update(
        self, user_id: str, conversation_id: str, patch: ConversationPatch
    ) -> ConversationView:
        """Apply a patch to a conversation; raises NotFound, BadRequest or InvalidRequest."""
        if isinstance(patch.repository, str) and "://" not in patch.repository:
            check_repository(patch.repository)
        if isinstance(patch.branch, str):
            check_branch(patch.branch)
        await self.get(user_id, conversation_id, include_starting=True)

        async def body(tx: Transaction) -> None:
            found = await self.stores.conversations.find(conversation_id, tx)
            if found is None:
                raise NotFound(f"Conversation {shown(conversation_id)} not found")
            await self.stores.conversations.update(tx, patched(found, patch))

        await self.stores.db.write(body)
        return await self.get(user_id, conversation_id, include_starting=True)

    async def delete(self, user_id: str, conversation_id: str) -> None:
        """Delete a conversation with its events, its children, and a sandbox without others.

        The sandbox is deleted in the background, with retries. Raises NotFound.
        """
        await self.get(user_id, conversation_id, include_starting=True)
        self.starts.forget(await self.deletion.remove(conversation_id))

    async def save_workspace(self, user_id: str, conversation_id: str) -> Archive:
        """Create an archive of a conversation's workspace, which is saved in the background.

        Raises NotFound, Conflict during the start, and Gone if the sandbox is gone.
        """
        archive = _archive_of(await self.get(user_id, conversation_id, include_starting=True))

        async def body(tx: Transaction) -> None:
            await self.archives.insert(tx, archive)
            await note_effect(tx, archive)

        await self.stores.db.write(body)
        return archive

    async def fork(
        self,
        user_id: str,
        conversation_id: str,
        order: StartOrder,
        *,
        up_to: str | None = None,
        claim: Claim | None = None,
    ) -> StartTask:
        """Start a fork: a new conversation in a new sandbox with a copy of the workspace and history.

        `up_to` is the id of the last event to copy, `claim` as for `Starts.start`. If the sandbox
        is gone, the fork begins with the repository as it is now, or with no files. Raises as
        `save_workspace` and `Starts.start`, NotFound if the event does not exist, and Gone if the
        history is gone, too.
        """
        view = await self.get(user_id, conversation_id, include_starting=True)
        if up_to is not None:
            number = await self.ingestor.number_of(view.conversation.id, up_to)
            order = msgspec.structs.replace(order, fork_until=number)
        if view.conversation.is_ready and view.sandbox_status is SandboxStatus.MISSING:
            order = await self._without_files(view.conversation, order)
            return await self.starts.start(user_id, order, claim=claim)
        found, archive = await self._copied(view), None
        if found is None:
            archive = _archive_of(view)
        else:
            copied, spec_id = found
            order = msgspec.structs.replace(order, copied=copied, spec_id=spec_id)
        # If this sync fails, events that are not delivered yet are missing in the copy.
        with contextlib.suppress(AgentsvcError):
            await self.ingestor.sync(view.conversation.id)
        order = msgspec.structs.replace(order, fork_of=view.conversation.id)
        return await self.starts.start(user_id, order, claim=claim, archive=archive)

    async def _copied(self, view: ConversationView) -> tuple[CopySource, str] | None:
        """Return the sandbox to copy and its spec; None to copy only the workspace.

        A copied sandbox has all its files, so only one with no other conversation is copied.
        """
        conversation, sandbox = view.conversation, view.sandbox
        if not conversation.is_ready or sandbox is None or sandbox.spec.withholds_secrets:
            return None
        base = sandbox.working_dir.rstrip("/")
        is_inside = base and f"{conversation.working_dir}/".startswith(f"{base}/")
        if not is_inside or not self.sandboxes.layers.can_copy(sandbox):
            return None
        if len(await self.stores.conversations.of_sandbox(sandbox.id)) != 1:
            return None
        if sandbox.spec_id not in {spec.id for spec in self.sandboxes.specs()}:
            return None
        copied = CopySource(
            sandbox_id=sandbox.id,
            backend=sandbox.backend,
            working_dir=conversation.working_dir,
            directory=conversation.working_dir.removeprefix(base).strip("/"),
            base=sandbox.spec.base,
        )
        return copied, sandbox.spec_id

    async def checkpoints(self, user_id: str, conversation_id: str) -> Sequence[Checkpoint]:
        """Return the checkpoints of a conversation's sandbox, oldest first; raises NotFound."""
        view = await self.get(user_id, conversation_id, include_starting=True)
        return await self.sandboxes.checkpoints.of_sandbox(view.sandbox) if view.sandbox else ()

    async def check_rollback(self, view: ConversationView, checkpoint_id: str) -> Sandbox:
        """Return the sandbox of a conversation if its files may be restored from a checkpoint.

        Raises NotFound, and Conflict while the agent runs or if the sandbox has other
        conversations.
        """
        sandbox = view.sandbox
        known = await self.sandboxes.checkpoints.of_sandbox(sandbox) if sandbox else ()
        if sandbox is None or checkpoint_id not in {one.id for one in known}:
            raise NotFound("Checkpoint not found")
        if view.execution_status is ExecutionStatus.RUNNING or not view.conversation.is_ready:
            raise Conflict("The agent is running: interrupt it first")
        if len(await self.stores.conversations.of_sandbox(sandbox.id)) != 1:
            raise Conflict("Other conversations in this sandbox share its files")
        return sandbox

    async def restore_checkpoint(self, view: ConversationView, checkpoint_id: str) -> None:
        """Stop a conversation's sandbox, with all its processes, and restore its files.

        The next message starts it again, unless its user had paused it. Raises as `check_rollback`
        and `Sandboxes.stop`.
        """
        sandbox = await self.check_rollback(view, checkpoint_id)
        await self.sandboxes.stop(sandbox.user_id, sandbox.id, until_needed=True)
        await self.sandboxes.checkpoints.roll_back(sandbox, checkpoint_id)

    async def _without_files(self, conversation: Conversation, order: StartOrder) -> StartOrder:
        """Return the order of a fork without a workspace to copy; raises Gone without a history."""
        if not await self.ingestor.has_events(conversation.id):
            raise Gone("Neither the sandbox nor the history of this conversation exists any more")
        return msgspec.structs.replace(
            order,
            fork_of=conversation.id,
            repository=conversation.selected_repository,
            branch=conversation.selected_branch,
            provider=conversation.git_provider,
        )

    # Calls to the agent

    async def interrupt(self, user_id: str, conversation_id: str) -> None:
        """Stop the run at once; raises as `require_agent`."""
        view = await self.get(user_id, conversation_id, include_starting=True)
        await self.require_agent(view).interrupt(conversation_id)

    async def resume(
        self, user_id: str, sandbox_id: str, *, when_full: WhenFull | None = None
    ) -> None:
        """Resume a sandbox as `Sandboxes.resume`, and keep it running after an archive is saved."""
        await self.sandboxes.resume(user_id, sandbox_id, when_full=when_full)
        await self.stores.db.write(lambda tx: self.archives.forget_rest(tx, sandbox_id))

    def note_message_sent(self, view: ConversationView) -> None:
        """Mark the sandbox as used and schedule a sync, after a message was delivered."""
        self.sandboxes.usage.note(view.conversation.sandbox_id)
        self.ingestor.sync_after_message(view.conversation.id)

    # Periodic work

    async def recover(self) -> None:
        """Sync all conversations and retry deletions; called once, before starts are resumed."""
        await self.ingestor.sync_all()
        await self.deletion.retry_pending()

    async def sync(self) -> None:
        """Sync stale conversations, resume interrupted starts, retry deletions; periodic."""
        await self.ingestor.sync_stale()
        await self.starts.go_on()
        await self.deletion.retry_pending()

    async def _view(
        self, user_id: str, conversations: Iterable[Conversation], silent: Collection[str | None]
    ) -> list[ConversationView]:
        listed = list(conversations)
        ids = list({one.sandbox_id for one in listed if one.sandbox_id is not None})
        found = dict(zip(ids, await self.sandboxes.find_many(user_id, ids), strict=True))
        return [
            ConversationView(
                conversation=one,
                sandbox=found.get(one.sandbox_id) if one.sandbox_id else None,
                is_silent=one.sandbox_id in silent,
            )
            for one in listed
        ]

    def require_agent(self, view: ConversationView) -> AgentServer:
        """Return the client of a conversation's agent server.

        Raises Conflict if its start failed or has not ended, or its sandbox is paused or starting;
        Gone if the sandbox is gone; SandboxNotUsable if it failed.
        """
        sandbox, status = view.sandbox, view.sandbox_status
        if view.conversation.start_failed:
            raise Conflict(f"The conversation did not start: {view.conversation.start_detail}")
        if not view.conversation.is_ready:
            raise Conflict("The conversation is still being started")
        if sandbox is None or status is SandboxStatus.MISSING:
            raise Gone(SANDBOX_GONE)
        if status is SandboxStatus.ERROR:
            raise failure_of(sandbox)
        agent = self.sandboxes.agent_of(sandbox)
        if agent is None:
            raise Conflict(
                f"Sandbox is {status}. Use POST /api/v1/sandboxes/{sandbox.id}/resume"
                " to resume it first."
            )
        return agent


def _archive_of(view: ConversationView) -> Archive:
    """Return the record of a new archive of a workspace; raises Conflict and Gone."""
    if not view.conversation.is_ready:
        raise Conflict("The conversation has not been started, and has no workspace")
    if view.sandbox is None or view.sandbox_status is SandboxStatus.MISSING:
        raise Gone("The sandbox of this conversation does not exist any more")
    return archive_of(view.conversation, view.sandbox.id, releases=False)
