"""Addresses of sandbox ports: TCP, TLS or Unix socket."""

import asyncio
import ssl
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.agentserver import Confirm, confirm_peer, split_socket
from agentsvc.base import PortUnavailable


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a port, with the URL parts that requests and responses need."""

    host: str
    port: int
    is_secure: bool
    socket_path: str | None
    """The Unix socket to connect to; None for TCP."""
    origin: str
    """Scheme, host and port of its URLs; the port is included even if it is the default."""
    authority: str
    """Value of the Host header."""
    base: str
    """Path prefix of all requests, without a trailing slash."""
    owner: str = ""
    """Sandbox of the port; part of the pool key, so that sandboxes never share connections."""


@lru_cache(maxsize=4096)
def address_of(url: str, inner_port: int = 80) -> Address:
    """Parse the URL of a port; raises PortUnavailable.

    Schemes are `http`, `https` and `http+unix://QUOTED-PATH/...`. For a Unix socket, the Host
    header has `inner_port`, the port inside the sandbox.
    """
    try:
        reached, socket_path = split_socket(url)
        parts = urlsplit(reached)
        number = parts.port
    except ValueError as exc:
        # The URL may come from another server and be malformed.
        raise PortUnavailable("This port of the sandbox has no address") from exc
    is_secure = parts.scheme == "https"
    usual = 443 if is_secure else 80
    host = parts.hostname or ""
    port = number or (usual if socket_path is None else inner_port)
    shown = f"[{host}]" if ":" in host else host
    return Address(
        host=host,
        port=port,
        is_secure=is_secure,
        socket_path=socket_path,
        origin=f"{'https' if is_secure else 'http'}://{shown}:{port}",
        authority=shown if port == usual else f"{shown}:{port}",
        base=parts.path.rstrip("/"),
    )


async def connect[P: asyncio.BaseProtocol](
    address: Address, make: Callable[[], P], *, confirm: Confirm | None, time_limit: float
) -> tuple[asyncio.Transport, P]:
    """Connect a protocol; raises OSError, TimeoutError, or ValueError for an invalid host.

    `confirm` verifies the peer of a TCP connection; its exceptions propagate.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(time_limit):
        if address.socket_path is not None:
            return await loop.create_unix_connection(make, address.socket_path)
        secure = _secure() if address.is_secure else None
        made = await loop.create_connection(make, address.host, address.port, ssl=secure)
    await confirm_peer(made[0], confirm)
    return made


_secure: Final = cache(ssl.create_default_context)
