"""What the event socket tells: which events of a history, in which form, and how it goes."""

from typing import Any

import msgspec
import pytest

from agentsvc.http.v0.frames import error_frame, live, replay

encode = msgspec.json.encode
decode = msgspec.json.decode


def action(number: int, source: str = "agent", kind: Any = "run") -> bytes:
    return encode({"id": number, "source": source, "action": kind, "args": {"b": 1, "a": 2}})


def observation(number: int, kind: str, source: str = "environment") -> bytes:
    return encode({"id": number, "source": source, "observation": kind, "content": "é"})


def state(number: int) -> bytes:
    return observation(number, "agent_state_changed")


@pytest.mark.parametrize(
    ("history", "latest", "told"),
    [
        ([], -1, []),
        ([state(0)], -1, [0]),
        ([state(0)], 0, []),
        ([state(0), action(1), state(2), action(3), state(4)], -1, [1, 3, 4]),
        ([state(0), action(1), state(2), action(3)], -1, [1, 3, 2]),
        ([state(0), action(1), state(2), action(3)], 1, [3, 2]),
        ([state(0), action(1), state(2), action(3)], 2, [3]),
        ([state(0), action(1)], 7, []),
    ],
)
def test_of_the_states_only_the_last_is_replayed_at_the_end(
    history: list[bytes], latest: int, told: list[int]
) -> None:
    assert [decode(event)["id"] for event in replay(history, latest)] == told


def test_what_an_import_has_of_recalls_and_of_nothing_is_not_replayed() -> None:
    history = [
        action(0, kind="null"),
        action(1, "user", kind="recall"),
        observation(2, "recall"),
        observation(3, "null"),
        action(4, kind=[]),
    ]
    assert [decode(event)["id"] for event in replay(history, -1)] == [2, 4]


@pytest.mark.parametrize("event", [action(1), action(1, "user"), observation(2, "edit", "agent")])
def test_what_agent_and_user_do_is_told_as_it_is(event: bytes) -> None:
    assert live(event) == event


@pytest.mark.parametrize("kind", ["run", "agent_state_changed", "recall", "error"])
def test_what_the_environment_tells_is_the_agents(kind: str) -> None:
    event = observation(1, kind)
    told = live(event)
    assert told is not None
    assert decode(told) == {**decode(event), "source": "agent"}
    assert list(decode(told)) == list(decode(event))


@pytest.mark.parametrize("event", [action(1, "environment"), observation(1, "edit")])
def test_nothing_else_of_the_environment_is_told_live(event: bytes) -> None:
    assert live(event) is None


def test_an_error_has_the_older_form() -> None:
    expected: dict[str, Any] = {"error": True, "message": "no"}
    assert decode(error_frame("no")) == expected
