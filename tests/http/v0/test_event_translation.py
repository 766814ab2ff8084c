"""The translation of an agent's events into the older generation's, on recorded streams."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsvc.http.v0.translate import Translator
from tests.http.v0.event_samples import (
    action,
    last,
    observation,
    outline,
    reported,
    shown,
    status,
    text,
    translate,
)

DATA = Path(__file__).parents[2] / "data" / "v0"
STREAMS = sorted(path.stem for path in DATA.glob("*.jsonl") if not path.stem.startswith("older"))


def recorded(name: str) -> list[bytes]:
    return (DATA / f"{name}.jsonl").read_bytes().splitlines()


OUTLINES = {
    "run-finish": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent run confirmed",
        "agent run for 4",
        "agent finish",
        "environment agent_state_changed finished",
    ],
    "text-only": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent message",
        "environment agent_state_changed awaiting_user_input",
    ],
    "confirm-accept": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent run confirmed",
        "environment agent_state_changed awaiting_user_confirmation",
        "agent run awaiting_confirmation",
        "environment agent_state_changed user_confirmed",
        "agent run confirmed",
        "environment agent_state_changed running",
        "agent run for 8",
        "agent finish",
        "environment agent_state_changed finished",
    ],
    "confirm-reject": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent run confirmed",
        "environment agent_state_changed awaiting_user_confirmation",
        "agent run awaiting_confirmation",
        "environment agent_state_changed awaiting_user_input",
        "agent run rejected",
        "environment agent_state_changed user_rejected",
        "agent user_rejected for 8",
        "environment agent_state_changed awaiting_user_input",
    ],
    "interrupt": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent run confirmed",
        "agent error for 4",
        "environment agent_state_changed paused",
        "user change_agent_state stopped",
    ],
    "pause-resume": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "agent run confirmed",
        "agent run for 4",
        "environment agent_state_changed paused",
        "user change_agent_state paused",
    ],
    "llm-401": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "environment agent_state_changed error",
        "environment error",
    ],
    "llm-5xx": [
        "environment agent_state_changed loading",
        "agent system",
        "user message",
        "environment agent_state_changed running",
        "environment agent_state_changed error",
        "environment error",
    ],
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_is_shown_as_its_outline_says(name: str) -> None:
    assert [outline(event) for event in shown(recorded(name))] == OUTLINES[name]


@pytest.mark.parametrize("name", STREAMS)
def test_numbers_are_dense_and_do_not_depend_on_what_comes_later(name: str) -> None:
    bodies = recorded(name)
    whole = translate(bodies)
    assert [event["id"] for event in shown(bodies)] == list(range(len(whole)))
    for length in range(len(bodies)):
        part = translate(bodies[:length])
        assert part == whole[: len(part)]


@pytest.mark.parametrize("name", STREAMS)
def test_feeding_one_by_one_is_the_same_as_translating_at_once(name: str) -> None:
    translator = Translator()
    fed = [event for body in recorded(name) for event in translator.feed(body)]
    assert fed == translate(recorded(name))


def test_events_have_the_members_a_recorded_older_stream_has() -> None:
    older = {outline(json.loads(line)): json.loads(line) for line in recorded("older-run-finish")}
    ours = {outline(event): event for event in shown(recorded("run-finish"))}
    for name in ("agent system", "user message", "environment agent_state_changed finished"):
        assert list(ours[name]) == list(older[name])
    run = ours["agent run confirmed"]
    assert set(run) | {"llm_metrics"} == set(older["agent run confirmed"])
    assert set(run["args"]) == set(older["agent run confirmed"]["args"])
    assert set(ours["agent finish"]) == set(older["agent finish"])
    assert ours["agent finish"]["args"] == older["agent finish"]["args"]
    assert ours["agent finish"]["message"] == older["agent finish"]["message"]
    assert set(ours["agent run for 4"]) == set(older["agent run for 7"])
    assert set(ours["agent run for 4"]["extras"]) == set(older["agent run for 7"]["extras"])


def test_a_command_shows_its_text_its_output_and_its_exit_code() -> None:
    events = shown(recorded("run-finish"))
    command = "echo hello-from-agent && touch made_by_agent.txt"
    assert events[4]["args"]["command"] == command
    assert events[4]["args"]["thought"] == "Running a command."
    assert events[5]["content"] == "hello-from-agent"
    assert events[5]["extras"]["metadata"]["working_dir"] == "/workspace/project"
    assert events[5]["message"] == f"Command `{command}` executed with exit code 0."
    assert events[5]["success"] is True


def test_the_next_action_tells_what_the_conversation_has_cost() -> None:
    events = shown(recorded("run-finish"))
    assert "llm_metrics" not in events[4]
    usage = events[6]["llm_metrics"]["accumulated_token_usage"]
    assert usage["prompt_tokens"] == 200
    assert usage["model"] == "default"


def test_the_cost_is_the_sum_over_all_uses_of_models() -> None:
    uses = {
        name: {"accumulated_cost": 0.25, "accumulated_token_usage": {"prompt_tokens": 5}}
        for name in ("agent", "condenser")
    }
    stats = reported("ConversationStateUpdateEvent", key="stats", value={"usage_to_metrics": uses})
    event = last([stats, action({"kind": "FinishAction", "message": "ok"})])
    assert event["llm_metrics"]["accumulated_cost"] == 0.5
    assert event["llm_metrics"]["accumulated_token_usage"]["prompt_tokens"] == 10


def test_a_tool_call_keeps_what_the_model_wrote() -> None:
    run = shown(recorded("run-finish"))[4]
    metadata = run["tool_call_metadata"]
    assert (metadata["function_name"], metadata["tool_call_id"]) == ("terminal", "call_2")
    [choice] = metadata["model_response"]["choices"]
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["command"] == run["args"]["command"]


def test_a_high_risk_is_shown_as_a_number() -> None:
    events = shown(recorded("confirm-reject"))
    assert events[4]["args"]["security_risk"] == 2
    assert shown(recorded("run-finish"))[4]["args"]["security_risk"] == -1


def test_a_rejection_tells_the_users_reason() -> None:
    event = shown(recorded("confirm-reject"))[10]
    assert event["content"] == event["message"] == "no thanks"


def test_an_action_that_arrives_after_the_question_waits_too() -> None:
    waiting = [status("running"), status("waiting_for_confirmation")]
    event = last([*waiting, action({"kind": "TerminalAction", "command": "ls"})])
    assert outline(event) == "agent run awaiting_confirmation"


def test_a_rejection_before_the_next_state_leaves_that_state_to_come() -> None:
    bodies = [
        status("running"),
        action({"kind": "TerminalAction", "command": "ls"}),
        status("waiting_for_confirmation"),
        reported("UserRejectObservation", action_id="a1"),
        status("idle"),
    ]
    assert [outline(event) for event in shown(bodies)][-4:] == [
        "agent run rejected",
        "environment agent_state_changed user_rejected",
        "agent user_rejected for 5",
        "environment agent_state_changed awaiting_user_input",
    ]


def test_only_actions_that_need_it_wait_for_the_user() -> None:
    bodies = [
        status("running"),
        action({"kind": "ThinkAction", "thought": "hm"}),
        status("waiting_for_confirmation"),
    ]
    assert outline(last(bodies)) == "environment agent_state_changed awaiting_user_confirmation"


def test_the_state_before_the_first_run_is_loading() -> None:
    assert [outline(event) for event in shown([status("idle")])] == [
        "environment agent_state_changed loading"
    ]


@pytest.mark.parametrize("end", ["finished", "paused", "error"])
def test_a_message_after_the_end_leads_straight_to_running(end: str) -> None:
    said = reported("MessageEvent", source="user", llm_message={"content": text("x")})
    bodies = [status("running"), status(end), status("idle"), said, status("running")]
    assert [outline(event) for event in shown(bodies)][-3:] == [
        f"environment agent_state_changed {end}",
        "user message",
        "environment agent_state_changed running",
    ]


def asked(value: str, *, at: int) -> bytes:
    moment = f"2026-01-01T00:00:00.00000{at}"
    kind = "ConversationStateUpdateEvent"
    return reported(kind, key="asked_agent_state", value=value, timestamp=moment)


def status_at(value: str, at: int) -> bytes:
    moment = f"2026-01-01T00:00:00.00000{at}"
    kind = "ConversationStateUpdateEvent"
    return reported(kind, key="execution_status", value=value, timestamp=moment)


INTERRUPTED = reported("InterruptEvent", source="user")
PAUSED = reported("PauseEvent", source="user")


@pytest.mark.parametrize(
    ("before", "wish", "after", "told"),
    [
        pytest.param("running", "stopped", [status_at("paused", 3), INTERRUPTED], ["stopped"]),
        pytest.param("running", "stopped", [INTERRUPTED, status_at("paused", 3)], ["stopped"]),
        # The run ends by itself just then.
        pytest.param("running", "stopped", [status_at("finished", 3)], ["stopped"]),
        pytest.param("running", "paused", [status_at("paused", 3), PAUSED], ["paused"]),
        # An agent server that does nothing does not say that it is paused.
        pytest.param("finished", "stopped", [], ["stopped"]),
        pytest.param("finished", "paused", [], ["paused"]),
        pytest.param("idle", "stopped", [status_at("paused", 3), PAUSED], ["stopped"]),
        pytest.param("paused", "stopped", [], ["stopped"]),
        # What was reported before the wish may arrive after it.
        pytest.param(
            "finished",
            "stopped",
            [status_at("running", 1), status_at("paused", 3)],
            ["stopped", "running", "stopped"],
        ),
        # What the user says then sets the agent to work again.
        pytest.param(
            "finished",
            "stopped",
            [status_at("idle", 3), status_at("running", 4), status_at("finished", 5)],
            ["stopped", "running", "finished"],
        ),
        pytest.param("paused", "running", [status_at("running", 3)], ["running"]),
        pytest.param("finished", "user_confirmed", [], []),
    ],
)
def test_a_wish_is_told_once_and_before_its_effect(
    before: str, wish: str, after: list[bytes], told: list[str]
) -> None:
    earlier = [status_at("running", 0), status_at(before, 0)]
    bodies = [*earlier, asked(wish, at=2), *after]
    behind = shown(bodies)[len(shown(earlier)) :]
    assert [outline(event) for event in behind] == [
        f"user change_agent_state {wish}",
        *(f"environment agent_state_changed {state}" for state in told),
    ]


def test_a_tool_server_that_does_not_start_is_told_and_is_no_end() -> None:
    told = {"code": "ToolServerFailed", "detail": "The tool server `x` does not start"}
    bodies = [status("idle"), reported("ConversationErrorEvent", **told), status("running")]
    assert [outline(event) for event in shown(bodies)] == [
        "environment agent_state_changed loading",
        "environment error",
        "environment agent_state_changed running",
    ]
    assert shown(bodies)[1]["content"] == told["detail"]
    ended = last([*bodies, status("error")])
    assert ended["extras"] == {"agent_state": "error", "reason": ""}


def test_a_wish_for_what_is_no_state_is_not_told() -> None:
    assert shown([status("running"), asked("happy", at=1)]) == shown([status("running")])


def test_idle_in_the_middle_of_a_run_awaits_the_user() -> None:
    states = [status(value) for value in ("running", "idle", "idle")]
    assert [outline(event).split()[-1] for event in shown(states)] == [
        "loading",
        "running",
        "awaiting_user_input",
    ]


def test_a_message_that_arrives_after_the_end_it_caused_still_awaits_the_user() -> None:
    message = {"role": "assistant", "content": text("done")}
    bodies = [
        status("running"),
        status("finished"),
        reported("MessageEvent", source="agent", llm_message=message),
    ]
    assert outline(last(bodies)) == "environment agent_state_changed awaiting_user_input"


def test_an_error_told_before_the_state_is_its_reason() -> None:
    error = reported("ConversationErrorEvent", code="LLMRateLimitError", detail="slow down")
    event = last([status("running"), error, status("error")])
    assert event["extras"] == {"agent_state": "error", "reason": "slow down"}


def test_a_start_that_failed_ends_in_an_error_with_its_reason() -> None:
    events = shown([reported("ConversationErrorEvent", code="StartFailed", detail="no model")])
    assert [outline(event) for event in events] == [
        "environment agent_state_changed loading",
        "environment error",
        "environment agent_state_changed error",
    ]
    assert events[-1]["extras"]["reason"] == "no model"


@pytest.mark.parametrize(
    ("code", "kind", "error_id"),
    [
        ("LLMAuthenticationError", "auth", "STATUS$ERROR_LLM_AUTHENTICATION"),
        ("OpenAIError", "auth", "STATUS$ERROR_LLM_AUTHENTICATION"),
        ("LLMServiceUnavailableError", "transient", "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE"),
        ("OpenAIError", "quota", "STATUS$ERROR_LLM_OUT_OF_CREDITS"),
        ("MaxBudgetReached", "quota", "STATUS$ERROR"),
        ("LLMContentPolicyViolationError", "x", "STATUS$ERROR_LLM_CONTENT_POLICY_VIOLATION"),
        ("MaxIterationsReached", "agent_action", "STATUS$ERROR"),
    ],
)
def test_a_failed_run_has_an_error_id_clients_know(code: str, kind: str, error_id: str) -> None:
    error = reported("ConversationErrorEvent", code=code, detail="d", classification={"kind": kind})
    event = last([status("running"), error])
    assert event["extras"] == {"error_id": error_id}
    assert event["content"] == "d"


def test_an_outcome_that_arrives_before_its_action_has_no_cause_and_closes_it() -> None:
    bodies = [
        status("running"),
        observation({"kind": "TerminalObservation", "command": "ls", "exit_code": 0}),
        action({"kind": "TerminalAction", "command": "ls"}),
        status("waiting_for_confirmation"),
    ]
    events = shown(bodies)
    assert "cause" not in events[2]
    assert outline(events[-1]) == "environment agent_state_changed awaiting_user_confirmation"


def test_images_of_a_message_are_shown() -> None:
    content = [*text("see"), {"type": "image", "image_urls": ["http://a/b.png"]}]
    event = last([reported("MessageEvent", source="user", llm_message={"content": content})])
    assert event["args"]["image_urls"] == ["http://a/b.png"]
    assert event["message"] == "see"


def test_a_condensation_names_what_is_forgotten_by_number() -> None:
    said = reported("MessageEvent", source="user", llm_message={"content": text("x")})
    forgotten = ["id-of-MessageEvent", "unknown"]
    event = last([said, reported("Condensation", forgotten_event_ids=forgotten, summary="s")])
    assert event["action"] == "condensation"
    assert event["args"]["forgotten_event_ids"] == [1]
    assert event["message"] == "Summary: s"


def test_a_request_to_condense_is_shown() -> None:
    assert last([reported("CondensationRequest")])["action"] == "condensation_request"


@pytest.mark.parametrize(
    "body",
    [
        reported("StreamingDeltaEvent", content="x"),
        reported("ConversationStateUpdateEvent", key="full_state", value={"x": 1}),
        reported("ConversationStateUpdateEvent", key="stats", value=3),
        reported("ConversationStateUpdateEvent", key="execution_status", value=3),
        reported("ConversationStateUpdateEvent", key="execution_status", value="new"),
        reported("SecurityAnalysisEvent"),
        reported("MessageEvent", llm_message=1),
        b"{broken",
        b"\xff",
        b"[" * 5000,
    ],
)
def test_what_the_older_generation_has_no_word_for_is_left_out(body: bytes) -> None:
    assert translate([body]) == []


def test_odd_values_inside_a_tools_fields_do_no_harm() -> None:
    bodies = [
        action({"kind": 3, "command": {}}),
        action({"kind": "TerminalAction", "command": 7, "timeout": "soon"}),
        action({"kind": "TerminalAction", "command": "ls", "timeout": 10**400}),
        observation({"kind": "TerminalObservation", "content": "x", "metadata": 3}),
        observation({"kind": []}),
    ]
    assert [event["id"] for event in shown(bodies)] == [0, 1, 2, 3, 4, 5]


ACTIONS = st.sampled_from(["a1", "a2", "a3"])
REPORTS = st.one_of(
    st.sampled_from(
        ["idle", "running", "paused", "waiting_for_confirmation", "finished", "error", "new"]
    ).map(status),
    ACTIONS.map(lambda key: action({"kind": "TerminalAction", "command": "ls"}, id=key)),
    ACTIONS.map(lambda key: action({"kind": "FinishAction", "message": "x"}, id=key)),
    ACTIONS.map(lambda key: observation({"kind": "TerminalObservation"}, action_id=key)),
    ACTIONS.map(lambda key: reported("UserRejectObservation", action_id=key)),
    st.just(reported("AgentErrorEvent", error="x", tool_call_id="call")),
    st.just(reported("ConversationErrorEvent", code="x")),
    st.sampled_from(["user", "agent"]).map(
        lambda source: reported("MessageEvent", source=source, llm_message={"content": text("x")})
    ),
    st.sampled_from(["PauseEvent", "InterruptEvent", "CondensationRequest", "Other"]).map(reported),
)


@given(st.lists(REPORTS, max_size=30))
def test_whatever_arrives_in_whatever_order_keeps_the_rules(bodies: list[bytes]) -> None:
    events = shown(bodies)
    assert [event["id"] for event in events] == list(range(len(events)))
    assert not events or outline(events[0]) == "environment agent_state_changed loading"
    for event in events:
        assert ("action" in event) != ("observation" in event)
        if "cause" in event:
            assert "action" in events[event["cause"]]
            assert event["cause"] < event["id"]
