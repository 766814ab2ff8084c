"""Replays of recorded conversations in sandboxes, before the language model takes over."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from agentsvc.agentserver import AgentServer, ConversationInfo
from agentsvc.base import AgentUnavailable, Conflict, ConversationDeleted, NotFound, StartRefused
from agentsvc.conversations.message_delivery import count_equal
from agentsvc.conversations.message_queue_table import PendingKind, PendingMessage
from agentsvc.conversations.model_tokens import ModelTokens
from agentsvc.conversations.replay_script import (
    MODEL,
    Question,
    acts_as_recorded,
    completion,
    find_turn,
    has_messages_behind,
    interjection,
    is_last_turn,
    reached,
    recording_of,
    title_answer,
)
from agentsvc.conversations.starting.agent_request import chosen_model, to_agent_message
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import ExecutionStatus, RecordedStep, llm_to_agent, secrets_of
from agentsvc.sandboxes import Sandbox, Sandboxes
from agentsvc.settings import SettingsStore

log = logging.getLogger(__name__)

_FIRST_POLL_SECONDS: Final = 0.2
_LAST_POLL_SECONDS: Final = 2.0
_HAND_OVER_SECONDS: Final = 600.0
_EARLIER_SECONDS: Final = 10.0
"""How long to wait at a time for earlier requests, which may have started the agent."""

_FAILED: Final = (ExecutionStatus.ERROR, ExecutionStatus.STUCK)

type SayLater = Callable[[str, PendingMessage], Awaitable[None]]
"""Queues a message to an agent of a user, once for each message id."""

type Check = Callable[[], Awaitable[None]]


class Replays(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Answers the model requests of replaying agents from the recording, until it ends."""

    stores: ConversationStores
    sandboxes: Sandboxes
    settings: SettingsStore
    model_tokens: ModelTokens
    say_later: SayLater

    async def answer(
        self, sandbox: Sandbox, conversation_id: str, question: Question
    ) -> dict[str, Any]:
        """Return the next recorded turn of a conversation, in the form of a chat completion.

        Before the last turn is returned, the agent is switched to its real model. Idempotent: the
        same question gets the same turn. Raises NotFound if the conversation is no replay or the
        recording is over, and AgentUnavailable or AgentRefused.
        """
        task = await self.stores.tasks.find_of_conversation(conversation_id)
        if task is None or task.sandbox_id != sandbox.id or not task.request.replay:
            raise NotFound("Nothing is replayed in this conversation")
        steps = recording_of(task.request)
        if not question.tools:
            return title_answer(steps, question)
        at = find_turn(steps, question.messages)
        if at is None:
            raise NotFound("The recording is over")
        agent = self.sandboxes.agent_of(sandbox)
        if agent is None:
            raise AgentUnavailable("The sandbox does not run yet")
        if is_last_turn(steps, at):
            settings = await self.settings.get(task.user_id)
            chosen = chosen_model(task.request, settings)
            lent = await self.model_tokens.lend(sandbox, conversation_id, chosen)
            hidden = [*secrets_of(chosen), *secrets_of(lent)]
            model = llm_to_agent(lent, usage_id="agent", stream=True)
            await agent.switch_llm(conversation_id, model, hide=hidden)
        said = interjection(steps, at)
        if said is not None and said.message is not None:
            before = [step.message for step in steps[: at + 1] if step.message is not None]
            pending = PendingMessage(
                # The same id for the same question.
                id=uuid5(UUID(conversation_id), f"recorded {at + 1}").hex,
                conversation_id=conversation_id,
                kind=PendingKind.RECORDED,
                message=said.message,
                run=False,
                last_event="",
                said_before=count_equal(said.message, before),
            )
            await self.say_later(task.user_id, pending)
        return completion(steps, at, question)


async def play(
    agent: AgentServer, conversation_id: str, steps: Sequence[RecordedStep], check: Check
) -> ConversationInfo:
    """Send the user's recorded messages, each at its time, until the replay has ended.

    `check` raises if the replay is not to continue. May be called again after a crash.
    Raises StartRefused if the replay fails.
    """
    pause = _FIRST_POLL_SECONDS
    while True:
        try:
            info = await _find(agent, conversation_id)
            if info.execution_status != ExecutionStatus.RUNNING:
                # A request of an earlier run of this function may take effect only now.
                await agent.wait_for_earlier_changes(conversation_id, time_limit=_EARLIER_SECONDS)
                info = await _find(agent, conversation_id)
            if await _advance(agent, conversation_id, steps, info):
                return info
        except AgentUnavailable as exc:
            log.info("replay waits for the agent server", extra={"reason": exc.message})
        await check()
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LAST_POLL_SECONDS)


async def _find(agent: AgentServer, conversation_id: str) -> ConversationInfo:
    info = await agent.find_conversation(conversation_id)
    if info is None:
        raise ConversationDeleted
    return info


async def _advance(
    agent: AgentServer, conversation_id: str, steps: Sequence[RecordedStep], info: ConversationInfo
) -> bool:
    """Take the next step of a replay, if any; return whether the replay has ended."""
    status = info.execution_status
    is_handed_over = info.agent.llm.model != MODEL
    if status == ExecutionStatus.RUNNING and not is_handed_over:
        return False
    at, is_recorded = -1, False
    async for page in agent.event_pages(conversation_id):
        at = reached(steps, page, at)
        is_recorded = acts_as_recorded(page, before=is_recorded)
    if status == ExecutionStatus.WAITING_FOR_CONFIRMATION and is_recorded:
        # The recorded actions were confirmed in the original conversation.
        await agent.respond_to_confirmation(conversation_id, accept=True)
        return False
    if is_handed_over and not has_messages_behind(steps, at):
        return True
    if status in _FAILED:
        raise StartRefused(
            f"The replay ended in the state `{status}` at step {at + 1} of {len(steps)}."
            " The events of the conversation say why"
        )
    if status == ExecutionStatus.RUNNING:
        return False
    due = steps[at + 1].message if at + 1 < len(steps) else None
    if due is not None:
        content = to_agent_message(due)["content"]
        await agent.send_message(conversation_id, content, run=True, time_limit=_HAND_OVER_SECONDS)
    else:
        with contextlib.suppress(Conflict):
            await agent.run(conversation_id)
    return False
