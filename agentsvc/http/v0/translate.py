"""Translates the events of a conversation to the history of V0.

A `Translator` gets the stored events of one conversation in order of arrival and returns the V0
events that each of them adds. Its state is the number of the next event, the open actions, the
agent state and the costs. The result depends only on the events, so the numbers are the same for
every client and at every read. It does no I/O.

The V0 history is not a plain one-to-one mapping:

- It begins with the state `loading`, and has a state event only when the state changes.
- An action that needs a confirmation is held back until the agent asks for it, or continues
  without asking. It is published again, as a new event, whenever its confirmation state changes.
- A run ends with `awaiting_user_input` if the agent's last event was a message, otherwise with
  `finished`. The next state after that is `running`: a polling client would take the `idle` that a
  message causes for the end of the next run.
- An idle agent that is asked to stop or pause is `stopped` or `paused` at once. `stopped` lasts
  until it runs again, although agent servers do not have such a state.
"""

from collections.abc import Iterable
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.agentserver import tokens_of
from agentsvc.base import copy_to, decode_or_none
from agentsvc.conversations import IMPORTED_KEY, STATE_REQUEST_KEY, TOOL_SERVER_FAILED
from agentsvc.http.v0 import agent_events as agent
from agentsvc.http.v0.actions import UNKNOWN_RISK, Fields, ShownAction, show_action, show_tool_call
from agentsvc.http.v0.event_types import AgentState, Confirmation, HistoryEvent
from agentsvc.http.v0.observations import (
    ShownObservation,
    show_error,
    show_observation,
    show_run_error,
)

REJECTED_MESSAGE: Final = "Action has been rejected by the user! Waiting for further user input."
AGENT_CLASS: Final = "CodeActAgent"

_STATES: Final = {
    "idle": AgentState.AWAITING_USER_INPUT,
    "running": AgentState.RUNNING,
    "paused": AgentState.PAUSED,
    "waiting_for_confirmation": AgentState.AWAITING_USER_CONFIRMATION,
    "finished": AgentState.FINISHED,
    "error": AgentState.ERROR,
    "stuck": AgentState.ERROR,
    "deleting": AgentState.STOPPED,
}
_ENDED: Final = frozenset(
    {AgentState.FINISHED, AgentState.PAUSED, AgentState.STOPPED, AgentState.ERROR}
)
_MAX_OPEN: Final = 1000
"""Maximum number of open (unanswered) actions; beyond it the oldest is dropped."""
_MAX_ASKED: Final = 8
_RESTS: Final = frozenset({AgentState.PAUSED, AgentState.STOPPED})


