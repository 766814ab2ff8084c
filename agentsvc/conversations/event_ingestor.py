"""Ingestion of events from sandboxes: each is stored once and updates its conversation.

Events arrive by webhook, or are fetched by a sync after a gap; `record` stores both. Metrics,
status and cost of the conversation are updated from them in the same transaction.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta
from typing import Any, Final

import msgspec

from agentsvc.agentserver import AgentServer, ConversationInfo
from agentsvc.base import (
    AgentsvcError,
    NotFound,
    QuotaExceeded,
    Supervisor,
    dashed,
    monotonic,
    new_id,
    now,
)
from agentsvc.config import ConversationsConfig
from agentsvc.conversations import facts
from agentsvc.conversations.agent_liveness import AgentLiveness
from agentsvc.conversations.event_log import (
    REFUSAL_KEY,
    STATE_REQUEST_KEY,
    EventHead,
    EventLog,
    read_head,
    read_time,
)
from agentsvc.conversations.event_table import StoredEvent
from agentsvc.conversations.model import Conversation, Facts, TitleSource
from agentsvc.conversations.model_usage import find_usage, note_use, used_of
from agentsvc.conversations.state_masking import STATE_KIND, mask_states
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import ExecutionStatus
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)

TOOL_SERVER_FAILED: Final = "ToolServerFailed"
BUDGET_CODE: Final = "MaxBudgetReached"
QUOTA_CODE: Final = "QuotaReached"

_TITLE_CHARS: Final = 200
_CONTROL_TO_BLANK: Final = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")
"""Replaces the control characters of a title by blanks; joiners inside emoji are kept."""
_SETTLE_SECONDS: Final = 1.0
_PARALLEL_SYNCS: Final = 8
_RETRY_AFTER_SECONDS: Final = 3600
"""`Retry-After` of a sandbox over its event limit: something has to be deleted first."""
_MAX_BEGIN_DELAY: Final = timedelta(seconds=30)
"""How long an agent that was told to run may stay idle before it counts as idle."""
_WAIT_SECONDS: Final = 0.5
"""After a start of the server, how long one sync may delay the next one."""
_RUN_IS_OVER = frozenset(
    {ExecutionStatus.FINISHED, ExecutionStatus.ERROR, ExecutionStatus.STUCK, ExecutionStatus.PAUSED}
)


class EventIngestor(msgspec.Struct, kw_only=True, eq=False):
    """Stores reports of sandboxes and acts on them."""

    stores: ConversationStores
    events: EventLog
    sandboxes: Sandboxes
    supervisor: Supervisor
    config: ConversationsConfig
    liveness: AgentLiveness
    max_event_bytes: int
    _stale: set[str] = set()
    _failing: set[str] = set()
    _syncing: set[str] = set()

    async def record(
        self, conversation_id: str, raw: Sequence[bytes], *, sandbox_id: str | None = None
    ) -> list[StoredEvent]:
        """Store new events and update the conversation from them; return the new events.

        Secrets in states are masked first. Raises NotFound if `sandbox_id` is given and the
        conversation is not in that sandbox, and QuotaExceeded if the sandbox has reached the limit
        of stored events.
        """
        news: list[StoredEvent] = []
        raw = await mask_states(raw)

        async def body(tx: Transaction) -> None:
            before = await self.stores.conversations.find(conversation_id, tx)
            if sandbox_id is not None and (before is None or before.sandbox_id != sandbox_id):
                raise NotFound("No such conversation in this sandbox")
            if before is None:
                return
            news.extend(await self.events.append(tx, conversation_id, raw))
            if not news:
                return
            counted = _with_bytes(before, news)
            if sandbox_id is not None:
                await self._check_bytes(
                    tx, sandbox_id, counted.facts.event_bytes - before.facts.event_bytes
                )
            after = facts.learn(counted, _heads(news))
            overspent = await _note_spend(tx, before, after)
            if facts.is_over_budget(after):
                after = facts.mark_budget_stop(after)
                await self.events.append(tx, conversation_id, [_budget_event(after)])
            elif overspent:
                after = facts.mark_budget_stop(after)
                stopped = error_event(QUOTA_CODE, f"The run was interrupted: {overspent}.")
                await self.events.append(tx, conversation_id, [stopped])
            after = msgspec.structs.replace(after, updated_at=now())
            await self.stores.conversations.update(tx, after, before=before)
            tx.after_commit(lambda: self._follow_up(before, after, news))

        await self.stores.db.write_apart(body)
        return news

    async def _check_bytes(self, tx: Transaction, sandbox_id: str, more: int) -> None:
        """Raise QuotaExceeded if `more` bytes of events exceed the limit of a sandbox."""
        most = self.max_event_bytes
        if most and (await self.stores.conversations.used_by(tx, sandbox_id))[0] + more > most:
            raise QuotaExceeded(
                f"The sandbox has reached its limit of {most} bytes of stored events",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )

    async def receive_info(
        self, conversation_id: str, info: ConversationInfo, *, asked_at: Facts | None = None
    ) -> None:
        """Update a conversation from the info of its agent server, including the title.

        Status and costs are taken only if no event has changed them since `asked_at`, the facts
        before the request. Unrequested info may be old, and only fills in unknown values.
        """

        async def body(tx: Transaction) -> None:
            before = await self.stores.conversations.find(conversation_id, tx)
            if before is None or info.execution_status == ExecutionStatus.DELETING:
                return
            after = _with_info(before, info, asked_at or Facts())
            if (
                asked_at is not None
                and asked_at.run_asked_at == before.facts.run_asked_at
                and not _may_begin(after)
            ):
                # The agent server has reported the result of the requested run.
                after = after.with_facts(run_asked_at="")
            await _note_spend(tx, before, after)
            if after != before:
                await self.stores.conversations.update(
                    tx, msgspec.structs.replace(after, updated_at=now())
                )

        await self.stores.db.write(body)

    async def sync(self, conversation_id: str) -> None:
        """Fetch undelivered events and the present state from the agent server.

        No-op unless the sandbox runs. Raises AgentUnavailable if it does not answer.
        """
        # An event that arrives from here on may be missed, and marks it stale again.
        self._stale.discard(conversation_id)
        conversation = await self.stores.conversations.find(conversation_id)
        agent = await self.sandboxes.find_agent(conversation.sandbox_id) if conversation else None
        if conversation is None or agent is None:
            return
        await self._fetch_events(agent, conversation)
        # Read after the events and before the request, so that the response is newer than both.
        conversation = await self.stores.conversations.find(conversation_id)
        if conversation is None:
            return
        info = await agent.find_conversation(conversation_id)
        if info is None:
            log.warning(
                "agent server does not know the conversation",
                extra={"conversation_id": conversation_id},
            )
            return
        if info.execution_status != conversation.execution_status:
            # Store the events that led to a state before the state.
            await self._fetch_events(agent, conversation)
        await self.receive_info(conversation_id, info, asked_at=conversation.facts)
        is_running = info.execution_status == ExecutionStatus.RUNNING
        if is_running or _may_begin(conversation):
            self._stale.add(conversation_id)
        if conversation.facts.is_stop_due:
            # The server may have been killed between storing this flag and the interrupt.
            await self._stop_for_budget(conversation, agent if is_running else None)

    def sync_after_message(self, conversation_id: str) -> None:
        """Schedule a sync for when the sandbox has reported the agent's reaction to a message."""
        self.sync_soon(conversation_id, wait_seconds=self.config.webhook_flush_seconds)

    async def has_events(self, conversation_id: str) -> bool:
        """Return whether the log of a conversation has any events."""
        last = await self.events.find_last(conversation_id)
        return last is not None and last >= 0

    async def number_of(self, conversation_id: str, event_id: str) -> int:
        """Return the sequence number of an event; raises NotFound."""
        [event] = await self.events.find_many(conversation_id, [event_id])
        if event is None:
            raise NotFound("This conversation has no such event: name one by its `id`")
        return event.seq

    async def sync_all(self) -> None:
        """Sync every conversation in a running sandbox, in the background; called once after a start.

        A few at a time, those with running agents first: all at once would delay all requests to
        the server.
        """
        self.supervisor.spawn("syncs after the start", self._sync_active)

    async def _sync_active(self) -> None:
        left = iter(await self.stores.conversations.active_ids())
        await asyncio.gather(*(self._sync_each(left) for _ in range(_PARALLEL_SYNCS)))

    async def _sync_each(self, conversation_ids: Iterator[str]) -> None:
        for conversation_id in conversation_ids:
            self.sync_soon(conversation_id)
            # An agent server that does not answer must not delay the other syncs for long.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_SECONDS):
                    await self.supervisor.join(f"sync {conversation_id}")

    async def sync_unreachable(self) -> None:
        """Sync every conversation in a sandbox that cannot deliver events by webhook."""
        for conversation in await self.stores.conversations.all_uncalled():
            if not self.supervisor.is_running(f"sync {conversation.id}"):
                self.sync_soon(conversation.id)

    async def sync_stale(self) -> None:
        """Sync the conversations with activity since their last sync."""
        for conversation_id in list(self._stale):
            self.sync_soon(conversation_id)

    async def watch(self) -> None:
        """Probe the agent servers of running conversations; called every few seconds."""
        asked = self.liveness.all()
        for conversation_id in self._stale | self._syncing:
            found = await self.stores.conversations.find(conversation_id)
            if found is not None and found.execution_status is ExecutionStatus.RUNNING:
                asked.add(found.sandbox_id or "")
        await asyncio.gather(*(self._probe(sandbox_id) for sandbox_id in asked))

    async def _probe(self, sandbox_id: str) -> None:
        agent = await self.sandboxes.find_agent(sandbox_id)
        if agent is None:
            self.liveness.forget(sandbox_id)
        else:
            asked_at = monotonic()
            self.liveness.note(sandbox_id, is_alive=await agent.is_alive(), asked_at=asked_at)

    def sync_soon(self, conversation_id: str, *, wait_seconds: float = 0.0) -> None:
        """Schedule a sync in the background; a failed one is retried later."""
        name = f"sync {conversation_id}"
        if self.supervisor.is_running(name):
            # The running sync may have fetched before the latest event: sync again later.
            self._stale.add(conversation_id)
            return

        async def work() -> None:
            await asyncio.sleep(wait_seconds)
            self._syncing.add(conversation_id)
            try:
                await self.sync(conversation_id)
            except AgentsvcError as exc:
                self._retry_later(conversation_id, exc)
            else:
                self._failing.discard(conversation_id)
            finally:
                self._syncing.discard(conversation_id)

        self.supervisor.spawn(name, work)

    def _retry_later(self, conversation_id: str, exc: AgentsvcError) -> None:
        self._stale.add(conversation_id)
        if conversation_id not in self._failing:
            self._failing.add(conversation_id)
            log.info(
                "conversation events cannot be fetched now",
                extra={"conversation_id": conversation_id, "reason": str(exc)},
            )

    def sandbox_changed(self, before: Sandbox, after: Sandbox | None) -> None:
        """Schedule a sync of the conversations in a sandbox that has started to run."""
        if after is None or after.status is not before.status:
            self.liveness.forget(before.id)
        is_up = after is not None and after.status is SandboxStatus.RUNNING
        if is_up and before.status is not SandboxStatus.RUNNING:
            self.supervisor.spawn(f"sync sandbox {before.id}", lambda: self._sync_sandbox(before))

    async def _sync_sandbox(self, sandbox: Sandbox) -> None:
        for conversation in await self.stores.conversations.of_sandbox(sandbox.id):
            if conversation.is_ready:
                self.sync_soon(conversation.id)

    async def _fetch_events(self, agent: AgentServer, conversation: Conversation) -> None:
        synced_to = conversation.facts.synced_to
        try:
            async for page in agent.event_pages(conversation.id, since=synced_to or None):
                await self.record(conversation.id, page, sandbox_id=conversation.sandbox_id)
                synced_to = max(synced_to, read_time(page[-1]))
        except NotFound:
            log.warning(
                "conversation has no events at its agent server",
                extra={"conversation_id": conversation.id},
            )
        except QuotaExceeded as exc:
            log.debug(
                "event limit reached, further events are dropped", extra={"reason": exc.message}
            )
        await self._store_synced(conversation.id, synced_to)

    async def _store_synced(self, conversation_id: str, synced_to: str) -> None:
        async def body(tx: Transaction) -> None:
            found = await self.stores.conversations.find(conversation_id, tx)
            if found is not None and synced_to > found.facts.synced_to:
                await self.stores.conversations.update(tx, found.with_facts(synced_to=synced_to))

        await self.stores.db.write(body)

    def _follow_up(
        self, before: Conversation, after: Conversation, news: Sequence[StoredEvent]
    ) -> None:
        self.sandboxes.usage.note(before.sandbox_id)
        if before.facts.budget_stop_cost != after.facts.budget_stop_cost:
            self._interrupt_for_budget(after)
        if after.execution_status in _RUN_IS_OVER and before.execution_status not in _RUN_IS_OVER:
            self.sync_soon(after.id, wait_seconds=_SETTLE_SECONDS)
        else:
            self._stale.add(after.id)
        has_message = any(event.kind == "MessageEvent" for event in news)
        if has_message and after.title_source is TitleSource.DEFAULT:
            self.supervisor.spawn(f"title {after.id}", lambda: self._fetch_title(after.id))

    async def _fetch_title(self, conversation_id: str) -> None:
        for _ in range(self.config.title_tries):
            await asyncio.sleep(self.config.title_wait_seconds)
            found = await self.stores.conversations.find(conversation_id)
            if found is None or found.title_source is not TitleSource.DEFAULT:
                return
            agent = await self.sandboxes.find_agent(found.sandbox_id)
            try:
                info = await agent.find_conversation(conversation_id) if agent else None
            except AgentsvcError:
                continue
            if info is not None and info.title:
                await self.receive_info(conversation_id, info)
                return

    def _interrupt_for_budget(self, conversation: Conversation) -> None:
        log.warning(
            "budget reached, interrupting the run",
            extra={"conversation_id": conversation.id, "budget": conversation.max_budget},
        )

        async def work() -> None:
            agent = await self.sandboxes.find_agent(conversation.sandbox_id)
            if agent is None:
                return
            try:
                await self._stop_for_budget(conversation, agent)
            except AgentsvcError as exc:
                self._retry_later(conversation.id, exc)

        self.supervisor.spawn(f"budget {conversation.id}", work)

    async def _stop_for_budget(self, conversation: Conversation, agent: AgentServer | None) -> None:
        """Interrupt the run, if there is an agent, and clear the stop flag."""
        if agent is not None:
            await agent.interrupt(conversation.id)

        async def body(tx: Transaction) -> None:
            found = await self.stores.conversations.find(conversation.id, tx)
            if found is not None:
                await self.stores.conversations.update(tx, found.with_facts(is_stop_due=False))

        await self.stores.db.write(body)


