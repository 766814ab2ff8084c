"""What a call of a model is taken to use before it has an answer."""

import pytest

from agentsvc.models.wire import Upstream, guess_usage


@pytest.mark.parametrize(("price", "dollars"), [(0.01, 1.0), (None, None)])
def test_a_call_is_taken_to_use_rather_more_than_it_asks(
    price: float | None, dollars: float | None
) -> None:
    upstream = Upstream(model="m", base_url="u", api_key=None, input_cost_per_token=price)
    guess = guess_usage(upstream, 300)
    assert (guess.prompt_tokens, guess.completion_tokens) == (100, 0)
    assert guess.dollars == (None if dollars is None else pytest.approx(dollars))
