"""Where a replay stands, and what the agent is told to do next."""

import json
from typing import Any

import msgspec
import pytest

from agentsvc.conversations.replay_script import (
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
from agentsvc.domain.orders import Content, ContentKind, Message, RecordedStep, StartOrder, ToolUse


def said(text: str) -> RecordedStep:
    return RecordedStep(message=Message(content=(Content(kind=ContentKind.TEXT, text=text),)))


def used(*tools: str, text: str = "") -> RecordedStep:
    return RecordedStep(text=text, uses=tuple(ToolUse(tool=tool) for tool in tools))


STEPS = (
    said("Begin.\nNow."),  # 0
    used("terminal"),  # 1
    used("file_editor", "terminal"),  # 2
    said("Faster!"),  # 3
    used("finish"),  # 4
    said("Again."),  # 5
    used(text="In words."),  # 6
    said("Last."),  # 7
)


def given(at: int, calls: int = 1) -> dict[str, Any]:
    ids = [{"id": f"replay_{at}_{index}"} for index in range(calls)]
    return {"role": "assistant", "tool_calls": ids}


def question(*messages: dict[str, Any], **more: Any) -> Question:
    body = {"model": "openai/replay", "messages": list(messages), **more}
    return msgspec.convert(body, Question)


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([], 1),
        ([{"role": "system"}, {"role": "user", "content": "Begin."}], 1),
        ([given(1)], 2),
        ([given(1), {"role": "tool"}, given(2, calls=2)], 4),
        ([given(4), {"role": "user"}], 6),
        ([given(4), {"role": "user"}, {"role": "assistant", "content": "In words."}], None),
        ([given(1), {"role": "assistant", "content": "Not recorded."}], 2),
        # What came before was condensed away.
        ([{"role": "user", "content": "A summary"}, given(2)], 4),
    ],
)
def test_the_next_turn_follows_from_what_the_agent_was_given(
    messages: list[dict[str, Any]], at: int | None
) -> None:
    assert find_turn(STEPS, question(*messages).messages) == at


def test_calls_that_are_not_of_the_recording_count_for_nothing() -> None:
    asked = question({"role": "assistant", "tool_calls": [{"id": "call_1"}, {"id": ""}]})
    assert find_turn(STEPS, asked.messages) == 1


def test_the_last_turn_is_the_one_no_other_follows() -> None:
    assert [at for at in (1, 2, 4, 6) if is_last_turn(STEPS, at)] == [6]


def test_only_what_is_said_into_a_run_is_an_interjection() -> None:
    assert [at for at in (1, 2, 4, 6) if interjection(STEPS, at)] == [2]
    assert interjection(STEPS, 2) == STEPS[3]
    assert interjection(STEPS[:2], 1) is None


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, "id": "x", **fields}).encode()


USER = event("MessageEvent", source="user")
AGENT = event("MessageEvent", source="agent")
ONE, TWO = (event("ActionEvent", tool_call_id=f"replay_{at}_0") for at in (1, 2))
OTHER = event("ActionEvent", tool_call_id="call_7")


@pytest.mark.parametrize(
    ("events", "at"),
    [
        ([], -1),
        ([event("SystemPromptEvent"), USER], 0),
        ([USER, ONE], 1),
        ([USER, ONE, event("ObservationEvent", tool_call_id="replay_1_0")], 1),
        ([USER, ONE, TWO, USER], 3),
        ([USER, ONE, TWO, USER, event("ActionEvent", tool_call_id="replay_4_0"), USER, AGENT], 6),
        ([USER, ONE, OTHER], 1),
        ([USER, AGENT, ONE, AGENT], 1),
    ],
)
def test_the_events_tell_which_step_was_reached(events: list[bytes], at: int) -> None:
    assert reached(STEPS, events) == at


def test_more_messages_than_recorded_change_nothing() -> None:
    assert reached(STEPS, [USER] * 9) == 7


def test_an_action_of_the_model_is_not_recorded() -> None:
    assert acts_as_recorded([USER, ONE])
    assert not acts_as_recorded([USER, ONE, OTHER])
    assert not acts_as_recorded([USER])


def test_what_is_left_to_say_is_known() -> None:
    assert [has_messages_behind(STEPS, at) for at in (-1, 3, 6, 7)] == [True, True, True, False]


def test_a_turn_is_answered_as_a_chat_completion() -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "file_editor",
                "parameters": {"properties": {"command": {}, "summary": {}, "security_risk": {}}},
            },
        },
        {"type": "function", "function": {"name": "terminal"}},
    ]
    answer = completion(STEPS, 2, question(given(1), tools=tools))
    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    first, second = choice["message"]["tool_calls"]
    assert (first["id"], second["id"]) == ("replay_2_0", "replay_2_1")
    assert first["function"]["name"] == "file_editor"
    told = json.loads(first["function"]["arguments"])
    assert told == {"security_risk": "LOW", "summary": "Replayed from a recording"}
    assert json.loads(second["function"]["arguments"]) == {}
    assert answer["usage"]["total_tokens"] == 0


def test_words_are_answered_as_words() -> None:
    [choice] = completion(STEPS, 6, question())["choices"]
    assert choice["message"] == {"role": "assistant", "content": "In words."}
    assert choice["finish_reason"] == "stop"


def test_who_asks_for_a_title_gets_the_first_line() -> None:
    [choice] = title_answer(STEPS, question())["choices"]
    assert choice["message"]["content"] == "Begin."
    [choice] = title_answer((used("terminal"),), question())["choices"]
    assert choice["message"]["content"] == "Replay"


def test_what_the_user_wants_now_comes_behind_the_recording() -> None:
    message = STEPS[7].message
    assert recording_of(StartOrder(initial_message=message)) == ()
    assert recording_of(StartOrder(replay=STEPS[:2])) == STEPS[:2]
    order = StartOrder(replay=STEPS[:2], initial_message=message)
    assert recording_of(order) == (*STEPS[:2], STEPS[7])
