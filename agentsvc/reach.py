"""Reaching what listens in a sandbox: at a host and port, or on a unix socket of this machine.

A URL `http+unix://QUOTED-PATH/...` names a socket; for an HTTP client it is put as `http://` and a
host that stands for the socket, which `SandboxConnector` knows again.
"""

import asyncio
import hmac
import secrets
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler

_SCHEME: Final = "http+unix"
_DOMAIN: Final = ".socket.invalid"
_KEY: Final = secrets.token_bytes(32)


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
