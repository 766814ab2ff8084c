"""The conversations of all users, as both API generations use them."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.accounts import quotas
from agentsvc.agentserver import AgentClient, AgentServer
from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    Conflict,
    EventBus,
    Gone,
    NotFound,
    QuotaExceeded,
    SandboxNotUsable,
    Supervisor,
    new_id,
    now,
    parse_uuid,
)
from agentsvc.config import ConversationsConfig, LimitsConfig
from agentsvc.conversations.archives import Archive, Archives, ArchiveState
from agentsvc.conversations.callbacks import SandboxCallbacks
from agentsvc.conversations.deletion import ConversationDeletion, archive_of
from agentsvc.conversations.deltas import DeltaSubscriptions
from agentsvc.conversations.event_ingestor import EventIngestor, refusal_event
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.history_transfer import HistoryTransfer
from agentsvc.conversations.model import (
    SANDBOX_GONE,
    Conversation,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    Generation,
    StartTask,
)
from agentsvc.conversations.model_tokens import ModelToken, ModelTokens
from agentsvc.conversations.records import (
    new_conversation,
    new_task,
    patched,
    require_settings,
    shown,
)
from agentsvc.conversations.starting.pipeline import StartPipeline
from agentsvc.conversations.starting.progress import Start
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.table import ConversationTable
from agentsvc.domain import StartOrder, StartSort, check_branch, check_repository, restore_secrets
from agentsvc.sandboxes import Sandboxes, SandboxStatus
from agentsvc.settings import SecretStore, Settings, SettingsStore
from agentsvc.storage import Database, Queryable, Transaction, Vault, note_effect

log = logging.getLogger(__name__)

_LIMITS: Final = LimitsConfig()


class Conversations:
    """Starts, finds, changes and deletes conversations, and talks to their agents."""

    def __init__(
        self,
        *,
        db: Database,
        vault: Vault,
        sandboxes: Sandboxes,
        agents: AgentClient,
        events: EventLog,
        settings: SettingsStore,
        secrets: SecretStore,
        supervisor: Supervisor,
        config: ConversationsConfig,
        archives: Archives,
        event_bus: EventBus,
        grants: ModelTokens,
        limits: LimitsConfig = _LIMITS,
    ) -> None:
        self._db = db
        self._table = ConversationTable(db, event_bus)
        self._tasks = StartTaskTable(db, vault, event_bus)
        self._sandboxes = sandboxes
        self._archives = archives
        self._agents = agents
        self._events = events
        self._settings = settings
        self._supervisor = supervisor
        self._config = config
        self._recorder = EventIngestor(
            db=db,
            events=events,
            sandboxes=sandboxes,
            agents=agents,
            supervisor=supervisor,
            config=config,
            event_bus=event_bus,
            most_event_bytes=limits.event_bytes_per_sandbox,
        )
        self.deltas = DeltaSubscriptions(
            table=self._table,
            sandboxes=sandboxes,
            agents=agents,
            events=events,
            recorder=self._recorder,
            supervisor=supervisor,
        )
        """What agent servers stream."""
        self._remover = ConversationDeletion(
            db=db,
            table=self._table,
            tasks=self._tasks,
            sandboxes=sandboxes,
            agents=agents,
            archives=archives,
            supervisor=supervisor,
        )
        self.reports = SandboxCallbacks(
            db=db,
            vault=vault,
            sandboxes=sandboxes,
            secrets=secrets,
            table=self._table,
            recorder=self._recorder,
            remover=self._remover,
            most_adopted=limits.adopted_per_sandbox,
        )
        """What the sandboxes call back."""
        self._starter = StartPipeline(
            db=db,
            vault=vault,
            sandboxes=sandboxes,
            agents=agents,
            settings=settings,
            secrets=secrets,
            recorder=self._recorder,
            remover=self._remover,
            config=config,
            archives=archives,
            carrier=HistoryTransfer(events, time_limit=config.start_seconds),
            on_change=self._task_changed,
            event_bus=event_bus,
            grants=grants,
        )
        self._followers: defaultdict[str, list[asyncio.Queue[StartTask | None]]]
        self._followers = defaultdict(list)
        self._on_start_change: list[Callable[[StartTask], None]] = []
        sandboxes.on_change(self._recorder.sandbox_changed)

    # Starting

    async def start(
        self,
        user_id: str,
        order: StartOrder,
        *,
        generation: Generation = Generation.V1,
        claim: Callable[[Transaction, StartTask], Awaitable[None]] | None = None,
    ) -> StartTask:
        """Ask for a conversation; what was asked is stored when this returns.

        The same order for a known conversation id gives its task; another one is a Conflict.
        `claim` runs in the transaction that creates the start task, and undoes it by raising; it is
        not called where there is a task already.
        Raises BadRequest or NotFound for what can never be started, SandboxLimitReached where
        there is no room for it now, and QuotaExceeded where the user may start no more.
        """
        settings = await self._settings.find(user_id)
        order = _with_settings(order, settings)
        if order.archive_id is not None:
            await self._check_archive(user_id, order)
        conversation_id = order.conversation_id or new_id()
        earlier = await self._earlier_task(user_id, order)
        if earlier is not None:
            return earlier
        first_message(order)
        self._sandboxes.get_spec(order.spec_id)
        _check_source(order)
        conversation = new_conversation(
            user_id,
            conversation_id,
            order,
            settings or Settings(),
            await self._parent(user_id, order),
            generation=generation,
        )
        task = new_task(user_id, conversation_id, order, generation)

        async def body(tx: Transaction) -> StartTask:
            earlier = await self._earlier_task(user_id, order, tx)
            if earlier is not None:
                return earlier
            if order.alias and await self._table.find_by_alias(user_id, order.alias, tx):
                raise Conflict("A conversation with this name exists")
            await quotas.note_start(tx, user_id)
            await self._insert(tx, conversation, order)
            await self._tasks.insert(tx, task)
            asked = Start(
                task=task,
                conversation=conversation,
                deadline=now(),
                settings=settings or Settings(),
            )
            await self._starter.reserve(tx, asked)
            if claim is not None:
                await claim(tx, asked.task)
            await note_effect(tx, asked.task)
            tx.after_commit(lambda: self._run(task.id))
            return asked.task

        return await self._db.write(body)

    async def find_start_tasks(self, user_id: str, ids: Sequence[str]) -> list[StartTask | None]:
        """Return a user's start tasks in the order of the ids, None for each unknown one."""
        found = await self._tasks.find_of_user(user_id, ids)
        return [found.get(task_id) for task_id in ids]

    async def search_start_tasks(
        self,
        user_id: str,
        *,
        conversation_id: str | None = None,
        created_at_gte: datetime | None = None,
        sort: StartSort = StartSort.CREATED_AT_DESC,
        page_id: str | None = None,
        limit: int = 100,
    ) -> tuple[list[StartTask], str | None]:
        """Return a page of a user's start tasks and the id of the next page."""
        return await self._tasks.search(
            user_id,
            conversation_id=conversation_id,
            created_at_gte=created_at_gte,
            sort=sort,
            page_id=page_id,
            limit=limit,
        )

    async def count_start_tasks(
        self,
        user_id: str,
        *,
        conversation_id: str | None = None,
        created_at_gte: datetime | None = None,
    ) -> int:
        """Return how many start tasks a user has."""
        return await self._tasks.count(
            user_id, conversation_id=conversation_id, created_at_gte=created_at_gte
        )

    async def follow(self, user_id: str, task_id: str) -> AsyncIterator[StartTask]:
        """Yield a start task as it is now and after each change, until it is READY or ERROR.

        Ends early if the conversation is deleted. Raises NotFound.
        """
        queue: asyncio.Queue[StartTask | None] = asyncio.Queue()
        self._followers[task_id].append(queue)
        try:
            [task] = await self.find_start_tasks(user_id, [task_id])
            if task is None:
                raise NotFound
            yield task
            while not task.status.is_final:
                changed = await queue.get()
                if changed is None:
                    return
                if changed.status.is_final or changed.updated_at > task.updated_at:
                    task = changed
                    yield task
        finally:
            self._followers[task_id].remove(queue)
            if not self._followers[task_id]:
                del self._followers[task_id]

    # Finding

    async def find_many(
        self, user_id: str, ids: Sequence[str], *, include_starting: bool = False
    ) -> list[ConversationView | None]:
        """Return a user's conversations in the order of the ids, None for each unknown one."""
        found = await self._table.find_of_user(user_id, ids, include_starting=include_starting)
        views = {view.conversation.id: view for view in await self._view(user_id, found.values())}
        return [views.get(conversation_id) for conversation_id in ids]

    async def get(
        self, user_id: str, conversation_id: str, *, include_starting: bool = False
    ) -> ConversationView:
        """Return a user's conversation; raises NotFound."""
        [view] = await self.find_many(user_id, [conversation_id], include_starting=include_starting)
        if view is None:
            raise NotFound(f"Conversation {shown(conversation_id)} not found")
        return view

    async def resolve(self, user_id: str, text: str) -> str | None:
        """Return the id behind a hex or dashed UUID or a user's own name, or None."""
        return await self._table.find_by_alias(user_id, text) or parse_uuid(text)

    async def search(
        self, user_id: str, query: ConversationQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[ConversationView], str | None]:
        """Return a page of a user's conversations and the id of the next page."""
        found, next_page_id = await self._table.search(user_id, query, page_id=page_id, limit=limit)
        return await self._view(user_id, found), next_page_id

    async def count(self, user_id: str, query: ConversationQuery) -> int:
        """Return how many of a user's conversations a query finds."""
        return await self._table.count(user_id, query)

    async def note_refusal(self, grant: ModelToken, status: int, message: str) -> None:
        """Tell, in the conversation itself, that its model does not answer now."""
        with contextlib.suppress(NotFound, QuotaExceeded):
            await self._recorder.record(
                grant.conversation_id,
                [refusal_event(status, message)],
                sandbox_id=grant.sandbox_id,
            )

    # Changing

    async def update(
        self, user_id: str, conversation_id: str, patch: ConversationPatch
    ) -> ConversationView:
        """Change what is stored of a conversation; raises NotFound."""
        if isinstance(patch.repository, str) and "://" not in patch.repository:
            check_repository(patch.repository)
        if isinstance(patch.branch, str):
            check_branch(patch.branch)
        await self.get(user_id, conversation_id, include_starting=True)

        async def body(tx: Transaction) -> None:
            found = await self._table.find(conversation_id, tx)
            if found is None:
                raise NotFound(f"Conversation {shown(conversation_id)} not found")
            await self._table.update(tx, patched(found, patch))

        await self._db.write(body)
        return await self.get(user_id, conversation_id, include_starting=True)

    async def delete(self, user_id: str, conversation_id: str) -> None:
        """Remove a conversation with its events, its children, and a sandbox left empty.

        The sandbox goes in the background, tried until it works. Raises NotFound.
        """
        await self.get(user_id, conversation_id, include_starting=True)
        for task_id in await self._remover.remove(conversation_id):
            self._starter.turns.leave(task_id)
            self._tell_followers(task_id, None)

    async def save_workspace(self, user_id: str, conversation_id: str) -> Archive:
        """Ask for an archive of a conversation's workspace, which is saved in the background.

        Raises NotFound, Conflict during the start, and Gone where there is no sandbox any more.
        """
        view = await self.get(user_id, conversation_id, include_starting=True)
        if not view.conversation.is_ready:
            raise Conflict("The conversation has not been started, and has no workspace")
        if view.sandbox is None or view.sandbox_status is SandboxStatus.MISSING:
            raise Gone("The sandbox of this conversation does not exist any more")
        archive = archive_of(view.conversation, view.sandbox.id, releases=False)

        async def body(tx: Transaction) -> None:
            await self._archives.insert(tx, archive)
            await note_effect(tx, archive)

        await self._db.write(body)
        return archive

    async def fork(self, user_id: str, conversation_id: str, order: StartOrder) -> StartTask:
        """Start another conversation, in a new sandbox, on a copy of a workspace and its history.

        Where the sandbox is gone, it begins as its repository is, or with no files. Raises as
        `save_workspace` and `start`, and Gone where there is no history either.
        """
        view = await self.get(user_id, conversation_id, include_starting=True)
        if view.conversation.is_ready and view.sandbox_status is SandboxStatus.MISSING:
            return await self.start(user_id, await self._without_files(view.conversation, order))
        archive = await self.save_workspace(user_id, conversation_id)
        # What the agent server does not tell now is not in the copy.
        with contextlib.suppress(AgentsvcError):
            await self._recorder.sync(archive.conversation_id)
        order = msgspec.structs.replace(
            order, archive_id=archive.id, fork_of=archive.conversation_id
        )
        return await self.start(user_id, order)

    async def _without_files(self, conversation: Conversation, order: StartOrder) -> StartOrder:
        """Return the order of a fork of which there is no workspace to copy."""
        if not (await self._events.find_last(conversation.id) or 0) > 0:
            raise Gone("Neither the sandbox nor the history of this conversation exists any more")
        return msgspec.structs.replace(
            order,
            fork_of=conversation.id,
            repository=conversation.selected_repository,
            branch=conversation.selected_branch,
            provider=conversation.git_provider,
        )

    async def remove_failed(self) -> None:
        """Delete the sandboxes of starts that failed long ago, where nobody else lives."""
        await self._remover.remove_failed(timedelta(seconds=self._config.keep_failed_seconds))

    # Talking to the agent

    async def agent(self, user_id: str, conversation_id: str) -> AgentServer:
        """Return the calls to the agent server of a conversation; raises as `require_agent`."""
        return self.require_agent(await self.get(user_id, conversation_id, include_starting=True))

    async def interrupt(self, user_id: str, conversation_id: str) -> None:
        """Stop the run at once; raises as `require_agent`."""
        view = await self.get(user_id, conversation_id, include_starting=True)
        await self.require_agent(view).interrupt(conversation_id)

    def was_told(self, view: ConversationView) -> None:
        """Take in that an agent was told something: its sandbox is used, and there is news."""
        self._sandboxes.usage.note(view.conversation.sandbox_id)
        self._recorder.sync_soon(
            view.conversation.id, wait_seconds=self._config.webhook_flush_seconds
        )

    # What goes on by itself

    async def recover(self) -> None:
        """Fetch what was missed and go on with what was unfinished; called once at the start."""
        await self._recorder.sync_all()
        await self._go_on()

    async def sync(self) -> None:
        """Fetch what was not delivered and go on with what got stuck; called now and then."""
        await self._recorder.sync_stale()
        await self._go_on()

    async def poll(self) -> None:
        """Fetch the events of sandboxes that cannot reach this server."""
        await self._recorder.sync_uncalled()

    async def watch(self) -> None:
        """Ask the agent servers of runs whether they are there."""
        await self._recorder.watch()

    # Inside

    async def _go_on(self) -> None:
        """Go on with the starts and removals that a stop, a crash or a full disk interrupted."""
        unfinished = await self._tasks.unfinished()
        waiting = [one for one in unfinished if not self._supervisor.is_running(_start_name(one))]
        self._starter.turns.expect(waiting)
        for task_id in waiting:
            log.info("going on with a start", extra={"task_id": task_id})
            self._run(task_id)
        await self._remover.tell_all()

    def _run(self, task_id: str) -> None:
        self._supervisor.spawn(_start_name(task_id), lambda: self._starter.run(task_id))

    def on_start_change(self, tell: Callable[[StartTask], None]) -> None:
        """Call this with each start that gets on, once that is stored."""
        self._on_start_change.append(tell)

    def _task_changed(self, task: StartTask) -> None:
        self._tell_followers(task.id, task)
        for tell in self._on_start_change:
            tell(task)

    def _tell_followers(self, task_id: str, task: StartTask | None) -> None:
        for queue in self._followers.get(task_id, ()):
            queue.put_nowait(task)

    async def _earlier_task(
        self, user_id: str, order: StartOrder, reader: Queryable | None = None
    ) -> StartTask | None:
        if order.conversation_id is None:
            return None
        known = await self._table.find(order.conversation_id, reader)
        if known is None:
            return None
        task = await self._tasks.find_of_conversation(known.id, reader)
        if known.user_id != user_id or task is None or task.request != order:
            raise Conflict(
                "A conversation with this id exists and was started differently; nothing of this"
                " request was taken. Its messages go to `send-message` of that conversation"
            )
        return task

    async def _insert(self, tx: Transaction, conversation: Conversation, order: StartOrder) -> None:
        await self._table.insert(tx, conversation)
        if order.fork_of is not None:
            await self._events.copy(tx, order.fork_of, conversation.id)

    async def _check_archive(self, user_id: str, order: StartOrder) -> None:
        archive = await self._archives.get(user_id, order.archive_id or "")
        if archive.state is ArchiveState.FAILED:
            raise Conflict(f"The workspace could not be saved: {archive.reason}")
        if order.repository or order.parent_conversation_id or order.sandbox_id:
            raise BadRequest("An archive goes into a new sandbox, without a repository or a parent")

    async def _parent(self, user_id: str, order: StartOrder) -> Conversation | None:
        if order.parent_conversation_id is None:
            return None
        [view] = await self.find_many(user_id, [order.parent_conversation_id])
        if view is None:
            raise NotFound("Parent conversation not found")
        return view.conversation

    async def _view(
        self, user_id: str, conversations: Iterable[Conversation]
    ) -> list[ConversationView]:
        listed = list(conversations)
        ids = list({one.sandbox_id for one in listed if one.sandbox_id is not None})
        found = dict(zip(ids, await self._sandboxes.find_many(user_id, ids), strict=True))
        return [
            ConversationView(
                conversation=one,
                sandbox=found.get(one.sandbox_id) if one.sandbox_id else None,
                is_silent=self._recorder.silence.lasts(one.sandbox_id),
            )
            for one in listed
        ]

    def require_agent(self, view: ConversationView) -> AgentServer:
        """Return the calls to the agent server of a conversation.

        Raises Conflict while its sandbox is paused or starting, Gone if that is gone, and
        SandboxNotUsable if it failed.
        """
        sandbox, status = view.sandbox, view.sandbox_status
        if view.conversation.start_failed:
            raise Conflict(f"The conversation did not start: {view.conversation.start_detail}")
        if not view.conversation.is_ready:
            raise Conflict("The conversation is still being started")
        if sandbox is None or status is SandboxStatus.MISSING:
            raise Gone(SANDBOX_GONE)
        if status is SandboxStatus.ERROR:
            raise SandboxNotUsable(f"The sandbox has failed: {sandbox.reason}")
        if sandbox.agent_url is None:
            raise Conflict(
                f"Sandbox is {status}. Use POST /api/v1/sandboxes/{sandbox.id}/resume"
                " to resume it first."
            )
        return self._agents.at(sandbox.agent_url, sandbox.session_key)


def _with_settings(order: StartOrder, settings: Settings | None) -> StartOrder:
    """Return an order with what it takes of the settings; raises BadRequest where it needs some."""
    if order.settings_required:
        require_settings(order, settings)
    if order.mcp_config is None:
        return order
    stored = settings.mcp_config if settings else None
    return msgspec.structs.replace(order, mcp_config=restore_secrets(order.mcp_config, stored))


def _check_source(order: StartOrder) -> None:
    if order.repository is not None and "://" not in order.repository:
        check_repository(order.repository, order.provider)
    if order.branch is not None:
        check_branch(order.branch)


def _start_name(task_id: str) -> str:
    return f"start {task_id}"
