"""Delivery of a message or command to an agent exactly once, also after an unclear attempt.

Requests to agent servers have no idempotency key. So before a retry, the agent's log is searched
for the effect of an earlier attempt, after the last event before the first attempt. Only one
message of a kind is in delivery at a time, so an effect found there is of that message.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any, Final

import msgspec

from agentsvc.agentserver import AgentServer, ConversationInfo, decode_events
from agentsvc.base import AgentRefused, AgentUnavailable, Conflict, NotFound, monotonic
from agentsvc.conversations.message_queue_table import ANSWERS, STOPS, PendingKind, PendingMessage
from agentsvc.conversations.starting.agent_request import text_of, to_agent_message
from agentsvc.domain import ExecutionStatus, Message

LONGEST_TOOL_SECONDS: Final = 6 * 3600.0
"""How long a request to a conversation may wait for a tool call to end."""

_EFFECT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05

_STOPPED: Final = frozenset({"PauseEvent", "InterruptEvent"})
_TAKEN_UP: Final = frozenset({"ActionEvent", "ConversationErrorEvent"})
_ENDED: Final = frozenset({"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"})
_AT_REST: Final = (ExecutionStatus.IDLE, ExecutionStatus.ERROR, ExecutionStatus.PAUSED)

type Begin = Callable[[str], Awaitable[bool]]
"""Stores, before the first attempt, the last event of the log; returns whether to run the agent."""


class DeliveryUnknown(NotFound):
    """The agent's log was replaced since the first attempt; whether it succeeded is unknown."""


class _Sign(Enum):
    """The effect of an earlier attempt that an event shows."""

    SAID = auto()
    STOPPED = auto()
    TAKEN_UP = auto()


class _LlmMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: list[dict[str, Any]] = []


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    kind: str = ""
    source: str | None = None
    llm_message: _LlmMessage | None = None
    action_id: str = ""
    tool_call_id: str = ""


_event = msgspec.json.Decoder(_Event)


async def deliver_once(agent: AgentServer, pending: PendingMessage, begin: Begin) -> None:
    """Deliver a message or command to an agent, unless an earlier attempt has succeeded.

    Waits for a running tool call, except to interrupt. Raises AgentUnavailable if it is to be
    retried, DeliveryUnknown if the result of an earlier attempt cannot be determined, Conflict if
    the agent does not wait for this answer any more, and AgentRefused or NotFound if delivery is
    impossible.
    """
    if pending.is_tried and pending.kind is not PendingKind.INTERRUPT:
        # A request that still waits for a tool call is not in the log yet.
        await agent.wait_for_earlier_changes(
            pending.conversation_id, time_limit=LONGEST_TOOL_SECONDS
        )
    last_event = pending.last_event
    if last_event is None:
        await _check_question(agent, pending)
        last_event = await _find_last_event(agent, pending)
    elif await _is_delivered(agent, pending):
        return
    if not pending.is_tried:
        pending = msgspec.structs.replace(pending, run=await begin(last_event))
    await _send(agent, pending)
    if pending.kind in ANSWERS and pending.about:
        await _wait_for_effect(agent, pending)


async def check_first_message(
    agent: AgentServer, info: ConversationInfo, message: Message | None, *, behind: str = ""
) -> None:
    """Deliver the first message of a conversation, if an earlier start has lost it.

    The log is searched after the event `behind`, or from its beginning. A conversation that was
    created by an earlier attempt may lack the message, or not run.
    """
    is_begun = info.last_user_message_id and info.execution_status != ExecutionStatus.IDLE
    if message is None or is_begun:
        return

    async def begin(_last_event: str) -> bool:
        return True

    pending = PendingMessage(
        id=info.hex_id,
        conversation_id=info.hex_id,
        kind=PendingKind.MESSAGE,
        message=message,
        last_event=behind,
        is_tried=True,
    )
    await deliver_once(agent, pending, begin)


async def pending_actions(agent: AgentServer, conversation_id: str) -> tuple[str, ...]:
    """Return the ids of the actions that wait for confirmation, oldest first; may be empty."""
    info = await agent.find_conversation(conversation_id)
    if info is None or info.execution_status != ExecutionStatus.WAITING_FOR_CONFIRMATION:
        return ()
    events = list(decode_events(_event, await agent.newest_events(conversation_id)))
    ends = [one for one in events if one.kind in _ENDED]
    ended = {name for one in ends for name in (one.action_id, one.tool_call_id) if name}
    return tuple(
        one.id
        for one in reversed(events)
        if one.kind == "ActionEvent" and not ended & {one.id, one.tool_call_id}
    )


def count_equal(message: Message, messages: Sequence[Message]) -> int:
    """Return how many of the messages have the same text."""
    wanted = _text(message)
    return sum(_text(one) == wanted for one in messages)


async def _find_last_event(agent: AgentServer, pending: PendingMessage) -> str:
    try:
        newest = await agent.newest_events(pending.conversation_id, limit=1)
    except AgentRefused as exc:
        raise _retry_search(exc) from exc
    return next((one.id for one in decode_events(_event, newest)), "")


