"""How many connections each address has, so that none takes those of the others. Pure."""

import ipaddress
from collections.abc import Iterable
from typing import Final

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (
    ipaddress.ip_network("127.0.0.0/8"),
    ipaddress.ip_network("::1/128"),
)
"""Where this machine's own sandboxes, proxies and commands come from."""

_HOME_BITS: Final = 64
"""What one caller usually has of version 6."""


class Crowd:
    """So many connections of each address at a time; 0 is no limit.

    `uncounted` are the networks of proxies, behind which there are many callers.
    """

    def __init__(self, most: int, uncounted: Iterable[Network] = LOOPBACK) -> None:
        self._most = most
        self._uncounted = tuple(uncounted)
        self._numbers: dict[str, int] = {}

    def enter(self, address: str) -> str | None:
        """Return what to leave with, None if there are too many of this address."""
        caller = self._caller(address)
        number = self._numbers.get(caller, 0)
        if caller and number >= self._most:
            return None
        if caller:
            self._numbers[caller] = number + 1
        return caller

    def leave(self, caller: str) -> None:
        """Forget a connection that entered."""
        number = self._numbers.pop(caller, 0)
        if number > 1:
            self._numbers[caller] = number - 1

    def _caller(self, address: str) -> str:
        """Return who has an address, or an empty text where nothing is counted."""
        if not self._most:
            return ""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            # A socket in the file system has none.
            return ""
        found = getattr(found, "ipv4_mapped", None) or found
        if any(found in network for network in self._uncounted):
            return ""
        if found.version == 4:  # noqa: PLR2004  # a version of the protocol
            return str(found)
        return str(ipaddress.ip_network((int(found), _HOME_BITS), strict=False))