class _OpenAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action without a result yet, in the form in which it was last published."""

    number: int
    tool_call_id: str
    shown: ShownAction
    tool_call: Fields
    confirmation: Confirmation
    asked: int = 0
    """How often it was published as awaiting confirmation."""


class Translator:
    """Stateful translator of one conversation; `feed` it each stored event once, in order."""

    def __init__(self) -> None:
        self._next_number = 0
        self._numbers: dict[str, int] = {}
        self._twins: set[str] = set()
        self._open: dict[str, _OpenAction] = {}
        self._held: list[agent.ActionEvent] = []
        self._policy = agent.ConfirmationPolicy()
        self._answered_early: set[str] = set()
        self._state: AgentState | None = None
        self._has_run = False
        self._ended_on_message = False
        self._reason = ""
        self._metrics: Fields | UnsetType = UNSET
        self._rest: AgentState | None = None
        """PAUSED or STOPPED if the user asked for it, until the agent runs again."""
        self._rest_asked_at = ""

    def feed(self, body: bytes) -> list[HistoryEvent | msgspec.Raw]:
        """Return the V0 events that the next stored event adds: none, one or several."""
        event = decode_or_none(body, agent.EVENT)
        if event is None:
            return []
        if event.id in self._twins:
            self._twins.discard(event.id)
            return []
        if not isinstance(event, agent.ConversationStateUpdateEvent):
            return list(self._steps(event))
        if event.key == IMPORTED_KEY:
            return list(self._import(event))
        return list(self._update(event))

    def go_on_at(self, number: int) -> None:
        """Set the number of the next event, after an event that could not be translated."""
        self._next_number = number

    def _import(self, event: agent.ConversationStateUpdateEvent) -> Iterable[msgspec.Raw]:
        """Publish an imported V0 event unchanged."""
        imported = decode_or_none(event.value, agent.Imported)
        head = decode_or_none(imported.event, agent.ImportedEvent) if imported is not None else None
        if imported is None or head is None or head.id != self._next_number:
            return
        number = self._take_number()
        self._has_run = True
        if imported.twin is not None:
            self._twins.add(imported.twin)
            self._numbers.setdefault(imported.twin, number)
        state = agent.string_of(head.extras, "agent_state")
        if state in set(AgentState):
            self._state = AgentState(state)
        self._state = self._state or AgentState.LOADING
        yield imported.event

    def _steps(self, event: agent.LoggedEvent) -> Iterable[HistoryEvent]:
        if not isinstance(event, agent.ActionEvent):
            yield from self._release(event)
        yield from self._begin(event)
        match event:
            case agent.SystemPromptEvent():
                yield self._system(event)
            case agent.MessageEvent():
                yield from self._say(event)
            case agent.ActionEvent():
                yield from self._act(event)
            case agent.ObservationEvent() | agent.UserRejectObservation() | agent.AgentErrorEvent():
                yield from self._answer(event)
            case agent.ConversationErrorEvent():
                yield from self._fail(event)
            case agent.PauseEvent() | agent.InterruptEvent():
                yield from self._halt(event)
            case agent.Condensation():
                yield self._publish(event, "agent", self._condense(event))
            case agent.CondensationRequest():
                shown = ShownAction(action="condensation_request", args={}, message="")
                yield self._publish(event, "agent", shown)
            case _:
                assert_never(event)

    # States

    def _begin(self, event: agent.Reported) -> Iterable[HistoryEvent]:
        """Publish the state `loading` before the first event."""
        if self._state is None:
            yield self._enter(event, AgentState.LOADING)

    def _enter(self, event: agent.Reported, state: AgentState, reason: str = "") -> HistoryEvent:
        self._state = state
        extras = {"agent_state": state, "reason": reason}
        shown = ShownObservation(
            observation="agent_state_changed", content="", message="", extras=extras
        )
        return self._make(event, "environment", shown)

    def _update(self, event: agent.ConversationStateUpdateEvent) -> Iterable[HistoryEvent]:
        if event.key == "stats":
            stats = decode_or_none(event.value, agent.Stats)
            self._metrics = self._metrics if stats is None else _sum_up(stats)
        elif event.key == "execution_status":
            yield from self._change(event, decode_or_none(event.value, str) or "")
        elif event.key == STATE_REQUEST_KEY:
            yield from self._note_request(event, decode_or_none(event.value, str) or "")
        else:
            self._policy = agent.find_policy(event) or self._policy

    def _change(self, event: agent.Reported, status: str) -> Iterable[HistoryEvent]:
        state = self._state_for(status)
        if state is None:
            return
        yield from self._begin(event)
        if state is AgentState.RUNNING and event.timestamp > self._rest_asked_at:
            self._rest = None
        elif state is not AgentState.RUNNING and self._rest is AgentState.STOPPED:
            state = AgentState.STOPPED
        if state is self._state:
            return
        if state is not AgentState.AWAITING_USER_CONFIRMATION:
            yield from self._release(event)
        if state is AgentState.RUNNING:
            self._has_run = True
            yield from self._confirm(event)
        yield self._enter(event, state, self._reason if state is AgentState.ERROR else "")
        if state is AgentState.AWAITING_USER_CONFIRMATION:
            yield from self._ask(event)
        if state is not AgentState.ERROR:
            self._reason = ""

    def _state_for(self, status: str) -> AgentState | None:
        if status == "idle" and self._state in _ENDED:
            return None
        if status == "idle" and not self._has_run:
            return AgentState.LOADING
        if status == "finished" and self._ended_on_message:
            return AgentState.AWAITING_USER_INPUT
        return _STATES.get(status)

    # Actions

    def _system(self, event: agent.SystemPromptEvent) -> HistoryEvent:
        content = event.system_prompt.text or ""
        args = {
            "content": content,
            "tools": [_show_tool(tool) for tool in event.tools],
            "openhands_version": None,
            "agent_class": AGENT_CLASS,
        }
        return self._publish(
            event, "agent", ShownAction(action="system", args=args, message=content)
        )

    def _say(self, event: agent.MessageEvent) -> Iterable[HistoryEvent]:
        is_agent = event.source == "agent"
        parts = event.llm_message.content
        images = [url for part in parts for url in part.image_urls or ()]
        content = agent.text_of(parts)
        args = {
            "content": content,
            "file_urls": None,
            "image_urls": images or (None if is_agent else []),
            "wait_for_response": is_agent,
            "security_risk": UNKNOWN_RISK,
        }
        shown = ShownAction(action="message", args=args, message=content)
        metrics = self._metrics if is_agent else UNSET
        yield self._publish(event, _source(event), shown, llm_metrics=metrics)
        if is_agent:
            self._ended_on_message = True
            # The end of the run may arrive before the message that ended it.
            if self._state is AgentState.FINISHED:
                yield self._enter(event, AgentState.AWAITING_USER_INPUT)

    def _act(self, event: agent.ActionEvent) -> Iterable[HistoryEvent]:
        self._ended_on_message = False
        if self._held or self._will_ask(event):
            self._held.append(event)
        else:
            yield self._show(event, event)

    def _will_ask(self, event: agent.ActionEvent) -> bool:
        return (
            self._state is not AgentState.AWAITING_USER_CONFIRMATION
            and event.id not in self._answered_early
            and self._policy.asks_at(event.security_risk)
            and show_action(event).needs_confirmation
        )

    def _release(self, because: agent.Reported) -> Iterable[HistoryEvent]:
        """Publish the held-back actions with the time of the event that ends the wait."""
        held, self._held = self._held, []
        for event in held:
            yield self._show(event, because)

    def _show(self, event: agent.ActionEvent, because: agent.Reported) -> HistoryEvent:
        shown = show_action(event)
        confirmation = Confirmation.CONFIRMED
        if self._state is AgentState.AWAITING_USER_CONFIRMATION and shown.needs_confirmation:
            confirmation = Confirmation.AWAITING
        action = _OpenAction(
            number=self._next_number,
            tool_call_id=event.tool_call_id,
            shown=shown,
            tool_call=show_tool_call(event),
            confirmation=confirmation,
        )
        if event.id in self._answered_early:
            self._answered_early.discard(event.id)
        else:
            self._open[event.id] = action
            if len(self._open) > _MAX_OPEN:
                del self._open[next(iter(self._open))]
        self._numbers.setdefault(event.id, action.number)
        return self._publish_action(because, action)

    def _halt(self, event: agent.PauseEvent | agent.InterruptEvent) -> Iterable[HistoryEvent]:
        is_stop = isinstance(event, agent.InterruptEvent)
        # A request through V0 was published when it was made.
        if self._rest is None:
            yield self._request(event, AgentState.STOPPED if is_stop else AgentState.PAUSED)

    def _note_request(self, event: agent.Reported, asked: str) -> Iterable[HistoryEvent]:
        """Publish a state change that the user requested through V0."""
        if asked not in set(AgentState):
            return
        state = AgentState(asked)
        yield from self._begin(event)
        yield self._request(event, state)
        self._rest = state if state in _RESTS else None
        self._rest_asked_at = event.timestamp
        if state in _RESTS and self._state not in (AgentState.RUNNING, state):
            yield from self._release(event)
            yield self._enter(event, state)

    def _request(self, event: agent.Reported, state: AgentState) -> HistoryEvent:
        shown = ShownAction(
            action="change_agent_state",
            args={"agent_state": state, "thought": ""},
            message=f"Agent state changed to {state}",
        )
        return self._publish(event, "user", shown)

    def _condense(self, event: agent.Condensation) -> ShownAction:
        numbers = (self._numbers.get(key) for key in event.forgotten_event_ids)
        forgotten = sorted(number for number in numbers if number is not None)
        return ShownAction(
            action="condensation",
            args={
                "forgotten_event_ids": forgotten,
                "forgotten_events_start_id": None,
                "forgotten_events_end_id": None,
                "summary": event.summary,
                "summary_offset": event.summary_offset,
            },
            message=f"Summary: {event.summary}" if event.summary else "",
        )

    # Confirmation

    def _ask(self, event: agent.Reported) -> Iterable[HistoryEvent]:
        for key, action in list(self._open.items()):
            # The limit stops a faulty agent server from having an action published endlessly.
            if action.shown.needs_confirmation and action.asked < _MAX_ASKED:
                yield self._republish(event, key, Confirmation.AWAITING)
        yield from self._release(event)

    def _confirm(self, event: agent.Reported) -> Iterable[HistoryEvent]:
        waiting = [
            key
            for key, action in self._open.items()
            if action.confirmation is Confirmation.AWAITING
        ]
        if waiting and self._state is AgentState.AWAITING_USER_CONFIRMATION:
            yield self._enter(event, AgentState.USER_CONFIRMED)
        for key in waiting:
            yield self._republish(event, key, Confirmation.CONFIRMED)

    def _republish(
        self, event: agent.Reported, key: str, confirmation: Confirmation
    ) -> HistoryEvent:
        before = self._open[key]
        action = msgspec.structs.replace(
            before,
            number=self._next_number,
            confirmation=confirmation,
            asked=before.asked + (confirmation is Confirmation.AWAITING),
        )
        self._open[key] = action
        return self._publish_action(event, action)

    # Observations

    def _answer(
        self, event: agent.ObservationEvent | agent.UserRejectObservation | agent.AgentErrorEvent
    ) -> Iterable[HistoryEvent]:
        match event:
            case agent.ObservationEvent():
                action = self._close(event.action_id)
                shown = show_observation(event, action.shown if action else None)
                if shown is not None:
                    yield self._observe(event, shown, action)
            case agent.UserRejectObservation():
                yield from self._reject(event)
            case agent.AgentErrorEvent():
                key = self._find_by_tool_call(event.tool_call_id)
                action = self._close(key) if key else None
                yield self._observe(event, show_error(event.error), action)

    def _reject(self, event: agent.UserRejectObservation) -> Iterable[HistoryEvent]:
        before = self._state
        if event.action_id in self._open:
            yield self._republish(event, event.action_id, Confirmation.REJECTED)
        action = self._close(event.action_id)
        yield self._enter(event, AgentState.USER_REJECTED)
        content = event.rejection_reason or REJECTED_MESSAGE
        shown = ShownObservation(observation="user_rejected", content=content, message=content)
        yield self._observe(event, shown, action)
        # The state after the rejection arrived before it and will not arrive again.
        if before not in (None, AgentState.AWAITING_USER_CONFIRMATION, AgentState.USER_REJECTED):
            yield self._enter(event, before)

    def _fail(self, event: agent.ConversationErrorEvent) -> Iterable[HistoryEvent]:
        shown = show_run_error(event)
        yield self._publish(event, "environment", shown)
        if event.code == TOOL_SERVER_FAILED:
            # The run continues without the tool server.
            return
        self._reason = shown.content
        # After a failed start there is no run whose end would publish the error state.
        if self._state is AgentState.LOADING:
            yield self._enter(event, AgentState.ERROR, shown.content)

    def _close(self, key: str) -> _OpenAction | None:
        action = self._open.pop(key, None)
        if action is None:
            self._answered_early.add(key)
        return action

    def _find_by_tool_call(self, tool_call_id: str) -> str | None:
        found = (key for key, action in self._open.items() if action.tool_call_id == tool_call_id)
        return next(found, None)

    # Making events

    def _publish_action(self, event: agent.Reported, action: _OpenAction) -> HistoryEvent:
        args = dict(action.shown.args)
        if action.shown.needs_confirmation:
            args["confirmation_state"] = action.confirmation
        shown = msgspec.structs.replace(action.shown, args=args)
        more = {"tool_call_metadata": action.tool_call, "llm_metrics": self._metrics}
        return self._make(event, "agent", shown, **more)

    def _observe(
        self, event: agent.Reported, shown: ShownObservation, action: _OpenAction | None
    ) -> HistoryEvent:
        """Publish an observation, with the action that it answers if that is known."""
        if action is None:
            return self._publish(event, "agent", shown)
        answered = {"cause": action.number, "tool_call_metadata": action.tool_call}
        return self._publish(event, "agent", shown, **answered)

    def _publish(
        self,
        event: agent.Reported,
        source: str,
        shown: ShownAction | ShownObservation,
        **more: Any,
    ) -> HistoryEvent:
        """Create the V0 event of an agent event, and map the agent event's id to its number."""
        self._numbers.setdefault(event.id, self._next_number)
        return self._make(event, source, shown, **more)

    def _make(
        self,
        event: agent.Reported,
        source: str,
        shown: ShownAction | ShownObservation,
        **more: Any,
    ) -> HistoryEvent:
        number, moment = self._take_number(), event.timestamp
        return copy_to(HistoryEvent, shown, id=number, timestamp=moment, source=source, **more)

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def _source(event: agent.Reported) -> str:
    return event.source if event.source in ("agent", "user") else "environment"


def _show_tool(tool: dict[str, object]) -> dict[str, object]:
    """Return a tool in the format of chat completions; its parameters are not known."""
    function = {
        "name": tool.get("title") or tool.get("name") or "",
        "description": tool.get("description") or "",
    }
    return {"type": "function", "function": function}


def _sum_up(stats: agent.Stats) -> Fields:
    """Return the accumulated costs of a conversation; lists per response are always empty."""
    metrics = list(stats.usage_to_metrics.values())
    tokens = msgspec.structs.asdict(tokens_of(metrics))
    del tokens["reasoning_tokens"]  # V0 does not have this field
    budgets = [use.max_budget_per_task for use in metrics if use.max_budget_per_task is not None]
    return {
        "accumulated_cost": sum(use.accumulated_cost for use in metrics),
        "max_budget_per_task": max(budgets, default=None),
        "accumulated_token_usage": {"model": "default", **tokens, "response_id": ""},
        "costs": [],
        "response_latencies": [],
        "token_usages": [],
    }
