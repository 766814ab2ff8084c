"""What events say about a conversation, in whatever order they come."""

from typing import Any

import msgspec
import pytest

from agentsvc.agentserver.responses import ConversationStats
from agentsvc.conversations import facts
from agentsvc.conversations.event_log import EventHead
from agentsvc.conversations.model import Conversation, Metrics
from agentsvc.conversations.records import new_conversation
from agentsvc.domain.orders import ExecutionStatus, StartOrder
from agentsvc.settings.fields import Settings

DEEP = b'{"more":%s%s}' % (b"[" * 100_000, b"]" * 100_000)


def conversation(budget: float | None = None) -> Conversation:
    settings = Settings(max_budget_per_task=budget)
    return new_conversation("ann", "0f" * 16, StartOrder(), settings, None)


def head(key: Any, value: Any, at: str, kind: str = "State") -> EventHead:
    return EventHead(
        id=f"{key}-{at}",
        kind="ConversationStateUpdateEvent" if kind == "State" else kind,
        timestamp=at,
        key=key,
        value=msgspec.Raw(msgspec.json.encode(value)),
    )


def stats(cost: float, tokens: int = 0, model: str = "m") -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "completion_tokens": 2, "context_window": 100}
    one = {"model_name": model, "accumulated_cost": cost, "accumulated_token_usage": usage}
    return {"usage_to_metrics": {"agent": one, "condenser": {"accumulated_cost": 0.5}}}


def test_the_newest_status_counts_in_whatever_order_they_come() -> None:
    heads = [
        head("execution_status", "finished", "2030-01-01T00:00:03"),
        head("execution_status", "running", "2030-01-01T00:00:02"),
    ]
    for order in (heads, heads[::-1]):
        assert facts.learn(conversation(), order).execution_status is ExecutionStatus.FINISHED


def test_of_two_with_the_same_time_the_later_one_counts() -> None:
    learnt = facts.learn(
        conversation(),
        [
            head("execution_status", "running", "2030-01-01T00:00:02"),
            head("execution_status", "finished", "2030-01-01T00:00:02"),
        ],
    )
    assert learnt.execution_status is ExecutionStatus.FINISHED


def test_costs_with_more_parts_than_any_are_not_taken_over() -> None:
    usage = {"accumulated_cost": 0.5, "token_usages": [{"prompt_tokens": 1}] * 50}
    for count, cost in ((400, 200.0), (2000, 0.0)):
        told = {"usage_to_metrics": {str(number): usage for number in range(count)}}
        known = msgspec.convert(told, ConversationStats)
        heads = [head("stats", told, "2030-01-01T00:00:01")]
        assert facts.cost_of(facts.learn(conversation(), heads)) == cost
        assert facts.cost_of(facts.learn_stats(conversation(), known, "")) == cost


def test_costs_and_tokens_are_summed_over_all_uses() -> None:
    learnt = facts.learn(conversation(2.0), [head("stats", stats(1.0, 10), "2030-01-01T00:00:01")])
    assert learnt.metrics is not None
    assert learnt.metrics.accumulated_cost == 1.5
    assert learnt.metrics.model_name == "m"
    assert learnt.metrics.max_budget_per_task == 2.0
    assert learnt.metrics.accumulated_token_usage is not None
    assert learnt.metrics.accumulated_token_usage.prompt_tokens == 10
    assert learnt.metrics.accumulated_token_usage.context_window == 100


def test_older_costs_and_empty_costs_do_not_reset_newer_ones() -> None:
    learnt = facts.learn(
        conversation(),
        [
            head("stats", stats(1.0), "2030-01-01T00:00:02"),
            head("stats", stats(0.1), "2030-01-01T00:00:01"),
            head("stats", {"usage_to_metrics": {}}, "2030-01-01T00:00:03"),
        ],
    )
    assert learnt.metrics is not None
    assert learnt.metrics.accumulated_cost == 1.5


def test_costs_without_a_model_name_have_the_default_one() -> None:
    learnt = facts.learn(conversation(), [head("stats", stats(1.0, model=""), "2030-01-01")])
    assert learnt.metrics is not None
    assert learnt.metrics.model_name == "default"


def test_the_full_state_tells_both() -> None:
    state = {"execution_status": "paused", "stats": stats(1.0), "agent": {"kind": "Agent"}}
    learnt = facts.learn(conversation(), [head("full_state", state, "2030-01-01T00:00:01")])
    assert learnt.execution_status is ExecutionStatus.PAUSED
    assert learnt.metrics is not None


@pytest.mark.parametrize(
    "broken", [{"execution_status": 5}, {"execution_status": "dancing"}, {"execution_status": None}]
)
def test_a_status_that_is_not_understood_does_not_hide_the_costs(broken: dict[str, Any]) -> None:
    state = {**broken, "stats": stats(1.0)}
    learnt = facts.learn(conversation(), [head("full_state", state, "2030-01-01T00:00:01")])
    assert learnt.execution_status is None
    assert learnt.metrics is not None


def test_costs_that_are_not_understood_do_not_hide_the_status() -> None:
    state = {"execution_status": "running", "stats": [1]}
    learnt = facts.learn(conversation(), [head("full_state", state, "2030-01-01T00:00:01")])
    assert learnt.execution_status is ExecutionStatus.RUNNING
    assert learnt.metrics is None


@pytest.mark.parametrize(
    "other",
    [
        head("full_state", "no state", "2030-01-01T00:00:01"),
        head("title", "new", "2030-01-01T00:00:01"),
        head(None, "running", "2030-01-01T00:00:01"),
        head(["execution_status"], "running", "2030-01-01T00:00:01"),
        head("execution_status", "running", "2030-01-01T00:00:01", kind="MessageEvent"),
        *(head(key, msgspec.Raw(DEEP), "2030-01-01T00:00:01") for key in ("stats", "full_state")),
        EventHead(id="x", kind="ConversationStateUpdateEvent", timestamp="2030", key="stats"),
    ],
)
def test_other_events_teach_nothing(other: EventHead) -> None:
    before = conversation()
    assert facts.learn(before, [other]) == before


def spent(cost: float, *, budget: float | None, stopped_at: float | None = None) -> Conversation:
    known = msgspec.structs.replace(conversation().facts, budget_stop_cost=stopped_at)
    return msgspec.structs.replace(
        conversation(budget), metrics=Metrics(accumulated_cost=cost), facts=known
    )


@pytest.mark.parametrize(
    ("cost", "budget", "stopped_at", "is_over"),
    [
        (0.9, 1.0, None, False),
        (1.0, 1.0, None, True),
        (1.1, 1.0, 1.1, False),
        (1.2, 1.0, 1.1, True),
        (5.0, None, None, False),
    ],
)
def test_a_run_is_stopped_at_the_budget_and_at_each_further_step_that_costs(
    cost: float, budget: float | None, stopped_at: float | None, *, is_over: bool
) -> None:
    assert facts.is_over_budget(spent(cost, budget=budget, stopped_at=stopped_at)) is is_over


def test_a_stop_is_noted_as_due_at_the_present_cost() -> None:
    noted = facts.mark_budget_stop(spent(1.5, budget=1.0)).facts
    assert (noted.budget_stop_cost, noted.is_stop_due) == (1.5, True)
    assert not facts.is_over_budget(conversation(1.0))
    assert facts.mark_budget_stop(conversation(1.0)).facts.budget_stop_cost == 0.0
