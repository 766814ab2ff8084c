"""What counts as use, which rule holds, and what it wants."""

from datetime import timedelta

import pytest

from agentsvc.base.values import now
from agentsvc.plugin.backend import IdleRules, PausedAs, Phase, Spec
from agentsvc.sandboxes import Target
from agentsvc.sandboxes.admission.table import UnusedSandbox
from agentsvc.sandboxes.idle_culler import due
from agentsvc.sandboxes.last_used import ActivityTracker

LONG_AGO = now() - timedelta(days=1)
RULES = IdleRules(pause_after_seconds=60, delete_after_seconds=600)


def unused(
    phase: Phase | None, target: Target = Target.RUNNING, paused_as: PausedAs | None = None
) -> UnusedSandbox:
    return UnusedSandbox(
        id="s",
        user_id="u",
        backend="b",
        spec=Spec(id="s"),
        target=target,
        phase=phase,
        active_at=LONG_AGO,
        paused_as=paused_as,
    )


@pytest.mark.parametrize(
    ("phase", "target", "seconds", "wanted"),
    [
        (Phase.RUNNING, Target.RUNNING, 59, None),
        (Phase.RUNNING, Target.RUNNING, 60, Target.PAUSED),
        (Phase.RUNNING, Target.PAUSED, 60, None),
        (Phase.RUNNING, Target.RUNNING, 600, Target.DELETED),
        (Phase.PAUSED, Target.PAUSED, 599, None),
        (Phase.PAUSED, Target.PAUSED, 600, Target.DELETED),
        (Phase.FAILED, Target.RUNNING, 600, Target.DELETED),
        (Phase.STARTING, Target.RUNNING, 600, None),
        (None, Target.RUNNING, 600, None),
    ],
)
def test_a_rule_wants_what_it_says_once_its_time_has_come(
    phase: Phase | None, target: Target, seconds: float, wanted: Target | None
) -> None:
    assert due(RULES, unused(phase, target), timedelta(seconds=seconds)) is wanted


@pytest.mark.parametrize(
    ("phase", "target", "paused_as", "wanted"),
    [
        (Phase.RUNNING, Target.RUNNING, None, Target.STOPPED),
        (Phase.PAUSED, Target.PAUSED, PausedAs.FROZEN, Target.STOPPED),
        (Phase.PAUSED, Target.PAUSED, PausedAs.STOPPED, None),
        (Phase.PAUSED, Target.STOPPED, PausedAs.FROZEN, None),
        (Phase.PAUSED, Target.RUNNING, PausedAs.FROZEN, None),
        (Phase.FAILED, Target.RUNNING, None, None),
    ],
)
def test_what_keeps_memory_is_stopped_rather_than_paused(
    phase: Phase, target: Target, paused_as: PausedAs | None, wanted: Target | None
) -> None:
    rules = IdleRules(pause_after_seconds=60, stop_after_seconds=120, delete_after_seconds=600)
    assert due(rules, unused(phase, target, paused_as), timedelta(seconds=120)) is wanted


@pytest.mark.parametrize(
    ("phase", "paused_as", "reclaims", "wanted"),
    [
        (Phase.RUNNING, None, True, Target.RECLAIMED),
        (Phase.RUNNING, None, False, Target.RECLAIMED),
        (Phase.PAUSED, PausedAs.FROZEN, True, Target.RECLAIMED),
        (Phase.PAUSED, PausedAs.FROZEN, False, None),
        (Phase.PAUSED, PausedAs.RECLAIMED, True, None),
        (Phase.PAUSED, None, True, None),
    ],
)
def test_what_is_frozen_is_reclaimed_where_that_can_be(
    phase: Phase, paused_as: PausedAs | None, *, reclaims: bool, wanted: Target | None
) -> None:
    rules = IdleRules(pause_after_seconds=60, reclaim_after_seconds=120)
    target = Target.PAUSED if phase is Phase.PAUSED else Target.RUNNING
    seen = unused(phase, target, paused_as)
    assert due(rules, seen, timedelta(seconds=120), reclaims=reclaims) is wanted


@pytest.mark.parametrize(
    ("phase", "paused_as", "hibernates", "wanted"),
    [
        (Phase.RUNNING, None, False, Target.HIBERNATED),
        (Phase.PAUSED, PausedAs.FROZEN, True, Target.HIBERNATED),
        (Phase.PAUSED, PausedAs.FROZEN, False, Target.RECLAIMED),
        (Phase.PAUSED, PausedAs.RECLAIMED, True, Target.HIBERNATED),
        (Phase.PAUSED, PausedAs.RECLAIMED, False, None),
        (Phase.PAUSED, PausedAs.ON_DISK, True, None),
    ],
)
def test_what_has_memory_goes_to_disk_where_that_can_be_and_else_to_swap(
    phase: Phase, paused_as: PausedAs | None, *, hibernates: bool, wanted: Target | None
) -> None:
    rules = IdleRules(pause_after_seconds=60, hibernate_after_seconds=120)
    target = Target.PAUSED if phase is Phase.PAUSED else Target.RUNNING
    seen = unused(phase, target, paused_as)
    assert due(rules, seen, timedelta(seconds=120), hibernates=hibernates) is wanted


def test_a_rule_that_is_off_wants_nothing() -> None:
    never = IdleRules(pause_after_seconds=0, delete_after_seconds=None)
    assert due(never, unused(Phase.RUNNING), timedelta(days=999)) is None


def test_what_is_said_wins_over_what_is_said_more_generally() -> None:
    spec = IdleRules(pause_after_seconds=5)
    user = IdleRules(pause_after_seconds=0)
    assert user.over(spec).over(RULES) == IdleRules(pause_after_seconds=0, delete_after_seconds=600)
    assert IdleRules().over(spec).over(RULES).pause_after_seconds == 5


def test_use_that_was_taken_to_be_stored_still_counts() -> None:
    usage = ActivityTracker()
    assert usage.latest("s", LONG_AGO) == LONG_AGO
    usage.note("s")
    noted = usage.latest("s", LONG_AGO)
    assert noted > LONG_AGO
    assert usage.begin_flush() == {"s": noted}
    assert usage.latest("s", LONG_AGO) == noted
    assert usage.begin_flush() == {}
    assert usage.latest("s", LONG_AGO) == LONG_AGO


def test_what_could_not_be_stored_is_taken_again() -> None:
    usage = ActivityTracker()
    usage.note("s")
    taken = usage.begin_flush()
    usage.restore(taken)
    assert usage.begin_flush() == taken


def test_what_is_held_is_in_use_until_all_let_go() -> None:
    usage = ActivityTracker()
    with usage.hold("s"):
        with usage.hold("s"):
            pass
        usage.begin_flush()
        usage.begin_flush()
        assert usage.latest("s", LONG_AGO) > LONG_AGO
        assert list(usage.begin_flush()) == ["s"]
    let_go = usage.latest("s", LONG_AGO)
    assert usage.latest("s", LONG_AGO) == let_go
