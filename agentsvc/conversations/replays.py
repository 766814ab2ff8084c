"""Replaying recorded conversations in their sandboxes before the language model takes over."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec

from agentsvc.agentserver import AgentServer, ConversationInfo
from agentsvc.base import AgentUnavailable, Conflict, ConversationDeleted, NotFound, StartRefused
from agentsvc.conversations.message_delivery import times_said
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
"""How long changes of before are waited for at a time: they may have set the agent going."""

_BROKEN: Final = (ExecutionStatus.ERROR, ExecutionStatus.STUCK)

type SayLater = Callable[[str, PendingMessage], Awaitable[None]]
"""Has an agent of a user told something, once for each id."""

type Check = Callable[[], Awaitable[None]]


class Replays(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Stands in for the language model of agents that replay, until the recording ends."""

    stores: ConversationStores
    sandboxes: Sandboxes
    settings: SettingsStore
    model_tokens: ModelTokens
    say_later: SayLater

    async def answer(
        self, sandbox: Sandbox, conversation_id: str, question: Question
    ) -> dict[str, Any]:
        """Return the next recorded turn of a conversation, in the form of a chat completion.

        With the last one, what follows is left to the model that was asked for: it is in place
        before the agent has the answer. The same question gives the same answer. Raises NotFound
        where nothing is replayed, or nothing is left to be; AgentUnavailable or AgentRefused.
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
            raise AgentUnavailable("The sandbox is not known to run yet")
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
                # The same each time that this question is asked.
                id=uuid5(UUID(conversation_id), f"recorded {at + 1}").hex,
                conversation_id=conversation_id,
                kind=PendingKind.RECORDED,
                message=said.message,
                run=False,
                last_event="",
                said_before=times_said(said.message, before),
            )
            await self.say_later(task.user_id, pending)
        return completion(steps, at, question)


async def play(
    agent: AgentServer, conversation_id: str, steps: Sequence[RecordedStep], check: Check
) -> ConversationInfo:
    """Say what the user said in a recording, when it is time, until the real model is in place.

    `check` raises when there is nothing to wait for any more. May be called again after a crash.
    Raises StartRefused when the replay cannot go on.
    """
    pause = _FIRST_POLL_SECONDS
    while True:
        try:
            info = await _find(agent, conversation_id)
            if info.execution_status != ExecutionStatus.RUNNING:
                # An earlier try, perhaps of a server that was killed, has its effect only then.
                await agent.wait_for_earlier_changes(conversation_id, time_limit=_EARLIER_SECONDS)
                info = await _find(agent, conversation_id)
            if await _go_on(agent, conversation_id, steps, info):
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


async def _go_on(
    agent: AgentServer, conversation_id: str, steps: Sequence[RecordedStep], info: ConversationInfo
) -> bool:
    """Do what is due in a replay; return whether nothing will be any more."""
    status = info.execution_status
    is_handed_over = info.agent.llm.model != MODEL
    if status == ExecutionStatus.RUNNING and not is_handed_over:
        return False
    at, is_recorded = -1, False
    async for page in agent.event_pages(conversation_id):
        at = reached(steps, page, at)
        is_recorded = acts_as_recorded(page, before=is_recorded)
    if status == ExecutionStatus.WAITING_FOR_CONFIRMATION and is_recorded:
        # What is recorded was confirmed when it was recorded.
        await agent.respond_to_confirmation(conversation_id, accept=True)
        return False
    if is_handed_over and not has_messages_behind(steps, at):
        return True
    if status in _BROKEN:
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
