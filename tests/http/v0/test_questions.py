"""When an action is shown that the user may be asked about."""

from typing import Any

import pytest

from agentsvc.http.v0.translate import Translator
from tests.http.v0.event_samples import (
    action,
    last,
    observation,
    outline,
    reported,
    shown,
    status,
    translate,
)

ALWAYS = {"kind": "AlwaysConfirm"}
RISKY = {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
RUN = {"kind": "TerminalAction", "command": "ls"}
DONE = {"kind": "TerminalObservation", "content": []}
CONFIRMED = "agent run confirmed"
AWAITING = "agent run awaiting_confirmation"
ASKED = "environment agent_state_changed awaiting_user_confirmation"


def policy(value: Any) -> bytes:
    return reported("ConversationStateUpdateEvent", key="confirmation_policy", value=value)


def begun(value: Any) -> list[bytes]:
    return [policy(value), status("running")]


def told(bodies: list[bytes]) -> list[str]:
    """Return what was told once the agent ran."""
    lines = [outline(event) for event in shown(bodies)]
    return lines[lines.index("environment agent_state_changed running") + 1 :]


def test_an_action_is_shown_with_the_question_and_not_before() -> None:
    asked = [*begun(ALWAYS), action(RUN)]
    assert told(asked) == []
    assert told([*asked, status("waiting_for_confirmation")]) == [ASKED, AWAITING]


def test_the_policy_is_known_from_the_whole_state() -> None:
    value = {"confirmation_policy": ALWAYS, "execution_status": "idle"}
    state = reported("ConversationStateUpdateEvent", key="full_state", value=value)
    assert told([state, status("running"), action(RUN)]) == []


@pytest.mark.parametrize(
    "next_one",
    [
        observation(DONE),
        status("paused"),
        reported("PauseEvent"),
        reported("MessageEvent", source="user", llm_message={"content": []}),
        reported("AgentErrorEvent", error="no", tool_call_id="call"),
    ],
)
def test_an_action_nobody_is_asked_about_is_shown_before_what_follows(next_one: bytes) -> None:
    lines = told([*begun(ALWAYS), action(RUN), next_one])
    assert lines[0] == CONFIRMED
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("value", "risk", "is_held"),
    [
        (ALWAYS, "LOW", True),
        (RISKY, "LOW", False),
        (RISKY, "MEDIUM", False),
        (RISKY, "HIGH", True),
        (RISKY, "UNKNOWN", True),
        ({**RISKY, "confirm_unknown": False}, "UNKNOWN", False),
        ({**RISKY, "threshold": "MEDIUM"}, "MEDIUM", True),
        ({**RISKY, "threshold": "odd"}, "HIGH", True),
        ({"kind": "NeverConfirm"}, "HIGH", False),
        ({"kind": "Odd"}, "HIGH", False),
        ("odd", "HIGH", False),
        (None, "HIGH", False),
    ],
)
def test_only_what_the_policy_asks_about_is_held_back(value: Any, risk: str, is_held: bool) -> None:
    lines = told([*begun(value), action(RUN, security_risk=risk)])
    assert lines == ([] if is_held else [CONFIRMED])


def test_what_cannot_be_asked_about_is_shown_at_once() -> None:
    think = action({"kind": "ThinkAction", "thought": "hm"})
    assert outline(last([*begun(ALWAYS), think])) == "agent think"


def test_actions_of_one_step_stay_in_their_order() -> None:
    first = action(RUN, security_risk="HIGH")
    second = action({"kind": "ThinkAction", "thought": "hm"}, id="a2", tool_call_id="call2")
    step = [*begun(RISKY), first, second]
    assert told([*step, status("waiting_for_confirmation")]) == [ASKED, AWAITING, "agent think"]
    assert told([*step, observation(DONE)])[:2] == [CONFIRMED, "agent think"]


def test_an_action_that_was_held_back_is_what_a_condensation_forgets() -> None:
    bodies = [
        *begun(ALWAYS),
        action(RUN),
        observation(DONE, id="o1"),
        reported("Condensation", forgotten_event_ids=["a1", "o1"]),
    ]
    events = shown(bodies)
    numbers = [one["id"] for one in events if outline(one).startswith("agent run")]
    assert events[-1]["args"]["forgotten_event_ids"] == numbers


def test_bookkeeping_in_between_does_not_show_it() -> None:
    translator = Translator()
    for body in [*begun(ALWAYS), action(RUN)]:
        translator.feed(body)
    stats = reported("ConversationStateUpdateEvent", key="stats", value={})
    assert translator.feed(stats) == []
    assert translator.feed(reported("SecurityAnalysisEvent", action_id="a1")) == []
    assert len(translator.feed(status("waiting_for_confirmation"))) == 2


def test_an_action_is_asked_about_a_few_times_only_however_often_the_state_changes() -> None:
    actions = [action({"kind": "TerminalAction", "command": str(n)}, id=str(n)) for n in range(20)]
    turns = [status("waiting_for_confirmation"), status("running")] * 200
    assert len(translate([*actions, *turns])) < 1000


def test_of_very_many_open_actions_the_first_are_forgotten() -> None:
    bodies = [action(RUN, id=str(number)) for number in range(1500)]
    late = [observation(DONE, action_id=str(number)) for number in (0, 1499)]
    first, second = shown([*bodies, *late])[-2:]
    assert "cause" not in first
    assert second["cause"] == 1500
