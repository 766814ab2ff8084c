"""Getting one conversation started: the steps, and going on with them after a restart.

Each step may run twice: what is there already is found again. The task's row says how far a
start has come; nothing else is remembered between steps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from agentsvc.agentserver import AgentClient, AgentServer, ConversationInfo
from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    Conflict,
    ConversationDeleted,
    EventBus,
    NotFound,
    Secret,
    StartRefused,
    now,
    reason_of,
)
from agentsvc.config import ConversationsConfig
from agentsvc.conversations.archives import Archives
from agentsvc.conversations.deletion import ConversationDeletion
from agentsvc.conversations.event_ingestor import TOOL_SERVER_FAILED, EventIngestor
from agentsvc.conversations.history_transfer import HistoryTransfer
from agentsvc.conversations.message_delivery import check_first_message
from agentsvc.conversations.model_tokens import ModelTokens
from agentsvc.conversations.replay_script import recording_of
from agentsvc.conversations.replays import play
from agentsvc.conversations.secret_lookup import LookupTokens, make_lookups
from agentsvc.conversations.starting.agent_request import (
    AgentInputs,
    check_secret_names,
    chosen_model,
    make_agent_body,
    require_model,
)
from agentsvc.conversations.starting.concurrency import StartSlots
from agentsvc.conversations.starting.failure import ANEW, explain_error, explain_sandbox, with_tail
from agentsvc.conversations.starting.first_response import check_address, watch_first_answer
from agentsvc.conversations.starting.progress import (
    OnTaskChange,
    Progress,
    Start,
    entered,
    made,
    milliseconds,
    timed,
)
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.sandbox_choice import SandboxChooser
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.starting.tool_servers import Servers, find_failures
from agentsvc.conversations.starting.workspace import Clone, Workspace
from agentsvc.conversations.table import ConversationTable
from agentsvc.domain import (
    DEFAULT_HOSTS,
    Llm,
    Provider,
    StartStatus,
    check_branch,
    check_host,
    llm_to_agent,
    locate,
    secrets_of,
)
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus
from agentsvc.settings import SecretStore, SettingsStore
from agentsvc.storage import Database, Transaction, Vault

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.5
_LAST_RETRY_SECONDS: Final = 10.0
_QUEUE_LOOK_SECONDS: Final = 10.0


class StartPipeline:
    """Runs start tasks to their end."""

    def __init__(
        self,
        *,
        db: Database,
        vault: Vault,
        sandboxes: Sandboxes,
        agents: AgentClient,
        settings: SettingsStore,
        secrets: SecretStore,
        recorder: EventIngestor,
        remover: ConversationDeletion,
        config: ConversationsConfig,
        archives: Archives,
        carrier: HistoryTransfer,
        on_change: OnTaskChange,
        event_bus: EventBus,
        grants: ModelTokens,
    ) -> None:
        self._db = db
        self._grants = grants
        self._tasks = StartTaskTable(db, vault, event_bus)
        self._passes = LookupTokens(vault)
        self._table = ConversationTable(db, event_bus)
        self._sandboxes = sandboxes
        self._agents = agents
        self._settings = settings
        self._secrets = secrets
        self._recorder = recorder
        self._remover = remover
        self._config = config
        self._archives = archives
        self._carrier = carrier
        self._on_change = on_change
        self._progress = Progress(db=db, table=self._table, tasks=self._tasks, on_change=on_change)
        self.turns = StartSlots(config.starts_at_once, lapse_seconds=config.turn_seconds)
        """Who works on this machine now, and who waits for that."""
        self._begun: dict[str, Sandbox] = {}
        """What has begun since nobody started."""
        sandboxes.on_making(self._holds_back)
        self._seats = SandboxChooser(
            db=db,
            table=self._table,
            sandboxes=sandboxes,
            progress=self._progress,
            explain=self._sandbox_failure,
        )

    async def run(self, task_id: str) -> None:
        """Take a start task to READY or ERROR; returns at once if it is there or gone."""
        task = await self._tasks.find(task_id)
        conversation = await self._table.find(task.conversation_id) if task else None
        if task is None or conversation is None or task.status.is_final:
            return
        time_limit = timedelta(seconds=self._config.start_seconds)
        start = Start(task=task, conversation=conversation, deadline=now() + time_limit)
        try:
            for status, step in self._steps():
                if status is StartStatus.PREPARING_REPOSITORY and _waits_for_files(start):
                    self.turns.give_back(task_id)
                    await self._give_way(start)
                await self._progress.enter(start, status)
                await self._retry(start, step)
        except ConversationDeleted:
            await self._forget(start)
        except AgentsvcError as exc:
            tail = await self._log_tail(start.sandbox)
            await self._fail(start, explain_error(exc, tail), exc.detail or exc.code)
        except Exception:
            log.exception("conversation start failed", extra={"task_id": task_id})
            text = reason_of("An unexpected error; the server's log has the details", ANEW)
            await self._fail(start, text, "")
        finally:
            self.turns.leave(task_id)
        await self._give_way(start)

    async def _give_way(self, start: Start) -> None:
        """Have what has begun leave this machine to those that start, until none does."""
        sandbox = start.sandbox
        is_ready = start.task.status is StartStatus.READY
        if is_ready and sandbox is not None and self._sandboxes.runs_here(sandbox.spec):
            self._begun[sandbox.id] = sandbox
        if self.turns.is_over:
            self._begun.clear()
        await self._sandboxes.yielding.settle(self._begun.values())

    def _steps(self) -> list[tuple[StartStatus, Callable[[Start], Awaitable[None]]]]:
        return [
            (StartStatus.WORKING, self._check),
            (StartStatus.WAITING_FOR_SANDBOX, self._get_sandbox),
            (StartStatus.PREPARING_REPOSITORY, self._prepare_repository),
            (StartStatus.RUNNING_SETUP_SCRIPT, self._run_setup_script),
            (StartStatus.SETTING_UP_GIT_HOOKS, self._install_hooks),
            (StartStatus.SETTING_UP_SKILLS, self._load_hooks),
            (StartStatus.STARTING_CONVERSATION, self._start_conversation),
        ]

    # The steps

    async def _check(self, start: Start) -> None:
        order = start.task.request
        start.settings = await self._settings.get(start.task.user_id)
        require_model(order, start.settings)
        check_secret_names(order)
        first_message(order)
        if order.branch:
            check_branch(order.branch)
        for name, stored in (await self._secrets.provider_tokens(start.task.user_id)).items():
            provider = Provider(name)
            base_url = check_host(stored.host) if stored.host else _public_host(provider)
            if base_url is not None:
                start.tokens[provider] = (base_url, stored.token)

    async def _get_sandbox(self, start: Start) -> None:
        is_asked_for = start.task.sandbox_id is not None
        if not is_asked_for:
            await self._take_turn(start)
        with timed(start, "choice"):
            sandbox = await self._seats.choose(start)
        with timed(start, "room"):
            has_waited = await self._wait_for_room(start, sandbox.id)
        if is_asked_for or has_waited:
            await self._take_turn(start)
            await self._sandboxes.make_now(sandbox.id)
        with timed(start, "sandbox"):
            waited = await self._wait_until_it_runs(start, sandbox.id)
        if waited is None or waited.agent_url is None or waited.target.is_rest:
            raise StartRefused(await self._sandbox_failure(waited))
        start.sandbox = waited
        start.agent = self._agents.at(waited.agent_url, waited.session_key)
        try:
            with timed(start, "agent"):
                await start.agent.wait_ready(self._config.agent_seconds)
        except AgentUnavailable as exc:
            # Each further try would take as long again.
            await self._check_sandbox(start)
            remedy = "Raise `conversations.agent_seconds` in the server's config"
            text = reason_of(exc.message, remedy)
            raise StartRefused(with_tail(text, await self._log_tail(waited))) from exc

    async def _wait_until_it_runs(self, start: Start, sandbox_id: str) -> Sandbox | None:
        """Wait for a sandbox that is starting, and say meanwhile what it is waiting for."""
        reason = ""
        while True:
            seen = await self._sandboxes.wait_for(
                sandbox_id,
                partial(_is_news, reason),
                time_limit=max(0.0, (start.deadline - now()).total_seconds()),
            )
            if seen is None or _is_news(seen.reason, seen) or now() >= start.deadline:
                break
            reason = seen.reason
            await self._progress.set_detail(start, reason or None)
        await self._progress.set_detail(start, None)
        return seen

    async def _take_turn(self, start: Start) -> None:
        """Wait until few enough work on this machine; only then the time for the start begins."""
        lane = await self._seats.find_lane(start)
        with timed(start, "turn"):
            has_waited = await self.turns.take(
                start.task,
                lane,
                lambda place: self._progress.set_position(start, place, queue="its turn"),
            )
        await self._progress.set_position(start, None)
        if has_waited:
            start.deadline = now() + timedelta(seconds=self._config.start_seconds)

    async def _holds_back(self, sandbox: Sandbox) -> bool:
        """Say whether a sandbox is made only when it is the turn of the start that asked for it."""
        if not self._sandboxes.runs_here(sandbox.spec):
            return False
        waiting = await self._tasks.waiting_for(sandbox.id)
        return bool(waiting) and not any(self.turns.has_had(task_id) for task_id in waiting)

    async def _wait_for_room(self, start: Start, sandbox_id: str) -> bool:
        """Wait until there is room for the sandbox; says whether there was none at first.

        Only then the time for the start begins.
        """
        has_waited = False
        while True:
            seen = await self._sandboxes.find_any(sandbox_id)
            position = await self._sandboxes.gate.find_position(sandbox_id)
            if seen is None or position is None:
                break
            has_waited = True
            # It does not keep others from working meanwhile.
            self.turns.leave(start.task.id)
            await self._progress.set_position(start, position)
            await self._sandboxes.wait_for(
                sandbox_id,
                partial(_differs_from, seen.reason),
                time_limit=_QUEUE_LOOK_SECONDS,
            )
        if start.task.queue_position is not None:
            await self._progress.set_position(start, None)
            start.deadline = now() + timedelta(seconds=self._config.start_seconds)
        return has_waited

    async def _prepare_repository(self, start: Start) -> None:
        sandbox, agent = made(start.sandbox), made(start.agent)
        base = await self._seats.base_dir(start, sandbox)
        order, settings = start.task.request, start.settings
        repository = start.conversation.selected_repository
        if order.archive_id is not None:
            start.workspace = await self._restore(start, order.archive_id, base)
        elif repository is None or order.parent_conversation_id:
            start.workspace = Workspace(agent, base)
            if order.parent_conversation_id:
                await start.workspace.set_credentials(start.tokens)
            else:
                await start.workspace.make_empty(start.tokens)
        else:
            hosts: dict[str, str | None] = {name: url for name, (url, _) in start.tokens.items()}
            remote = locate(repository, start.conversation.git_provider, hosts)
            start.workspace = Workspace(agent, f"{base}/{remote.directory}")
            await start.workspace.set_credentials(start.tokens)
            clone = Clone(
                repository=repository,
                url=remote.url,
                branch=start.conversation.selected_branch,
                work_branch=f"openhands-workspace-{start.conversation.id[:8]}",
                is_full=settings.git_full_clone,
                time_limit=self._config.clone_seconds,
            )
            await start.workspace.clone(clone)
        await start.workspace.set_identity(settings.git_user_name, settings.git_user_email)

    async def _restore(self, start: Start, archive_id: str, base: str) -> Workspace:
        """Begin with the files of an archive, in the directory they were in."""
        agent = made(start.agent)
        archive = await self._archives.wait_ready(archive_id)
        directory = f"{base}/{archive.directory}" if archive.directory else base
        workspace = Workspace(agent, directory)
        await workspace.set_credentials(start.tokens)
        await self._archives.restore(archive, agent, directory)
        return workspace

    async def _run_setup_script(self, start: Start) -> None:
        problem = await made(start.workspace).run_setup_script(self._config.setup_script_seconds)
        await self._progress.note(start, problem)

    async def _install_hooks(self, start: Start) -> None:
        await self._progress.note(start, await made(start.workspace).install_hooks())

    async def _load_hooks(self, start: Start) -> None:
        # Skills of the project and the user are loaded by the agent itself, in the sandbox.
        start.hook_config = await made(start.workspace).load_hooks()

    async def _start_conversation(self, start: Start) -> None:
        sandbox, agent = made(start.sandbox), made(start.agent)
        await self._show_agent_url(start, sandbox)
        order = start.task.request
        steps = recording_of(order)
        title_profile = await self._share_title_profile(start, agent)
        model = chosen_model(order, start.settings)
        lent = await self._grants.lend(sandbox, start.conversation.id, model)
        inputs = AgentInputs(
            conversation_id=start.conversation.id,
            order=order,
            settings=start.settings,
            working_dir=made(start.workspace).project_dir,
            first_message=steps[0].message if steps else first_message(order),
            lookups=await make_lookups(
                sandbox, self._secrets, self._passes, self._sandboxes.inside_url(sandbox)
            ),
            usable_tools=await agent.usable_tools(),
            has_public_skills=self._config.public_skills,
            hook_config=start.hook_config,
            model=None if lent is model else lent,
            title_profile=title_profile,
            replay_url=self._replay_url(start) if steps else None,
            session_key=sandbox.session_key,
        )
        keys = (start.settings.llm_api_key, lent.api_key, *order.secrets.values())
        hidden = [key for key in keys if key]
        history = await self._bring_history(start)
        body = make_agent_body(inputs)
        with timed(start, "conversation"):
            is_known = await agent.find_conversation(start.conversation.id) is not None
            info = await agent.start_conversation(body, hide=hidden)
            if is_known and order.fork_of is None:
                await check_first_message(agent, info, inputs.first_message)
        await self._carrier.check(start.conversation.id, agent, history)
        if inputs.first_message is not None:
            await self._watch_first_answer(start, model, hidden, is_lent=lent is not model)
        await self._try_tool_servers(start, body["agent"]["mcp_config"])
        if steps:
            info = await play(
                agent, start.conversation.id, steps, lambda: self._check_replay(start)
            )
        await self._finish(start, info)

    async def _watch_first_answer(
        self, start: Start, model: Llm, hide: Sequence[Secret], *, is_lent: bool
    ) -> None:
        """Find out whether the model answers, unless it has just done so for this user."""
        memory, user_id = self._grants.memory, start.task.user_id
        if memory.is_trusted(user_id, model):
            return
        agent, conversation_id = made(start.agent), start.conversation.id
        limit = self._config.first_answer_seconds
        with timed(start, "first_answer"), memory.watching(conversation_id, model) as watched:
            if await watch_first_answer(agent, conversation_id, limit, watched, hide=hide):
                memory.trust(user_id, model)
            elif not is_lent:
                # The agent would repeat what it asks for more than a minute before it says so.
                await check_address(agent, model)

    async def _try_tool_servers(self, start: Start, servers: Servers) -> None:
        """Note which tool servers do not start; the conversation goes on without them."""
        if not servers:
            return
        with timed(start, "tool_servers"):
            start.failed_tool_servers = await find_failures(
                made(start.agent),
                start.conversation.id,
                servers,
                has_begun=first_message(start.task.request) is not None,
            )
        await self._progress.note(start, "\n".join(start.failed_tool_servers) or None)

    async def _bring_history(self, start: Start) -> str | None:
        """Give the agent of a copied conversation its history; returns as `HistoryTransfer.bring`."""
        order = start.task.request
        if order.fork_of is None:
            return None
        old_dir = None
        if order.archive_id is not None:
            old_dir = (await self._archives.wait_ready(order.archive_id)).working_dir
        return await self._carrier.bring(
            start.conversation.id,
            made(start.agent),
            old_dir=old_dir,
            new_dir=made(start.workspace).project_dir,
        )

    def _replay_url(self, start: Start) -> str:
        server = self._sandboxes.inside_url(made(start.sandbox))
        return f"{server}/api/v1/webhooks/replays/{start.conversation.id}"

    async def _check_replay(self, start: Start) -> None:
        if await self._tasks.find(start.task.id) is None:
            raise ConversationDeleted
        await self._check_sandbox(start)

    async def _share_title_profile(self, start: Start, agent: AgentServer) -> str | None:
        """Bring the model that makes titles into the sandbox; a title is worth no failed start."""
        name = start.settings.title_llm_profile
        if name is None or start.task.request.title is not None:
            return None
        saved = start.settings.llm_profiles.get(name)
        if saved is None:
            await self._progress.note(start, f"title_llm_profile: there is no profile `{name}`")
            return None
        saved = msgspec.structs.replace(saved, api_key=saved.api_key or start.settings.llm_api_key)
        lent = await self._grants.lend(made(start.sandbox), start.conversation.id, saved)
        llm = llm_to_agent(lent, usage_id="title", stream=False)
        try:
            await agent.save_profile(name, llm, hide=[*secrets_of(saved), *secrets_of(lent)])
        except (AgentRefused, Conflict, NotFound) as exc:
            await self._progress.note(start, f"title_llm_profile: {exc.message}")
            return None
        return name

    async def _show_agent_url(self, start: Start, sandbox: Sandbox) -> None:
        start.task = msgspec.structs.replace(
            start.task, agent_server_url=sandbox.agent_url, updated_at=now()
        )
        await self._progress.store(start)

    async def _finish(self, start: Start, info: ConversationInfo) -> None:
        async def body(tx: Transaction) -> None:
            conversation = await self._table.find(start.conversation.id, tx)
            if conversation is None:
                raise ConversationDeleted
            start.conversation = msgspec.structs.replace(
                conversation,
                is_ready=True,
                # One that was started before a restart may work elsewhere than it would now.
                working_dir=info.workspace.working_dir or made(start.workspace).project_dir,
                llm_model=info.agent.llm.model or conversation.llm_model,
                updated_at=now(),
            )
            await self._table.update(tx, start.conversation)
            for text in start.failed_tool_servers:
                await self._recorder.announce_failure(tx, conversation.id, TOOL_SERVER_FAILED, text)
            start.task = msgspec.structs.replace(
                entered(start.task, StartStatus.READY),
                detail="\n".join(start.failed_tool_servers) or None,
            )
            await self._tasks.update(tx, start.task)
            task = start.task
            tx.after_commit(lambda: self._on_change(task))

        await self._db.write(body)
        self._sandboxes.usage.note(start.task.sandbox_id)
        self._recorder.sync_soon(start.conversation.id)
        log.info(
            "conversation started",
            extra={
                "conversation_id": start.conversation.id,
                "sandbox_id": start.task.sandbox_id,
                "duration_ms": milliseconds(now() - start.task.created_at),
            },
        )

    async def reserve(self, tx: Transaction, start: Start) -> None:
        """Ask for room in the transaction that stores a start; raises as `SandboxChooser.reserve`."""
        await self._seats.reserve(tx, start)

    # How they are run

    async def _retry(self, start: Start, step: Callable[[Start], Awaitable[None]]) -> None:
        pause, reason = _FIRST_RETRY_SECONDS, ""
        while True:
            try:
                return await step(start)
            except AgentsvcError as exc:
                if not exc.retryable or now() > start.deadline:
                    raise
                if exc.message != reason:
                    reason = exc.message
                    log.info(
                        "conversation start step retried",
                        extra={"task_id": start.task.id, "reason": f"{reason} {exc.detail}"},
                    )
                await self._check_sandbox(start)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_RETRY_SECONDS)

    async def _check_sandbox(self, start: Start) -> None:
        if start.sandbox is None:
            return
        [seen] = await self._sandboxes.find_many(start.task.user_id, [start.sandbox.id])
        if seen is None or seen.status in (SandboxStatus.ERROR, SandboxStatus.MISSING):
            raise StartRefused(await self._sandbox_failure(seen))

    async def _sandbox_failure(self, sandbox: Sandbox | None) -> str:
        return explain_sandbox(sandbox, await self._log_tail(sandbox), self._config.start_seconds)

    async def _log_tail(self, sandbox: Sandbox | None) -> str:
        return await self._sandboxes.log_tail(sandbox) if sandbox else ""

    async def _forget(self, start: Start) -> None:
        log.info("conversation deleted while starting", extra={"task_id": start.task.id})
        # The agent server may have got it after it was told to forget it.
        await self._remover.tell_again(start.conversation.id)

    async def _fail(self, start: Start, message: str, detail: str) -> None:
        stage = start.task.status
        text = f"{message}\n(at stage {stage})"

        async def body(tx: Transaction) -> bool:
            if await self._tasks.find(start.task.id, tx) is None:
                return False
            start.task = msgspec.structs.replace(
                entered(start.task, StartStatus.ERROR), detail=text
            )
            await self._tasks.update(tx, start.task)
            if stage is StartStatus.WORKING:
                await self._remover.give_back(tx, start.task)
            await self._recorder.announce_failure(tx, start.conversation.id, "StartFailed", text)
            task = start.task
            tx.after_commit(lambda: self._on_change(task))
            return True

        if not await self._db.write(body):
            await self._forget(start)
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


def _waits_for_files(start: Start) -> bool:
    """Whether a start is about to wait for others, such as a git host, or a script of the user."""
    order = start.task.request
    is_cloned = start.conversation.selected_repository and not order.parent_conversation_id
    return order.archive_id is not None or bool(is_cloned)


def _differs_from(reason: str, seen: Sandbox | None) -> bool:
    return seen is None or seen.reason != reason


def _is_news(reason: str, seen: Sandbox | None) -> bool:
    return _differs_from(reason, seen) or (
        seen is not None and seen.status is not SandboxStatus.STARTING
    )


def _public_host(provider: Provider) -> str | None:
    host = DEFAULT_HOSTS.get(provider)
    return check_host(host) if host else None
