"""Connection limits: total, per address, per user, per sandbox. Pure.

An origin is the source of connections: an address, the loopback address of one sandbox, or the
client that a trusted proxy names. Connections without a valid key may use half of the limit. When
that is full, the one with the oldest last request is evicted, so that a flood of idle connections
does not lock out active clients.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from agentsvc.base import CapacityExceeded, TooManyRequests, monotonic
from agentsvc.plugin.egress import SANDBOX_SOURCES

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)
"""Networks of local proxies, commands, and sandboxes that use the host network."""

_CALLER_BITS: Final = 64
"""Prefix length of the IPv6 network that one caller usually has."""
_STALE_SECONDS: Final = 5.0
"""Seconds without a request after which a new connection of the origin may replace this one."""
type _Caller = tuple[str, str]
"""The ids of a sandbox and of a user, one of them empty."""

_NO_ADDRESS: Final = ""
_SHARED: Final = "this machine"


class CountedConnection:
    """A counted connection; `evict` closes it."""

    __slots__ = ("caller", "evict", "origin", "since")

    def __init__(self, evict: Callable[[], None]) -> None:
        self.evict = evict
        self.origin = _NO_ADDRESS
        self.caller: _Caller | None = None
        """The authenticated caller; None before a valid key."""
        self.since = 0.0
        """Time of its creation or of its last request."""


class ConnectionLimit:
    """Counts connections, and evicts or rejects them at the limits.

    `max_of_origin` limits the connections of an origin without a valid key; 0 is no limit. Many
    callers share a `shared` network, so at that limit a new connection from there always evicts the
    oldest one. Connections of `proxies` count for the client that the proxy names. A single user,
    like all sandboxes together, may use three quarters of the total limit.
    """

    def __init__(
        self,
        *,
        most: int,
        max_of_origin: int = 0,
        max_of_sandbox: int = 0,
        shared: Iterable[Network] = LOOPBACK,
        proxies: Iterable[Network] = (),
    ) -> None:
        self._max = most
        self._max_keyless = most // 2
        self._max_of_user = self._max_of_sandboxes = most - most // 4
        self._max_of_origin = max_of_origin
        self._max_of_sandbox = max_of_sandbox
        self._shared = tuple(shared)
        self._proxies = tuple(proxies)
        self._keyless: OrderedDict[CountedConnection, None] = OrderedDict()
        self._of_origin: dict[str, OrderedDict[CountedConnection, None]] = {}
        self._with_key: set[CountedConnection] = set()
        self._of_caller: Counter[_Caller] = Counter()
        self._of_sandboxes = 0

    def __len__(self) -> int:
        return len(self._keyless) + len(self._with_key)

    def enter(self, address: str, evict: Callable[[], None]) -> CountedConnection:
        """Count a new connection without a key.

        Raises TooManyRequests if its address has too many, and CapacityExceeded if the total limit
        is reached and no connection can be evicted.
        """
        origin = self._origin_of(address)
        if not self._has_room(origin):
            raise TooManyRequests("Too many connections come from this address")
        if len(self) >= self._max and not self._evict_first(self._keyless):
            raise CapacityExceeded("The server has too many connections now")
        made = CountedConnection(evict)
        self._add(made, origin)
        return made

    def begin_request(self, one: CountedConnection, client: str | None = None) -> None:
        """Record a request on a connection, from `client` if a trusted proxy names one.

        A proxied request resets the caller: the key of one client does not count for the next.
        """
        if client is not None:
            if self._remove(one):
                self._add(one, self._origin_of(client))
        elif one in self._keyless:
            one.since = monotonic()
            self._keyless.move_to_end(one)
            self._of_origin[one.origin].move_to_end(one)

    def show_key(self, one: CountedConnection, *, sandbox_id: str = "", user_id: str = "") -> bool:
        """Count a connection for an authenticated sandbox or user.

        Returns False if that caller has too many.
        """
        caller = (sandbox_id, user_id)
        if one.caller == caller:
            return True
        if not self._has_room_for(caller):
            return False
        if self._remove(one):
            one.caller = caller
            self._with_key.add(one)
            self._of_caller[caller] += 1
            self._of_sandboxes += bool(sandbox_id)
        return True

    def leave(self, one: CountedConnection) -> None:
        """Remove a connection; idempotent."""
        self._remove(one)

    def _has_room(self, origin: str) -> bool:
        mine = self._of_origin.get(origin)
        if mine is None or not self._is_limited(origin) or len(mine) < self._max_of_origin:
            return True
        # Rejecting a client that reconnects in a loop costs less than evicting for each attempt.
        return origin == _SHARED or monotonic() - next(iter(mine)).since >= _STALE_SECONDS

    def _has_room_for(self, caller: _Caller) -> bool:
        known = self._of_caller[caller]
        if not caller[0]:
            return known < self._max_of_user
        is_full = 0 < self._max_of_sandbox <= known
        return not is_full and self._of_sandboxes < self._max_of_sandboxes

    def _add(self, one: CountedConnection, origin: str) -> None:
        if len(self._keyless) >= self._max_keyless:
            self._evict_first(self._keyless)
        mine = self._of_origin.get(origin, OrderedDict())
        if self._is_limited(origin) and len(mine) >= self._max_of_origin:
            self._evict_first(mine)
        one.origin, one.since, one.caller = origin, monotonic(), None
        self._keyless[one] = None
        self._of_origin.setdefault(origin, OrderedDict())[one] = None

    def _evict_first(self, some: OrderedDict[CountedConnection, None]) -> bool:
        """Evict the connection with the oldest last request; returns False if there is none."""
        for one in some:
            self._remove(one)
            one.evict()
            return True
        return False

    def _remove(self, one: CountedConnection) -> bool:
        """Remove a connection; returns whether it was counted."""
        if one in self._keyless:
            del self._keyless[one]
            mine = self._of_origin[one.origin]
            del mine[one]
            if not mine:
                del self._of_origin[one.origin]
            return True
        if one not in self._with_key or one.caller is None:
            return False
        self._with_key.discard(one)
        self._of_sandboxes -= bool(one.caller[0])
        self._of_caller[one.caller] -= 1
        if self._of_caller[one.caller] <= 0:
            del self._of_caller[one.caller]
        return True

    def _is_limited(self, origin: str) -> bool:
        return bool(self._max_of_origin and origin)

    def _origin_of(self, address: str) -> str:
        """Return the origin of an address; an empty string for a proxy's own."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            # Unix sockets have no address, and a proxy may send a name.
            return address
        found = getattr(found, "ipv4_mapped", None) or found
        if found in SANDBOX_SOURCES:
            return str(found)
        if any(found in network for network in self._proxies):
            return _NO_ADDRESS
        if any(found in network for network in self._shared):
            return _SHARED
        return caller_of(str(found))


def caller_of(address: str) -> str:
    """Return the IPv4 address, or the /64 network of an IPv6 address, as the caller's identity."""
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    network = ipaddress.IPv6Network((int(found), _CALLER_BITS), strict=False)
    return str(found.ipv4_mapped or network)
