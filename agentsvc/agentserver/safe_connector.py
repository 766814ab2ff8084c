"""Connections to sandboxes, and to hosts that users name, which must not be private.

A server in a sandbox listens at a host and port, or at a Unix socket of this machine. A URL
`http+unix://QUOTED-PATH/...` names a socket, whose path is passed to the HTTP client beside the
URL, so that no host name can stand for a socket. A name is resolved once for each connection,
which is made to the addresses that were checked.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler

from agentsvc.plugin.egress import Address, BadHost, Mode, meant, parse_host, parse_policy, show

_SCHEME: Final = "http+unix"
_INSIDE: Final = "127.0.0.1"

type Found = Sequence[tuple[int, str]]
"""Address families and addresses of a name."""
type Lookup = Callable[[str, int], Awaitable[Found]]
type Confirm = Callable[[int], Awaitable[None]]
"""Raises an AgentsvcError unless the connection from a local port reaches the expected process; the
port is 0 for a socket without ports."""

_OWN_SECONDS: Final = 60.0
"""How long the addresses of the server's own names are cached."""

_LOOKUPS: Final = ThreadPoolExecutor(64, thread_name_prefix="dns")
"""A pool of its own, because users may choose names with slow DNS servers."""


type Peer = tuple[str | None, Confirm | None]
"""The target of a request's connections beside its URL: the path of a Unix socket, or None for the
host of the URL, and the callback that confirms them."""
PEER: Final[ContextVar[Peer]] = ContextVar("peer", default=(None, None))


class AddressNotAllowed(OSError):
    """The address of a host must not be called for users; the message is for the user."""


def split_socket(url: str) -> tuple[str, str | None]:
    """Return a URL for the HTTP client, and the path of its Unix socket or None."""
    parts = urlsplit(url)
    if parts.scheme != _SCHEME:
        return url, None
    return parts._replace(scheme="http", netloc=_INSIDE).geturl(), unquote(parts.netloc)


class SandboxConnector(aiohttp.TCPConnector):
    """A connector to the `PEER` of the current request."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the name that the base class gave it
    ) -> ResponseHandler:
        path, confirm = PEER.get()
        if path is None:
            protocol = await super()._create_connection(req, traces, timeout)
            await confirm_peer(protocol.transport, confirm)
            return protocol
        try:
            async with asyncio.timeout(timeout.sock_connect):
                loop = asyncio.get_running_loop()
                _, protocol = await loop.create_unix_connection(lambda: ResponseHandler(loop), path)
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise aiohttp.ServerTimeoutError(f"no connection to {path} in time") from exc
            raise UnixClientConnectorError(path, req.connection_key, exc) from exc
        return protocol


async def confirm_peer(transport: asyncio.BaseTransport | None, confirm: Confirm | None) -> None:
    """Confirm a new connection; close it before anything is sent if that raises."""
    if confirm is None or transport is None:
        return
    try:
        await confirm(transport.get_extra_info("sockname")[1])
    except BaseException:
        cast("asyncio.Transport", transport).abort()
        raise


async def look_up(host: str, port: int) -> Found:
    """Resolve a name with the system's resolver."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, ask)
    return [(int(family), str(address[0])) for family, _, _, _, address in found]


