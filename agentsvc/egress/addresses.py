"""Names and addresses of hosts, brought to one spelling, and what an address stands for.

What cannot be one host's name or address raises `BadHost`. Nothing here asks the network.
"""

import ipaddress
import re
import socket
import unicodedata
from typing import Final

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORT_MAX: Final = 65535

_NAME_MAX = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_DOTS = re.compile("[\N{IDEOGRAPHIC FULL STOP}\N{HALFWIDTH IDEOGRAPHIC FULL STOP}]")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_COUNT_OF_IPV4: Final = 2**32


class BadHost(ValueError):
    """A text that names no host; the message says why."""


def parse_host(text: str) -> str | Address:
    """Return an address, or a name in lower-case ASCII without a trailing dot.

    Every spelling of an IPv4 address that the C library takes is an address here: fewer parts,
    octal, hexadecimal. So is one of IPv6 in brackets. An address with a zone is refused.
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
    """Return the IPv4 address inside one of IPv6 that only carries it, else the address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and (address in _NAT64 or address in _COMPATIBLE):
        inner = ipaddress.IPv4Address(int(address) % _COUNT_OF_IPV4)
    if inner is None or int(address) <= 1:
        return address
    return inner


def is_public(address: Address) -> bool:
    """Say whether an address is one of the internet, and no private, local or special one."""
    inner = meant(address)
    if isinstance(inner, ipaddress.IPv6Address) and inner not in _UNICAST:
        return False
    return inner.is_global and not inner.is_multicast and not inner.is_reserved


def is_own(address: Address) -> bool:
    """Say whether an address is one of this machine's own interfaces."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004  # IPv4
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((str(address), 0))
    except OSError:
        return False
    return True


def _to_ascii(text: str) -> str:
    name = _DOTS.sub(".", unicodedata.normalize("NFKC", text)).lower().removesuffix(".")
    if not name.isascii():
        try:
            name = name.encode("idna").decode().lower()
        except UnicodeError as exc:
            raise BadHost("it is not a host's name") from exc
    if not name:
        raise BadHost("it names no host")
    return name


def _parse_ipv4(name: str) -> Address:
    parts = name.split(".")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise BadHost("it ends like an address and is none")
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError as exc:
        raise BadHost("it is not an IPv4 address") from exc


def _parse_ipv6(text: str) -> Address:
    if "%" in text:
        raise BadHost("an address with a zone is not reached from here")
    try:
        return ipaddress.IPv6Address(text)
    except ValueError as exc:
        raise BadHost("it is not an IPv6 address") from exc