async def _check_question(agent: AgentServer, pending: PendingMessage) -> None:
    if pending.about:
        still = await pending_actions(agent, pending.conversation_id)
        if not set(pending.about) & set(still):
            raise Conflict("The agent does not wait for this answer any more")


async def _is_delivered(agent: AgentServer, pending: PendingMessage) -> bool:
    if pending.kind in ANSWERS and (pending.about or pending.kind is PendingKind.REJECT):
        still = await pending_actions(agent, pending.conversation_id)
        return not set(pending.about) & set(still)
    behind = await _read_signs(agent, pending)
    if pending.kind in (PendingKind.MESSAGE, PendingKind.RECORDED):
        return await _is_in_log(agent, pending, behind)
    is_running = await _status(agent, pending) == ExecutionStatus.RUNNING
    if pending.kind in STOPS:
        return not is_running or _Sign.STOPPED in behind
    return is_running or _is_taken_up(behind)


async def _is_in_log(agent: AgentServer, pending: PendingMessage, behind: Sequence[_Sign]) -> bool:
    """Return whether a message is in the log; run the agent if it should but does not."""
    places = [at for at, one in enumerate(behind) if one is _Sign.SAID]
    if len(places) <= pending.said_before:
        return False
    rest = behind[places[pending.said_before] + 1 :]
    if pending.run and not _is_taken_up(rest) and await _status(agent, pending) in _AT_REST:
        with contextlib.suppress(Conflict):
            await agent.run(pending.conversation_id)
    return True


async def _send(agent: AgentServer, pending: PendingMessage) -> None:
    conversation_id, kind = pending.conversation_id, pending.kind
    content = to_agent_message(pending.message)["content"]
    longest = LONGEST_TOOL_SECONDS
    match kind:
        case PendingKind.MESSAGE | PendingKind.RECORDED:
            await agent.send_message(conversation_id, content, run=pending.run, time_limit=longest)
        case PendingKind.ACCEPT | PendingKind.REJECT:
            await agent.respond_to_confirmation(
                conversation_id,
                accept=kind is PendingKind.ACCEPT,
                reason=text_of(content) or None,
            )
        case PendingKind.RUN:
            await _run(agent, pending)
        case PendingKind.PAUSE:
            await agent.pause(conversation_id, time_limit=longest)
        case PendingKind.ROLLBACK:
            raise Conflict("The files are restored before the agent gets a message about it")
        case PendingKind.INTERRUPT:
            await agent.interrupt(conversation_id)


async def _run(agent: AgentServer, pending: PendingMessage) -> None:
    if not pending.run:
        # A stop was delivered since.
        return
    try:
        await agent.run(pending.conversation_id)
    except Conflict:
        # On a retry, it may be running because of the first attempt.
        if not pending.is_tried:
            raise


async def _wait_for_effect(agent: AgentServer, pending: PendingMessage) -> None:
    """Wait until an answer has had its effect, because it is not in the log before."""
    end = monotonic() + _EFFECT_SECONDS
    while not await _is_delivered(agent, pending):
        if monotonic() > end:
            raise AgentUnavailable("The agent has not processed an answer that it received")
        await asyncio.sleep(_POLL_SECONDS)


async def _status(agent: AgentServer, pending: PendingMessage) -> str:
    info = await agent.find_conversation(pending.conversation_id)
    if info is None:
        raise NotFound("The agent server does not know the conversation")
    return str(info.execution_status)


async def _read_signs(agent: AgentServer, pending: PendingMessage) -> list[_Sign]:
    """Return the signs in the events after the start of the first attempt."""
    last, wanted = pending.last_event or "", _text(pending.message)
    pages = agent.event_pages(pending.conversation_id, first=last)
    events = (event async for page in pages for event in decode_events(_event, page))
    try:
        if last and (await anext(events, _Event())).id != last:
            raise DeliveryUnknown("The agent's log has changed")
        return [sign async for one in events if (sign := _sign_of(one, wanted))]
    except AgentRefused as exc:
        raise _retry_search(exc) from exc


def _sign_of(event: _Event, wanted: str) -> _Sign | None:
    if _said_by_user(event) == wanted:
        return _Sign.SAID
    if event.kind in _STOPPED:
        return _Sign.STOPPED
    is_answer = event.kind == "MessageEvent" and event.source == "agent"
    return _Sign.TAKEN_UP if is_answer or event.kind in _TAKEN_UP else None


def _retry_search(exc: AgentRefused) -> AgentUnavailable:
    # The refusal concerns the search, not the message: retry.
    return AgentUnavailable(exc.message, detail=exc.detail)


def _is_taken_up(signs: Sequence[_Sign]) -> bool:
    """Return whether the agent has continued or was stopped."""
    return any(one is not _Sign.SAID for one in signs)


def _said_by_user(event: _Event) -> str | None:
    if event.kind != "MessageEvent" or event.source != "user" or event.llm_message is None:
        return None
    return text_of(event.llm_message.content)


def _text(message: Message) -> str:
    return text_of(to_agent_message(message)["content"])