class SafeConnector:
    """The rule for requests that the server sends for users: to models, git hosts and webhooks.

    Allowed are public addresses of other machines. `listed` are hosts that the operator allows at
    any address, in the format of `allow_hosts`; `anywhere` allows all hosts. `own` are URLs of
    this server: hosts that are not listed are refused at their addresses, even if no local
    interface has these. `refusal` is the error message for users, with `{place}` for host and port.
    """

    def __init__(
        self,
        *,
        listed: Iterable[str] = (),
        anywhere: bool = False,
        own: Iterable[str] = (),
        refusal: str = "{place} is not at a public address",
        lookup: Lookup | None = None,
    ) -> None:
        self._listed = parse_policy(Mode.ALLOWLIST, listed)
        self._anywhere = anywhere
        self._own = tuple(filter(None, map(_host_of, own)))
        self._refusal = refusal
        self._lookup = lookup or look_up
        self._own_found: frozenset[Address] = frozenset()
        self._own_until = 0.0

    async def resolve(self, host: str, port: int) -> Found:
        """Return the addresses of a host; raises AddressNotAllowed unless all of them are allowed.

        Raises OSError if the name cannot be resolved.
        """
        address = _address_of(host)
        found = [(_family(address), str(address))] if address else await self._lookup(host, port)
        if not found:
            raise OSError("the name has no address")
        if not self._anywhere:
            self._check(host, port, [text for _, text in found], await self._own_addresses())
        return found

    def check_literal(self, host: str, port: int) -> None:
        """Raise AddressNotAllowed for a host that is a refused address, in any notation."""
        if not self._anywhere and not isinstance(self._parse(host), str):
            self._check(host, port, (), self._own_found)

    def session(
        self, *, limit: int = 100, keepalive_seconds: float = 15, decompresses: bool = False
    ) -> aiohttp.ClientSession:
        """Return an HTTP session that applies the rule to all requests, including redirects.

        It stores no cookies, ignores proxy variables, and requests uncompressed responses;
        compressed ones are passed on unchanged, unless it `decompresses`. `refusal_in` finds the
        refusal in the error of a request.
        """
        return aiohttp.ClientSession(
            connector=_Connector(
                self,
                resolver=_Resolver(self),
                use_dns_cache=False,
                limit=limit,
                keepalive_timeout=keepalive_seconds,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=decompresses,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        )

    def _check(
        self, host: str, port: int, addresses: Sequence[str], own: frozenset[Address]
    ) -> None:
        name = self._parse(host)
        place = [(str(name), port)]
        is_listed = not self._listed.refuse_host(name, port)
        policy = parse_policy(Mode.NONE, needed=place if is_listed else (), models=place)
        found = [ip_address(text.partition("%")[0]) for text in addresses]
        if not isinstance(name, str):
            found.append(name)
        for address in found:
            is_server = not is_listed and meant(address) in own
            if is_server or policy.refuse_address(name, port, address):
                raise AddressNotAllowed(self._refusal.format(place=show(name, port)))

    def _parse(self, host: str) -> str | Address:
        try:
            return parse_host(host)
        except BadHost as exc:
            raise AddressNotAllowed(f"the host is not valid: {exc}") from exc

    async def _own_addresses(self) -> frozenset[Address]:
        """Return the addresses of the server's own URLs, cached for a minute."""
        now = asyncio.get_running_loop().time()
        if self._own and now >= self._own_until:
            found: set[Address] = set()
            for host in self._own:
                try:
                    known = _address_of(host)
                    texts = [str(known)] if known else [at for _, at in await self._lookup(host, 0)]
                    found.update(meant(ip_address(text.partition("%")[0])) for text in texts)
                except (OSError, ValueError):
                    # Keep the former addresses while the name cannot be resolved.
                    found |= self._own_found
            self._own_found, self._own_until = frozenset(found), now + _OWN_SECONDS
        return self._own_found


def refusal_in(exc: BaseException) -> AddressNotAllowed | None:
    """Return the AddressNotAllowed that caused an error of a request, or None."""
    inner = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return inner if isinstance(inner, AddressNotAllowed) else None


class _Resolver(AbstractResolver):
    """A resolver that returns only allowed addresses, to which the connection is then made."""

    def __init__(self, rule: SafeConnector) -> None:
        self._rule = rule

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a name."""
        del family
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, address in await self._rule.resolve(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class _Connector(aiohttp.TCPConnector):
    """A connector that checks hosts which are addresses, because aiohttp does not resolve them."""

    def __init__(self, rule: SafeConnector, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the name that the base class gave it
    ) -> ResponseHandler:
        host = req.url.raw_host or ""
        if _address_of(host):
            try:
                await self._rule.resolve(host, req.url.port or 0)
            except AddressNotAllowed as exc:
                raise aiohttp.ClientConnectorError(req.connection_key, exc) from exc
        return await super()._create_connection(req, traces, timeout)


def _address_of(host: str) -> Address | None:
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _family(address: Address) -> int:
    return int(socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
