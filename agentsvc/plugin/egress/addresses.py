"""Normalizes host names and addresses, and classifies addresses.

Texts that are not one host's name or address raise `BadHost`. Does not use the network.
"""

import contextlib
import ipaddress
import re
import socket
import unicodedata
import zlib
from typing import Final

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORT_MAX: Final = 65535

SANDBOX_SOURCES: Final = ipaddress.IPv4Network("127.77.0.0/16")
"""Loopback source addresses with which proxies connect to the server, one for each sandbox."""

_NAME_MAX = 253
_TEXT_MAX = 4 * _NAME_MAX
"""NFKC normalization composes at most four characters into one."""
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_DOTS = re.compile("[\N{IDEOGRAPHIC FULL STOP}\N{HALFWIDTH IDEOGRAPHIC FULL STOP}]")
_NAT64: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/96")))
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_COUNT_OF_IPV4: Final = 2**32
# Not `ipaddress.is_global`, which differs between versions of Python (CVE-2024-4032).
_SPECIAL_IPV4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        ),
    )
)
# The first includes Teredo, ORCHID and benchmarking; the others are documentation and 6to4.
_SPECIAL_IPV6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_ANY_PORT: Final = 9
_FOREIGN: Final = {4: ipaddress.ip_address("192.0.2.1"), 6: ipaddress.ip_address("2001:db8::1")}
"""Addresses reserved for documentation, which no machine has."""
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        # AWS, Google Cloud, Alibaba Cloud and Azure, in addition to link-local addresses.
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"),
    )
)


class BadHost(ValueError):
    """An invalid host name or address; the message says why."""


def parse_host(text: str) -> str | Address:
    """Parse an address, or a name, which is returned in lower-case ASCII without a trailing dot.

    All spellings of IPv4 addresses that the C library accepts are addresses: fewer parts, octal,
    hexadecimal. So are IPv6 addresses in brackets. Addresses with a zone are rejected.
    """
    if text.startswith("[") and text.endswith("]"):
        return _parse_ipv6(text[1:-1])
    if ":" in text:
        return _parse_ipv6(text)
    name = _to_ascii(text)
    last = name.rpartition(".")[2]
    if _NUMBER.fullmatch(last):
        return _parse_ipv4(name)
    if len(name) > _NAME_MAX or not all(_LABEL.fullmatch(part) for part in name.split(".")):
        raise BadHost("it is not a host's name")
    return name


def split_port(text: str) -> tuple[str, int | None]:
    """Split `host:port`, `[address]:port` or either without a port."""
    head, colon, tail = text.rpartition(":")
    if not colon or tail.endswith("]") or (":" in head and not head.endswith("]")):
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", tail) or not 0 < int(tail) <= PORT_MAX:
        raise BadHost("its port is not a number from 1 to 65535")
    return head, int(tail)


def meant(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address only wraps, otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and (address in _COMPATIBLE or any(address in network for network in _NAT64)):
        inner = ipaddress.IPv4Address(int(address) % _COUNT_OF_IPV4)
    if inner is None or int(address) <= 1:
        return address
    return inner


def source_of(sandbox_id: str) -> str:
    """Return the loopback source address that identifies a sandbox's connections to the server."""
    return str(SANDBOX_SOURCES[zlib.crc32(sandbox_id.encode()) % SANDBOX_SOURCES.num_addresses])


def is_public(address: Address) -> bool:
    """Return whether an address is public: not private, local or special."""
    inner = meant(address)
    if inner in _METADATA:
        return False
    if isinstance(inner, ipaddress.IPv4Address):
        return not any(inner in network for network in _SPECIAL_IPV4)
    if inner not in _UNICAST or any(inner in network for network in _SPECIAL_IPV6):
        return False
    # An ISATAP address ends with the IPv4 address that packets are sent to.
    carried = ipaddress.IPv4Address(int(inner) % _COUNT_OF_IPV4)
    return int(inner) // _COUNT_OF_IPV4 % _COUNT_OF_IPV4 not in _ISATAP or is_public(carried)


def is_outside(address: Address) -> bool:
    """Return whether an address is public and not of this machine: one that users may have called."""
    return is_public(address) and not is_own(meant(address))


def is_metadata_service(address: Address) -> bool:
    """Return whether an address is link-local, or that of a cloud's metadata service."""
    inner = meant(address)
    return inner.is_link_local or inner in _METADATA


def is_own(address: Address) -> bool:
    """Return whether an address belongs to an interface of this machine."""
    if address.is_multicast or not _can_bind(address):
        return False
    # A machine may be configured to bind any address. Connecting UDP sends nothing.
    with contextlib.suppress(OSError), _socket_for(address) as trial:
        trial.setblocking(False)
        trial.connect((str(address), _ANY_PORT))
        source = ipaddress.ip_address(trial.getsockname()[0])
        return source == address or not _can_bind(_FOREIGN[address.version])
    return False  # a broadcast address


def _can_bind(address: Address) -> bool:
    with contextlib.suppress(OSError), _socket_for(address) as trial:
        trial.bind((str(address), 0))
        return True
    return False


def _socket_for(address: Address) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004  # IPv4
    return socket.socket(family, socket.SOCK_DGRAM)


def _to_ascii(text: str) -> str:
    # Both steps are slow, and their result can be many times as long as the text.
    if len(text) > _TEXT_MAX:
        raise BadHost("it is not a host's name")
    name = _DOTS.sub(".", unicodedata.normalize("NFKC", text)).lower().removesuffix(".")
    if not name.isascii():
        if len(name) > _NAME_MAX:
            raise BadHost("it is not a host's name")
        try:
            name = name.encode("idna").decode().lower()
        except UnicodeError as exc:
            raise BadHost("it is not a host's name") from exc
    if not name:
        raise BadHost("it is empty")
    return name


def _parse_ipv4(name: str) -> Address:
    parts = name.split(".")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise BadHost("it ends with a number and is not an IPv4 address")
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError as exc:
        raise BadHost("it is not an IPv4 address") from exc


def _parse_ipv6(text: str) -> Address:
    if "%" in text:
        raise BadHost("an address with a zone is not supported")
    try:
        return ipaddress.IPv6Address(text)
    except ValueError as exc:
        raise BadHost("it is not an IPv6 address") from exc