def _with_bytes(conversation: Conversation, news: Sequence[StoredEvent]) -> Conversation:
    size = conversation.facts.event_bytes + sum(len(event.body) for event in news)
    return conversation.with_facts(event_bytes=size)


def _with_info(conversation: Conversation, info: ConversationInfo, asked_at: Facts) -> Conversation:
    known = conversation.facts
    if known.status_at == asked_at.status_at:
        conversation = facts.learn_status(conversation, info.execution_status, known.status_at)
    if info.stats is not None and known.stats_at == asked_at.stats_at:
        conversation = facts.learn_stats(conversation, info.stats, known.stats_at)
    title = (info.title or "")[:_TITLE_CHARS].translate(_CONTROL_TO_BLANK).strip()
    if title and conversation.title_source is TitleSource.DEFAULT:
        conversation = msgspec.structs.replace(
            conversation, title=title, title_source=TitleSource.AGENT
        )
    if info.model:
        conversation = msgspec.structs.replace(conversation, llm_model=info.model)
    return facts.learn_tags(conversation, info.tags)


def _heads(events: Sequence[StoredEvent]) -> list[EventHead]:
    states = (event for event in events if event.kind == STATE_KIND)
    return [head for event in states if (head := read_head(event.body)) is not None]


async def _note_spend(tx: Transaction, before: Conversation, after: Conversation) -> str:
    """Add the new spend to the user's; return why the quota forbids more, or an empty text."""
    if after.metrics == before.metrics:
        return ""
    # The model proxy has counted the requests that went through this server.
    counted = await find_usage(tx, before.id)
    return await note_use(tx, after, used_of(before, counted), used_of(after, counted))


