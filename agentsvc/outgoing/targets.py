"""Where deliveries may go: which URLs a user may register, and which addresses are connected to."""

import ipaddress
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from agentsvc.errors import InvalidRequest

LONGEST_URL: Final = 2048

_URL_LOC: Final = ("body", "url")
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class TargetRefused(OSError):
    """An address that nothing is delivered to."""


def check_url(url: str, *, allows_private: bool, loc: Sequence[str | int] = _URL_LOC) -> str:
    """Return a URL that may be registered; raises InvalidRequest for any other.

    Of a host that is a name only the connection will tell where it leads.
    """
    problem = _problem(url, allows_private=allows_private)
    if problem:
        raise InvalidRequest(problem, loc=loc)
    return url


def check_addresses(addresses: Sequence[str], *, allows_private: bool) -> None:
    """Raise TargetRefused unless a name leads to public addresses only, or to any if allowed."""
    if not addresses:
        raise TargetRefused("the name has no address")
    if not allows_private and not all(map(is_public, addresses)):
        raise TargetRefused("the name leads to an address that is not public")


def is_public(address: str) -> bool:
    """Tell whether an address is one of the internet, also where it stands for another one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = _embedded(found)
        if inner is not None:
            found = inner
        elif found.is_site_local:
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to by translation, if it does."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _problem(url: str, *, allows_private: bool) -> str:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return f"Input should be a URL of at most {LONGEST_URL} printable ASCII characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "Input should be a URL"
    if parts.scheme not in ("http", "https") or not host or "\\" in url or port == 0:
        return "Input should be a URL that begins with http:// or https:// and a host"
    if parts.username is not None or parts.password is not None:
        return "A URL with a user name or a password is not taken"
    return _host_problem(parts, host, allows_private=allows_private)


def _host_problem(parts: SplitResult, host: str, *, allows_private: bool) -> str:
    if parts.fragment:
        return "A URL with a fragment is not taken"
    if not _HOST.fullmatch(host):
        return "The host should be a name in ASCII or an address"
    if allows_private:
        return ""
    if _looks_like_address(host) and not is_public(host):
        return "The host should be a public address"
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        return "The host should be a public address"
    return ""


def _looks_like_address(host: str) -> bool:
    """Whether resolvers take a host for an address, in whichever notation: `127.1`, `0x7f.1`."""
    last = host.rstrip(".").rpartition(".")[2]
    return ":" in host or _NUMBER.fullmatch(last) is not None
