"""HTTP requests to the agent server inside a sandbox: headers, timeouts, errors.

Every request has a time limit, and returns a value or raises one of four errors: AgentUnavailable
(no response, or temporarily unable), AgentRefused (another error response), NotFound, Conflict.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
import yarl

from agentsvc.agentserver.responses import to_error
from agentsvc.agentserver.safe_connector import PEER, Confirm, Peer, split_socket
from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    BackendBroken,
    BackendUnavailable,
    BodyTooLarge,
    PortUnavailable,
    Secret,
)

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

_PART_BYTES: Final = 256 * 1024
_HEARTBEAT_SECONDS: Final = 30.0

_PEER_ERRORS: Final = (BackendBroken, BackendUnavailable, PortUnavailable)

_ENCODER = msgspec.json.Encoder()


class AgentCalls:
    """Requests to one agent server, with its session key. Stateless."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        key: Secret,
        read_seconds: float,
        change_seconds: float,
        *,
        confirm: Confirm | None = None,
    ) -> None:
        reached, socket_path = split_socket(url)
        self.url = reached.rstrip("/")
        self._peer: Peer = (socket_path, confirm)
        self._session = session
        self._key = key
        self._read_seconds = read_seconds
        self._change_seconds = change_seconds

    async def _change(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        hide: Sequence[Secret] = (),
        time_limit: float | None = None,
    ) -> None:
        limit = time_limit or self._change_seconds
        await self._call(method, path, json=json, hide=hide, time_limit=limit)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | aiohttp.FormData | None = None,
        hide: Sequence[Secret] = (),
        headers: Mapping[str, str] | None = None,
        explain: Callable[[int, bytes, str, Sequence[Secret]], AgentsvcError] = to_error,
        time_limit: float | None = None,
        write: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> bytes:
        """Send a request; return the body, or pass it in chunks to `write`, which may raise."""
        limit = time_limit or self._read_seconds
        headers = {"X-Session-API-Key": self._key.reveal(), **(headers or {})}
        if json is not None:
            data = _ENCODER.encode(json)
        if isinstance(data, bytes):
            headers["Content-Type"] = "application/json"
        where = f"{method} {path.partition('?')[0]}"
        PEER.set(self._peer)
        with _converting_errors(where, limit):
            async with (
                asyncio.timeout(limit),
                self._session.request(
                    method,
                    yarl.URL(self.url + path, encoded=True),
                    headers=headers,
                    data=data,
                    # A sandbox must not redirect the request, which has its key, elsewhere.
                    allow_redirects=False,
                ) as response,
            ):
                if write is not None and response.status < HTTPStatus.MULTIPLE_CHOICES:
                    async for part in response.content.iter_chunked(_PART_BYTES):
                        await write(part)
                body = await _read_bounded(response)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise explain(response.status, body, where, (self._key, *hide))
        return body

    async def _listen(self, path: str, *, gather_seconds: float) -> AsyncIterator[list[bytes]]:
        """Yield the text messages of a WebSocket, batched over `gather_seconds`."""
        headers = {"X-Session-API-Key": self._key.reveal()}
        where = f"GET {path}"
        PEER.set(self._peer)
        with _converting_errors(where):
            async with self._session.ws_connect(
                yarl.URL(self.url + path, encoded=True),
                headers=headers,
                heartbeat=_HEARTBEAT_SECONDS,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            ) as socket:
                while batch := await _gather(socket, gather_seconds):
                    yield batch


@contextlib.contextmanager
def _converting_errors(where: str, limit: float | None = None) -> Iterator[None]:
    """Convert connection errors and timeouts inside the context to AgentUnavailable."""
    try:
        yield
    except _PEER_ERRORS as exc:
        raise AgentUnavailable(exc.message, detail=f"{where}: {exc.detail}") from exc
    except (aiohttp.ClientError, OSError, ValueError, BodyTooLarge) as exc:
        if limit is not None and isinstance(exc, TimeoutError):
            message = f"The agent server did not answer within {limit:g} seconds"
            raise AgentUnavailable(message, detail=where) from exc
        raise AgentUnavailable(
            "The agent server does not answer", detail=f"{where}: {type(exc).__name__}: {exc}"
        ) from exc


async def _gather(socket: aiohttp.ClientWebSocketResponse, gather_seconds: float) -> list[bytes]:
    """Return the next batch of text messages; empty when the connection is closed."""
    first = await socket.receive()
    if first.type is not aiohttp.WSMsgType.TEXT:
        return []
    batch = [first.data.encode()]
    size = len(batch[0])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(gather_seconds):
            while size < _PART_BYTES:
                more = await socket.receive()
                if more.type is not aiohttp.WSMsgType.TEXT:
                    break
                batch.append(more.data.encode())
                size += len(batch[-1])
    return batch


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            response.close()
            raise BodyTooLarge(f"response of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)
