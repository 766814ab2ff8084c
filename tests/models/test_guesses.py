"""What a call of a model is taken to use before it has an answer."""

import msgspec
import pytest

from agentsvc.models.wire import (
    BadModelRequest,
    CallUsage,
    Upstream,
    UsageReader,
    estimate_usage,
    to_upstream_request,
)


@pytest.mark.parametrize(("price", "dollars"), [(0.01, 1.0), (None, None)])
def test_a_call_is_taken_to_use_rather_more_than_it_asks(
    price: float | None, dollars: float | None
) -> None:
    upstream = Upstream(model="m", base_url="u", api_key=None, input_cost_per_token=price)
    guess = estimate_usage(upstream, 300)
    assert (guess.prompt_tokens, guess.completion_tokens) == (100, 0)
    assert guess.dollars == (None if dollars is None else pytest.approx(dollars))


@pytest.mark.parametrize("tokens", [2**63, -1])
def test_tokens_that_cannot_be_are_counted_as_if_nothing_was_said(tokens: int) -> None:
    reader = UsageReader(is_stream=False, asked_bytes=400)
    answer = b'{"usage": {"prompt_tokens": %d}}' % tokens
    reader.feed(answer)
    used = reader.result(Upstream(model="m", base_url="u", api_key=None), None)
    assert used == CallUsage(prompt_tokens=100, completion_tokens=len(answer) // 4)


@pytest.mark.parametrize("told", ["nan", "inf", "-1", "1e308"])
def test_a_price_that_cannot_be_is_no_price(told: str) -> None:
    reader = UsageReader(is_stream=False, asked_bytes=400)
    used = reader.result(Upstream(model="m", base_url="u", api_key=None), float(told))
    assert (used.prompt_tokens, used.dollars) == (100, None)


def test_a_long_line_in_small_parts_is_not_looked_through_again_with_each() -> None:
    reader = UsageReader(is_stream=True, asked_bytes=400)
    # It would take minutes.
    for _ in range(100_000):
        reader.feed(b"x" * 40)
    reader.feed(b'\ndata: {"usage": {"prompt_')
    reader.feed(b'tokens": 7}}\ndata: {}\n')
    used = reader.result(Upstream(model="m", base_url="u", api_key=None), None)
    assert used == CallUsage(prompt_tokens=7)


def test_nothing_is_asked_for_in_the_background_where_nobody_counts() -> None:
    body = b'{"background": true, "store": true, "input": "x"}'
    asked = msgspec.json.decode(to_upstream_request(body, "m", wants_usage=False))
    assert asked == {"store": True, "input": "x", "model": "m"}


def test_a_question_of_very_many_members_is_none() -> None:
    body = b"{" + b",".join(b'"%x":1' % number for number in range(1_000_001)) + b"}"
    with pytest.raises(BadModelRequest):
        to_upstream_request(body, "m", wants_usage=False)
