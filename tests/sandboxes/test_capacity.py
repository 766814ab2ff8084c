"""What fits where, whose turn it is, and who makes room."""

from datetime import timedelta

import pytest

from agentsvc.base.values import now
from agentsvc.sandboxes.admission.capacity import (
    AdmittedSandbox,
    CapacityLimits,
    Load,
    ServerLimits,
    admit,
    fits,
    in_turn,
    roomiest,
    sandboxes_to_pause,
)

BEGIN = now()
ONE = Load(sandboxes=1)


def held(
    sandbox_id: str, user_id: str = "ann", *, at: int = 0, backend: str = "b", memory: int = 0
) -> AdmittedSandbox:
    return AdmittedSandbox(
        id=sandbox_id,
        user_id=user_id,
        backend=backend,
        load=Load(sandboxes=1, memory_bytes=memory),
        since=BEGIN + timedelta(seconds=at),
    )


def ids(found: list[AdmittedSandbox]) -> list[str]:
    return [one.id for one in found]


@pytest.mark.parametrize(
    ("room", "load", "is_room"),
    [
        (CapacityLimits(), Load(sandboxes=1000, memory_bytes=10**12), True),
        (CapacityLimits(sandboxes=2), Load(sandboxes=1), True),
        (CapacityLimits(sandboxes=2), Load(sandboxes=2), False),
        (CapacityLimits(memory_bytes=10), Load(sandboxes=5, memory_bytes=5), True),
        (CapacityLimits(memory_bytes=10), Load(memory_bytes=6), False),
        (CapacityLimits(sandboxes=9, memory_bytes=10), Load(sandboxes=1, memory_bytes=6), False),
    ],
)
def test_what_is_over_no_limit_fits(room: CapacityLimits, load: Load, is_room: bool) -> None:
    assert fits(room, load, Load(sandboxes=1, memory_bytes=5)) is is_room


def test_the_place_with_most_room_comes_first_and_a_full_one_not_at_all() -> None:
    places = {
        "small": (CapacityLimits(sandboxes=2), Load(sandboxes=1)),
        "full": (CapacityLimits(sandboxes=2), Load(sandboxes=2)),
        "big": (CapacityLimits(sandboxes=9), Load(sandboxes=3)),
        "busy": (CapacityLimits(), Load(sandboxes=50)),
        "endless": (CapacityLimits(), Load(sandboxes=5)),
        "narrow": (CapacityLimits(sandboxes=9, memory_bytes=5), Load(sandboxes=3)),
    }
    assert roomiest(places, ONE) == ["endless", "busy", "big", "narrow", "small"]


def test_each_limit_is_named_when_it_is_in_the_way() -> None:
    limits = ServerLimits(
        server=CapacityLimits(sandboxes=3),
        user=CapacityLimits(sandboxes=2),
        backends={"b": CapacityLimits(sandboxes=2)},
    )
    wanted = held("new")
    assert limits.blocks([held("1")], wanted) is None
    assert "your limit" in (limits.blocks([held("1"), held("2", backend="c")], wanted) or "")
    assert "`b`" in (limits.blocks([held("1", "bob"), held("2", "bob")], wanted) or "")
    others = [held(str(n), f"user {n}", backend="c") for n in range(3)]
    assert "server" in (limits.blocks(others, wanted) or "")


def test_what_is_larger_than_the_room_never_fits() -> None:
    limits = ServerLimits(backends={"b": CapacityLimits(memory_bytes=10)})
    assert limits.can_ever_hold(held("new", memory=10))
    assert not limits.can_ever_hold(held("new", memory=11))


def test_a_user_with_many_waiting_does_not_hold_up_another() -> None:
    waiting = [held("a1", at=1), held("a2", at=2), held("a3", at=3), held("b1", "bob", at=4)]
    assert ids(in_turn(waiting, [])) == ["a1", "b1", "a2", "a3"]
    assert ids(in_turn(waiting, [held("x", "bob"), held("y", "bob")])) == ["a1", "a2", "a3", "b1"]


def test_who_waits_gets_room_in_turn() -> None:
    limits = ServerLimits(backends={"b": CapacityLimits(sandboxes=3)})
    waiting = [held("a1", at=1), held("a2", at=2), held("b1", "bob", at=3)]
    assert ids(admit(limits, [held("x", "eve")], waiting)) == ["a1", "b1"]


def test_a_user_at_the_limit_holds_up_nobody_and_a_full_backend_no_other() -> None:
    limits = ServerLimits(
        user=CapacityLimits(sandboxes=1), backends={"b": CapacityLimits(sandboxes=2)}
    )
    running = [held("x", "ann"), held("y", "eve")]
    waiting = [
        held("a1", "ann", at=1),
        held("b1", "bob", at=2),
        held("c1", "cid", at=3, backend="c"),
    ]
    assert ids(admit(limits, running, waiting)) == ["c1"]
    assert ids(admit(limits, running[:1], waiting)) == ["b1", "c1"]


def test_one_that_needs_less_does_not_overtake() -> None:
    limits = ServerLimits(backends={"b": CapacityLimits(memory_bytes=10)})
    waiting = [held("large", "ann", at=1, memory=8), held("small", "bob", at=2, memory=2)]
    assert admit(limits, [held("x", "eve", memory=5)], waiting) == []


def test_those_idle_longest_make_room_where_the_limit_is() -> None:
    limits = ServerLimits(backends={"b": CapacityLimits(sandboxes=3)})
    idle = [held("new", at=9), held("old", at=1), held("elsewhere", at=0, backend="c")]
    running = [*idle, held("busy")]
    assert ids(sandboxes_to_pause(limits, running, idle, held("wanted"))) == ["old", "new"]


def test_others_make_room_only_while_they_have_more() -> None:
    limits = ServerLimits(backends={"b": CapacityLimits(sandboxes=3)})
    idle = [held("b1", "bob"), held("b2", "bob")]
    running = [*idle, held("a1", "ann")]
    assert ids(sandboxes_to_pause(limits, running, idle, held("wanted", "ann"))) == ["b1", "b2"]
    assert sandboxes_to_pause(limits, running, [held("a1", "ann")], held("wanted", "bob")) == []


def test_a_user_at_the_limit_makes_room_with_what_is_their_own() -> None:
    limits = ServerLimits(user=CapacityLimits(sandboxes=1))
    idle = [held("b1", "bob"), held("b2", "bob"), held("a1", "ann")]
    assert ids(sandboxes_to_pause(limits, idle, idle, held("wanted", "ann"))) == ["a1"]


def test_where_the_server_is_full_any_may_make_room() -> None:
    limits = ServerLimits(server=CapacityLimits(sandboxes=2))
    idle = [held("a1", backend="c"), held("a2", backend="b", at=1)]
    assert ids(sandboxes_to_pause(limits, idle, idle, held("wanted"))) == ["a1", "a2"]