def _budget_event(conversation: Conversation) -> bytes:
    cost = facts.cost_of(conversation)
    return error_event(
        BUDGET_CODE,
        f"The run was interrupted: it has cost {cost:.4f} US dollars, and the budget of this"
        f" conversation is {conversation.max_budget:.4f}. Raise `max_budget_per_task` in the"
        " settings for new conversations, or send a message to go on with this one.",
    )


def error_event(code: str, detail: str) -> bytes:
    """Return an event of the server itself that reports an error."""
    return _own_event("ConversationErrorEvent", code=code, detail=detail)


def state_request_event(state: str) -> bytes:
    """Return an event of the server itself that records what the agent was asked to do."""
    return _own_event(STATE_KIND, key=STATE_REQUEST_KEY, value=state)


def refusal_event(status: int, message: str) -> bytes:
    """Return an event of the server itself that reports a failing model."""
    value = {"status": status, "message": message}
    return _own_event(STATE_KIND, key=REFUSAL_KEY, value=value)


def event_time(*, ago: timedelta = timedelta()) -> str:
    """Return the present time in the format of agent servers' events; sandboxes run on UTC."""
    return (now() - ago).astimezone(UTC).replace(tzinfo=None).isoformat()


def _may_begin(conversation: Conversation) -> bool:
    """Return whether an idle agent was told to run so recently that it may not have begun."""
    is_at_rest = conversation.execution_status in (None, ExecutionStatus.IDLE)
    return is_at_rest and conversation.facts.run_asked_at > event_time(ago=_MAX_BEGIN_DELAY)


def _own_event(kind: str, **members: str | dict[str, Any]) -> bytes:
    head = {
        "id": dashed(new_id()),
        "timestamp": event_time(),
        "parent_id": None,
        "source": "environment",
    }
    return msgspec.json.encode({**head, **members, "kind": kind})
