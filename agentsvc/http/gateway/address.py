"""Addresses of sandbox ports: TCP, TLS or Unix socket."""

import asyncio
import ssl
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from agentsvc.agentserver import Confirm, confirm_peer
from agentsvc.base import PortUnavailable

_SOCKET_SCHEMES: Final = frozenset({"unix", "http+unix"})
_INSIDE: Final = "127.0.0.1"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, and what a request there says of it."""

    host: str
    port: int
    is_secure: bool
    socket_path: str
    """The socket file to connect to; empty where it is the host."""
    authority: str
    """The value of the Host header."""
    base: str
    """What stands before every path, without a slash at the end."""
    owner: str = ""
    """The sandbox whose port it is: what another one's connections lead to is not for it."""

    @property
    def origin(self) -> str:
        """How a URL of this server begins, with the port even where it is the usual one."""
        scheme = "https" if self.is_secure else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


@lru_cache(maxsize=4096)
def address_of(url: str, inner_port: int = 80) -> Address:
    """Return where a URL leads: `http`, `https`, or a socket file; raises PortUnavailable.

    The latter is `http+unix://QUOTED-PATH/...` or `unix:PATH`. What listens on one is told the
    address that it has inside the sandbox.
    """
    try:
        parts = urlsplit(url)
        number = parts.port if parts.scheme not in _SOCKET_SCHEMES else None
    except ValueError as exc:
        # Another server may say anything of where its sandboxes are.
        raise PortUnavailable("This port of the sandbox has no address") from exc
    if parts.scheme in _SOCKET_SCHEMES:
        return Address(
            host=_INSIDE,
            port=inner_port,
            is_secure=False,
            socket_path=unquote(parts.netloc or parts.path),
            authority=f"{_INSIDE}:{inner_port}",
            base=parts.path.rstrip("/") if parts.netloc else "",
        )
    is_secure = parts.scheme == "https"
    usual = 443 if is_secure else 80
    host, port = parts.hostname or "", number or usual
    shown = f"[{host}]" if ":" in host else host
    return Address(
        host=host,
        port=port,
        is_secure=is_secure,
        socket_path="",
        authority=shown if port == usual else f"{shown}:{port}",
        base=parts.path.rstrip("/"),
    )


async def connect[P: asyncio.BaseProtocol](
    address: Address, make: Callable[[], P], *, confirm: Confirm | None, time_limit: float
) -> tuple[asyncio.Transport, P]:
    """Connect a protocol; raises OSError, TimeoutError, or ValueError for a host that is none.

    Raises what `confirm` does, too.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(time_limit):
        if address.socket_path:
            return await loop.create_unix_connection(make, address.socket_path)
        secure = _secure() if address.is_secure else None
        made = await loop.create_connection(make, address.host, address.port, ssl=secure)
    await confirm_peer(made[0], confirm)
    return made


@cache
def _secure() -> ssl.SSLContext:
    return ssl.create_default_context()
