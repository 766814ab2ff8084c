"""How many connections there may be: in all, of each origin without a key, of each sandbox."""

import ipaddress

import pytest

from agentsvc.base.errors import CapacityExceeded, TooManyRequests
from agentsvc.http.server.connection_limit import ConnectionLimit, CountedConnection
from agentsvc.plugin.egress import source_of

FAR = "192.0.2.1"
ALSO_FAR = "192.0.2.2"
HERE = "127.0.0.1"
PROXY = "10.0.0.1"


class Watched:
    """A limit, and the names of the connections that had to make room."""

    def __init__(self, *, most: int = 100, of_origin: int = 2, of_sandbox: int = 2) -> None:
        self.limit = ConnectionLimit(
            most=most,
            max_of_origin=of_origin,
            max_of_sandbox=of_sandbox,
            proxies=(ipaddress.ip_network(PROXY),),
        )
        self.evicted: list[str] = []

    def enter(self, address: str, name: str = "") -> CountedConnection:
        return self.limit.enter(address, lambda: self.evicted.append(name))


def admits(watched: Watched, address: str) -> bool:
    """Return whether one more connection is taken from an address, which then leaves again."""
    try:
        made = watched.limit.enter(address, lambda: None)
    except TooManyRequests:
        return False
    watched.limit.leave(made)
    return True


def test_each_address_has_so_many_without_a_key() -> None:
    watched = Watched()
    first, _ = watched.enter(FAR), watched.enter(FAR)
    assert [admits(watched, FAR), admits(watched, ALSO_FAR)] == [False, True]
    watched.limit.leave(first)
    watched.limit.leave(first)
    assert admits(watched, FAR)
    assert len(watched.limit) == 1


def test_one_with_a_key_takes_no_place_of_its_address() -> None:
    watched = Watched()
    for _ in range(5):
        assert watched.limit.show_key(watched.enter(FAR))
    assert admits(watched, FAR)
    assert watched.evicted == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::2:3"),
        ("::ffff:192.0.2.1", FAR),
        ("fe80::1%eth0", "fe80::2%eth1"),
        (source_of("some"), source_of("some")),
    ],
)
def test_addresses_of_one_caller_count_together(one: str, other: str) -> None:
    watched = Watched(of_origin=1)
    watched.enter(one)
    assert not admits(watched, other)


@pytest.mark.parametrize("address", [HERE, "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_of_this_machine_the_oldest_makes_room_since_many_share_its_address(address: str) -> None:
    watched = Watched()
    for name in ("a", "b", "c"):
        watched.enter(address, name)
    assert watched.evicted == ["a"]
    watched.enter(source_of("a sandbox"), "of a sandbox")
    assert watched.evicted == ["a"]


def test_who_asks_something_is_the_newest() -> None:
    watched = Watched()
    first, _ = watched.enter(HERE, "a"), watched.enter(HERE, "b")
    watched.limit.begin_request(first)
    watched.enter(HERE, "c")
    assert watched.evicted == ["b"]


def test_half_of_the_room_is_kept_for_those_with_a_key() -> None:
    watched = Watched(most=8, of_origin=0)
    for number in range(6):
        watched.enter(f"192.0.2.{number}", str(number))
    assert watched.evicted == ["0", "1"]
    for number in range(8):
        watched.limit.show_key(watched.enter(FAR, "user"), user_id=str(number))
    assert watched.evicted == ["0", "1", "2", "3", "4", "5"]
    with pytest.raises(CapacityExceeded):
        watched.limit.enter(FAR, lambda: None)


def test_a_client_that_a_proxy_names_is_counted_for_itself() -> None:
    watched = Watched()
    named = [watched.enter(PROXY, str(number)) for number in range(4)]
    for one in named:
        watched.limit.begin_request(one, FAR)
    assert watched.evicted == ["0", "1"]
    other = watched.enter(PROXY)
    watched.limit.begin_request(other, ALSO_FAR)
    assert watched.limit.show_key(other)
    # What one client has shown is not for the next one on the same connection.
    watched.limit.begin_request(other, FAR)
    assert watched.evicted == ["0", "1", "2"]


def test_a_sandbox_has_so_many_with_its_keys_and_leaves_room_for_users() -> None:
    watched = Watched(most=8)
    first = watched.enter(FAR)
    assert watched.limit.show_key(first, sandbox_id="one")
    assert watched.limit.show_key(first, sandbox_id="one")
    assert watched.limit.show_key(watched.enter(FAR), sandbox_id="one")
    assert not watched.limit.show_key(watched.enter(FAR), sandbox_id="one")
    watched.limit.leave(first)
    assert watched.limit.show_key(watched.enter(ALSO_FAR), sandbox_id="one")
    shown = [watched.limit.show_key(watched.enter("::1"), sandbox_id=f"no. {i}") for i in range(6)]
    assert shown == [True] * 4 + [False] * 2
    assert watched.limit.show_key(watched.enter("::1"))


def test_a_user_leaves_room_for_others() -> None:
    watched = Watched(most=8, of_origin=0)
    held = watched.enter(FAR)
    assert [watched.limit.show_key(held, user_id="one") for _ in range(2)] == [True, True]
    shown = [watched.limit.show_key(watched.enter(FAR), user_id="one") for _ in range(6)]
    assert shown == [True] * 5 + [False]
    assert watched.limit.show_key(watched.enter(FAR), user_id="other")
    watched.limit.leave(held)
    assert watched.limit.show_key(watched.enter(FAR), user_id="one")


def test_a_sandbox_is_counted_by_its_address_where_all_of_loopback_are_proxies() -> None:
    limit = ConnectionLimit(
        most=100, max_of_origin=1, proxies=(ipaddress.ip_network("127.0.0.0/8"),)
    )
    limit.enter(source_of("some sandbox"), lambda: None)
    limit.enter(HERE, lambda: None)
    with pytest.raises(TooManyRequests):
        limit.enter(source_of("some sandbox"), lambda: None)


@pytest.mark.parametrize("address", ["", "/run/x", PROXY])
def test_who_has_no_address_of_its_own_is_not_counted_by_it(address: str) -> None:
    watched = Watched(of_origin=1)
    for _ in range(3):
        watched.enter(address if address == PROXY else "")
    assert watched.evicted == []
    assert admits(watched, address)


def test_without_a_limit_an_address_has_as_many_as_there_may_be() -> None:
    watched = Watched(of_origin=0)
    for _ in range(9):
        watched.enter(FAR)
    assert admits(watched, FAR)
