"""Reaching others: what listens in a sandbox, and hosts that users name.

What listens in a sandbox is at a host and port, or on a unix socket of this machine.

A URL `http+unix://QUOTED-PATH/...` names a socket; for an HTTP client it is put as `http://` and a
host that stands for the socket, which `SandboxConnector` knows again.
Where a name leads is asked once for a connection, which goes to the addresses that were checked.
"""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler

from agentsvc.egress.addresses import BadHost, parse_host
from agentsvc.egress.policy import Mode, parse_policy, show

_SCHEME: Final = "http+unix"
_DOMAIN: Final = ".socket.invalid"
_KEY: Final = secrets.token_bytes(32)

type Found = Sequence[tuple[int, str]]
"""Families and addresses of a name."""
type Lookup = Callable[[str, int], Awaitable[Found]]
type Check = Callable[[str, int, Sequence[str]], None]
"""Raises OSError for a host and port whose addresses are not all allowed."""


class NotPublic(OSError):
    """An address in a network of ours, which a user may not have called."""


def as_http(url: str) -> str:
    """Return a URL as an HTTP client takes it; one that names no socket stays as it is."""
    parts = urlsplit(url)
    if parts.scheme != _SCHEME:
        return url
    path = unquote(parts.netloc)
    host = f"{path.encode().hex()}.{_seal(path)}{_DOMAIN}"
    return parts._replace(scheme="http", netloc=host).geturl()


def socket_of(host: str) -> str | None:
    """Return the socket that a host in a URL of `as_http` stands for, or None for any other host."""
    if not host.endswith(_DOMAIN):
        return None
    name, _, seal = host.removesuffix(_DOMAIN).partition(".")
    try:
        path = bytes.fromhex(name).decode()
    except ValueError:
        return None
    return path if hmac.compare_digest(seal.encode(), _seal(path).encode()) else None


def _seal(path: str) -> str:
    # Another server or a sandbox may name any host: none but ours stands for a socket.
    return hmac.new(_KEY, path.encode(), "sha256").hexdigest()[:32]


class SandboxConnector(aiohttp.TCPConnector):
    """Connects to hosts as usual, and to sockets where a host stands for one."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the name that the base class gave it
    ) -> ResponseHandler:
        path = socket_of(req.url.host or "")
        if path is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                loop = asyncio.get_running_loop()
                _, protocol = await loop.create_unix_connection(lambda: ResponseHandler(loop), path)
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise aiohttp.ServerTimeoutError(f"no connection to {path} in time") from exc
            raise UnixClientConnectorError(path, req.connection_key, exc) from exc
        return protocol


async def look_up(host: str, port: int) -> Found:
    """Return the addresses of a name as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), str(address[0])) for family, _, _, _, address in found]


class CheckedResolver(AbstractResolver):
    """Resolves a name once for a connection, which then goes to one of the addresses checked."""

    def __init__(self, lookup: Lookup, check: Check) -> None:
        self._lookup = lookup
        self._check = check

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name; raises what the check does if one is not allowed."""
        del family
        found = await self._lookup(host, port)
        self._check(host, port, [address for _, address in found])
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, address in found
        ]

    async def close(self) -> None:
        """Nothing is kept open."""


def check_public(known: Iterable[str], host: str, port: int, addresses: Sequence[str]) -> None:
    """Raise NotPublic unless a host is public at all of its addresses, or one of those known.

    Those are named as `allow_hosts` names them. A host that is an address has no others.
    """
    try:
        name = parse_host(host)
    except BadHost as exc:
        raise NotPublic(str(exc)) from exc
    place = [(str(name), port)]
    is_known = not parse_policy(Mode.ALLOWLIST, known).refuse_host(name, port)
    policy = parse_policy(Mode.NONE, needed=place if is_known else (), models=place)
    found = [ip_address(text.partition("%")[0]) for text in addresses]
    if not isinstance(name, str):
        found.append(name)
    if any(policy.refuse_address(name, port, address) for address in found):
        raise NotPublic(f"{show(name, port)} is not at a public address")
