"""Streaming deltas of followed conversations, from WebSocket subscriptions to agent servers.

Agent servers send deltas to their WebSocket subscribers only. The events of a subscription are not
stored, because webhooks deliver them; they only tell which event a delta follows.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, QuotaExceeded, Supervisor, back_off, monotonic, wait_within
from agentsvc.conversations.event_ingestor import EventIngestor
from agentsvc.conversations.event_log import DELTA_KIND, EventLog, read_head
from agentsvc.conversations.model import Conversation
from agentsvc.conversations.stores import ConversationStores
from agentsvc.sandboxes import Sandbox, Sandboxes

log = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 0.5
_FULL_STATE: Final = "full_state"
"""The state that agent servers create for each subscriber and never log."""
_WEBHOOK_SECONDS: Final = 5.0
"""How long deltas wait for the event before them to be stored."""
_POLL_SECONDS: Final = 0.02


class DeltaSubscriptions(msgspec.Struct, kw_only=True, eq=False):
    """Subscribes at agent servers to the conversations that clients follow here."""

    stores: ConversationStores
    sandboxes: Sandboxes
    events: EventLog
    ingestor: EventIngestor
    supervisor: Supervisor
    _followers: Counter[str] = msgspec.field(default_factory=Counter)
    _ended: dict[str, asyncio.Event] = {}
    _numbers: Iterator[int] = msgspec.field(default_factory=itertools.count)
    _changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.sandboxes.on_change(self._sandbox_changed)

    @contextlib.contextmanager
    def followed(self, conversation_id: str) -> Iterator[None]:
        """Keep a subscription to a conversation open inside the context."""
        self._followers[conversation_id] += 1
        if conversation_id not in self._ended:
            ended = self._ended[conversation_id] = asyncio.Event()
            name = f"deltas {conversation_id} {next(self._numbers)}"
            self.supervisor.spawn(name, lambda: self._subscribe_until(ended, conversation_id))
        try:
            yield
        finally:
            self._followers[conversation_id] -= 1
            if not self._followers[conversation_id]:
                del self._followers[conversation_id]
                self._ended.pop(conversation_id).set()

    async def _subscribe_until(self, ended: asyncio.Event, conversation_id: str) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._keep_subscribed(conversation_id))
            await ended.wait()
            task.cancel()

    async def _keep_subscribed(self, conversation_id: str) -> None:
        """Subscribe whenever the sandbox runs, with back-off; webhooks deliver missed events."""
        wait_seconds = _FIRST_WAIT_SECONDS
        while True:
            changed = self._changed
            try:
                if await self._follow(conversation_id):
                    wait_seconds = _FIRST_WAIT_SECONDS
            except AgentsvcError as exc:
                log.debug(
                    "streaming deltas not available from the agent server",
                    extra={"conversation_id": conversation_id, "reason": str(exc)},
                )
            await wait_within(changed, wait_seconds)
            wait_seconds = back_off(wait_seconds, _FIRST_WAIT_SECONDS)

    async def _follow(self, conversation_id: str) -> bool:
        """Announce deltas until the subscription ends; return whether it delivered anything."""
        conversation = await self.stores.conversations.find(conversation_id)
        if conversation is None or not conversation.is_ready:
            return False
        agent = await self.sandboxes.find_agent(conversation.sandbox_id)
        if agent is None:
            return False
        last = await self.events.find_last(conversation_id)
        is_begun = False
        async for batch in agent.subscribe(conversation_id):
            is_begun = True
            last = await self._announce_batch(conversation, batch, -1 if last is None else last)
        return is_begun

    async def _announce_batch(
        self, conversation: Conversation, batch: Sequence[bytes], last: int
    ) -> int:
        """Announce the deltas of a batch; return the number of the last event so far."""
        deltas: list[bytes] = []
        for raw in batch:
            head = read_head(raw)
            if head is None or head.key == _FULL_STATE:
                continue
            if head.kind == DELTA_KIND:
                deltas.append(raw)
                continue
            await self._announce_deltas(conversation, deltas, last)
            deltas = []
            last = max(last, await self._wait_until_stored(conversation.id, head.id))
        await self._announce_deltas(conversation, deltas, last)
        return last

    async def _announce_deltas(
        self, conversation: Conversation, deltas: Sequence[bytes], last: int
    ) -> None:
        if deltas and self.events.store_deltas:
            sandbox_id = conversation.sandbox_id
            with contextlib.suppress(QuotaExceeded):
                await self.ingestor.record(conversation.id, deltas, sandbox_id=sandbox_id)
        elif deltas:
            await self.events.announce_deltas(conversation.id, deltas, after=last)

    async def _wait_until_stored(self, conversation_id: str, event_id: str) -> int:
        """Wait until an event is stored; return its number, or -1 on timeout."""
        deadline = monotonic() + _WEBHOOK_SECONDS
        while monotonic() < deadline:
            [event] = await self.events.find_many(conversation_id, [event_id])
            if event is not None:
                return event.seq
            await asyncio.sleep(_POLL_SECONDS)
        return -1

    def _sandbox_changed(self, before: Sandbox, after: Sandbox | None) -> None:
        """Wake all subscriptions to retry after the agent URL of a sandbox has changed."""
        if after is not None and after.agent_url != before.agent_url:
            self._changed.set()
            self._changed = asyncio.Event()
