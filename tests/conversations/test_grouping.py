"""Which running sandbox a new conversation joins."""

from datetime import timedelta

import pytest

from agentsvc.base.values import Secret, now
from agentsvc.conversations.starting.grouping import MATES_MAX, Occupancy, choose_sandbox
from agentsvc.plugin.backend import Phase, Spec
from agentsvc.sandboxes import Sandbox, Target
from agentsvc.settings.fields import GroupingStrategy

BEGIN = now()


def sandbox(sandbox_id: str, minutes: int) -> Sandbox:
    """Return a running sandbox that was made so many minutes after the beginning."""
    made_at = BEGIN + timedelta(minutes=minutes)
    return Sandbox(
        id=sandbox_id,
        user_id="u",
        spec_id="s",
        spec=Spec(id="s"),
        backend="b",
        target=Target.RUNNING,
        phase=Phase.RUNNING,
        reason="",
        exit_code=None,
        handle=None,
        endpoints=(),
        working_dir="/w",
        facts={},
        session_key=Secret("k"),
        ready_by=made_at,
        created_at=made_at,
        updated_at=made_at,
    )


def used(count: int, minutes: int) -> Occupancy:
    return Occupancy(count=count, used_at=BEGIN + timedelta(minutes=minutes))


RUNNING = [sandbox("newest", 3), sandbox("oldest", 1), sandbox("middle", 2)]
OCCUPANCY = {"oldest": used(3, 30), "middle": used(2, 10), "newest": used(1, 20)}


@pytest.mark.parametrize(
    ("strategy", "chosen"),
    [
        (GroupingStrategy.GROUP_BY_NEWEST, "newest"),
        (GroupingStrategy.LEAST_RECENTLY_USED, "middle"),
        (GroupingStrategy.FEWEST_CONVERSATIONS, "newest"),
        (GroupingStrategy.ADD_TO_ANY, "oldest"),
    ],
)
def test_each_strategy_chooses_its_own_sandbox(strategy: GroupingStrategy, chosen: str) -> None:
    found = choose_sandbox(strategy, RUNNING, OCCUPANCY)
    assert found is not None
    assert found.id == chosen


def test_without_grouping_no_sandbox_is_joined() -> None:
    assert choose_sandbox(GroupingStrategy.NO_GROUPING, RUNNING, OCCUPANCY) is None


@pytest.mark.parametrize("strategy", GroupingStrategy)
def test_where_none_runs_none_is_joined(strategy: GroupingStrategy) -> None:
    assert choose_sandbox(strategy, [], {}) is None


@pytest.mark.parametrize("strategy", list(GroupingStrategy)[1:])
def test_a_full_sandbox_is_not_joined(strategy: GroupingStrategy) -> None:
    full = {one.id: used(MATES_MAX, 0) for one in RUNNING}
    assert choose_sandbox(strategy, RUNNING, full) is None
    found = choose_sandbox(strategy, RUNNING, {**full, "middle": used(MATES_MAX - 1, 50)})
    assert found is not None
    assert found.id == "middle"


def test_an_empty_sandbox_was_used_when_it_was_made_and_has_the_fewest() -> None:
    occupancy = {"oldest": used(1, 30), "middle": used(1, 10)}
    for strategy in (GroupingStrategy.LEAST_RECENTLY_USED, GroupingStrategy.FEWEST_CONVERSATIONS):
        found = choose_sandbox(strategy, RUNNING, occupancy)
        assert found is not None
        assert found.id == "newest"
