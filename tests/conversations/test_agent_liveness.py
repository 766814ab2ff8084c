"""Since when an agent server counts as silent."""

from agentsvc.base.values import monotonic
from agentsvc.conversations.agent_liveness import AgentLiveness

LONG = 3600.0


def test_a_silence_begins_with_the_question_that_was_not_answered() -> None:
    silence = AgentLiveness(LONG)
    silence.note("first", is_alive=False, asked_at=monotonic() - LONG)
    silence.note("second", is_alive=False, asked_at=monotonic())
    assert silence.silent() == {"first"}
    assert silence.all() == {"first", "second"}


def test_a_later_question_without_an_answer_leaves_the_beginning_and_an_answer_ends_it() -> None:
    silence = AgentLiveness(LONG)
    silence.note("first", is_alive=False, asked_at=monotonic() - LONG)
    silence.note("first", is_alive=False, asked_at=monotonic())
    assert silence.silent() == {"first"}
    silence.note("first", is_alive=True, asked_at=monotonic())
    assert silence.silent() == set()
    assert silence.all() == set()
