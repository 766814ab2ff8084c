"""How many connections an address may have."""

import pytest

from agentsvc.http.crowds import Crowd


def test_each_address_has_its_own_number() -> None:
    crowd = Crowd(2)
    first, second = (crowd.enter("192.0.2.1") for _ in range(2))
    assert crowd.enter("192.0.2.1") is None
    assert crowd.enter("192.0.2.2")
    assert first == second
    crowd.leave("192.0.2.1")
    assert crowd.enter("192.0.2.1")
    assert crowd.enter("192.0.2.1") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::2:3"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::2%eth1"),
    ],
)
def test_addresses_of_one_caller_count_together(one: str, other: str) -> None:
    crowd = Crowd(1)
    assert crowd.enter(one)
    assert crowd.enter(other) is None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "", "/run/x"]
)
def test_this_machine_and_who_has_no_address_are_not_counted(address: str) -> None:
    crowd = Crowd(1)
    assert [crowd.enter(address) for _ in range(3)] == ["", "", ""]
    crowd.leave("")


def test_nothing_is_counted_without_a_limit() -> None:
    assert {Crowd(0).enter("192.0.2.1") for _ in range(3)} == {""}
