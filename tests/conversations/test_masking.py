"""What is secret in the states that agent servers tell."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from agentsvc.base.values import MASK
from agentsvc.conversations.state_masking import mask_state, mask_states


def state(value: Any, key: str = "full_state") -> bytes:
    event = {
        "id": "1",
        "timestamp": "2030-01-01T00:00:00",
        "source": "environment",
        "kind": "ConversationStateUpdateEvent",
        "key": key,
        "value": value,
        "more": [1.50],
    }
    return msgspec.json.encode(event)


def masked(value: Any, key: str = "full_state") -> Any:
    return msgspec.json.decode(mask_state(state(value, key)))["value"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"llm": {"api_key": "k", "model": "m"}}, {"llm": {"api_key": MASK, "model": "m"}}),
        ({"llm": {"extra_headers": {"H": "k"}}}, {"llm": {"extra_headers": {"H": MASK}}}),
        ({"litellm_extra_body": {"a": {"b": ["k", 1]}}}, {"litellm_extra_body": {"a": {"b": [MASK, 1]}}}),
        ({"base_url": "https://u:k@host/v1"}, {"base_url": f"https://{MASK}@host/v1"}),
        ({"url": "http://h/p?a=k&b=k#x"}, {"url": f"http://h/p?a={MASK}&b={MASK}#x"}),
        ({"url": "http://h/p?a?b=k&=k"}, {"url": f"http://h/p?a?b={MASK}&={MASK}"}),
        ({"b": {"args": ["-t", "k"], "env": {"A": "k"}}}, {"b": {"args": [MASK, MASK], "env": {"A": MASK}}}),
        (
            {"auth": {"strategy": "basic", "username": "u", "password": "k"}},
            {"auth": {"strategy": "basic", "username": "u", "password": MASK}},
        ),
        (
            {"secret_sources": {"A": {"kind": "StaticSecret", "value": "k"}}},
            {"secret_sources": {"A": {"kind": "StaticSecret", "value": MASK}}},
        ),
        ({"api_key": "", "token": None}, {"api_key": "", "token": None}),
    ],
)  # fmt: skip
def test_what_is_secret_in_a_state_is_masked(told: Any, kept: Any) -> None:
    assert masked({"agent": told}) == {"agent": kept}
    assert masked(told, "agent") == kept


def test_a_secret_may_be_the_whole_value() -> None:
    assert masked("k", "api_key") == MASK
    assert masked({"A": "k"}, "env") == {"A": MASK}


@pytest.mark.parametrize(
    "raw",
    [
        state({"agent": {"llm": {"model": "m", "api_key": MASK}}}),
        state({"usage_to_metrics": {"agent": {"model_name": "m"}}}, "stats"),
        state("running", "execution_status"),
        state({}).replace(b"ConversationStateUpdateEvent", b"MessageEvent"),
        b'{"kind": "ConversationStateUpdateEvent"}',
        b"ConversationStateUpdateEvent",
    ],
)
def test_what_has_nothing_to_mask_stays_byte_for_byte(raw: bytes) -> None:
    assert mask_state(raw) == raw


def test_the_rest_of_an_event_stays_as_it_was_told() -> None:
    told = state({"api_key": "k", "big": 12345678901234567890, "small": 0.1})
    assert mask_state(told) == told.replace(b'"k"', f'"{MASK}"'.encode())


def test_a_state_that_cannot_be_read_is_not_kept() -> None:
    told = state({"api_key": "k", "n": 0}).replace(b'"n":0', b'"n":1e999')
    assert msgspec.json.decode(mask_state(told)) == {
        "id": "1",
        "kind": "ConversationStateUpdateEvent",
        "timestamp": "2030-01-01T00:00:00",
        "source": "environment",
        "key": "unreadable",
        "value": None,
    }


def test_what_is_nested_too_deeply_is_left_out() -> None:
    told: Any = {"api_key": "k"}
    for _ in range(200):
        told = {"a": told}
    assert b'"k"' not in mask_state(state(told))


def test_of_a_state_with_more_in_it_than_any_has_the_head_is_left() -> None:
    told = state({"api_key": "k", "n": [0] * 300_000})
    assert msgspec.json.decode(mask_state(told))["key"] == "unreadable"


async def test_large_states_are_masked_while_others_have_their_turn() -> None:
    told = [state({"api_key": "k", "n": [0] * 100_000})] * 2
    async with asyncio.TaskGroup() as group:
        masking = group.create_task(mask_states(told))
        await asyncio.sleep(0)
        assert not masking.done()
    assert masking.result() == [mask_state(event) for event in told]


def test_an_address_full_of_question_marks_is_looked_through_in_a_moment() -> None:
    address = "http://h/" + "?" * 20_000
    began = time.process_time()
    assert masked(address, "base_url") == address
    assert time.process_time() - began < 1
