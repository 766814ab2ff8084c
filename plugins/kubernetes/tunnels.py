"""Port forwarding to pods through the API server, for a server outside of the cluster.

Each port has a Unix socket in a directory that only this server's user may enter; each connection
to the socket is forwarded to the pod by its own WebSocket, and is closed with it.
"""

import asyncio
import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from agentsvc.base import AgentsvcError, BackendUnavailable

from . import names
from .api import Api

if TYPE_CHECKING:
    import aiohttp

_PATH_MAX: Final = 107
"""Maximum length in bytes of the path of a socket."""
_NAME_BYTES: Final = 24
_CHUNK: Final = 65536
_DATA: Final = 0
_TROUBLE: Final = 1
_PORT_BYTES: Final = 2


class Tunnels:
    """The sockets of one backend, created on first use."""

    def __init__(self, api: Api, state_dir: Path, instance_id: str) -> None:
        self._api = api
        self._directory = directory_for(state_dir, instance_id)
        self._servers: dict[Path, asyncio.Server] = {}
        self._opening = asyncio.Lock()

    async def url_of(self, namespace: str, sandbox_id: str, port: int) -> str:
        """Return the URL of a port; create its socket if it does not exist."""
        path = self._path_of(namespace, sandbox_id, port)
        async with self._opening:
            if path not in self._servers:
                await asyncio.to_thread(make_private, self._directory)
                await asyncio.to_thread(path.unlink, missing_ok=True)
                self._servers[path] = await asyncio.start_unix_server(
                    lambda reader, writer: self._serve(
                        reader, writer, namespace, names.main(sandbox_id), port
                    ),
                    str(path),
                )
        return f"http+unix://{quote(str(path), safe='')}"

    async def forget(self, namespace: str, sandbox_id: str) -> None:
        """Close and remove the sockets of a sandbox."""
        mark = _hash(f"{namespace}/{sandbox_id}")
        for path in [path for path in self._servers if path.stem == mark]:
            self._servers.pop(path).close()
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def close(self) -> None:
        """Remove all sockets and their directory; open connections end with the API session."""
        servers, self._servers = self._servers, {}
        for path, server in servers.items():
            server.close()
            await asyncio.to_thread(path.unlink, missing_ok=True)
        if servers:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._directory.rmdir)

    def _path_of(self, namespace: str, sandbox_id: str, port: int) -> Path:
        return self._directory / f"{_hash(f'{namespace}/{sandbox_id}')}.{port}"

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        namespace: str,
        pod: str,
        port: int,
    ) -> None:
        path = names.path("pods", namespace, pod, below="portforward")
        try:
            async with self._api.socket(path, {"ports": str(port)}) as socket:
                await _carry(socket, reader, writer)
        except (AgentsvcError, OSError):
            # Whoever asks sees an end at once, not silence.
            return
        finally:
            writer.transport.abort()

    async def answers(self, namespace: str, sandbox_id: str, port: int, limit: float) -> bool:
        """Return whether a port answers: it sends data, or keeps the connection for `limit` s."""
        path = names.path("pods", namespace, names.main(sandbox_id), below="portforward")
        try:
            async with self._api.socket(path, {"ports": str(port)}) as socket:
                return await _stays(socket, limit)
        except AgentsvcError:
            return False


async def _stays(socket: "aiohttp.ClientWebSocketResponse", limit: float) -> bool:
    try:
        async with asyncio.timeout(limit):
            async for _ in _received(socket):
                return True
    except TimeoutError:
        return True
    return False


async def _carry(
    socket: "aiohttp.ClientWebSocketResponse",
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    async def send() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(bytes((_DATA,)) + data)
        # There is no way to say that no more comes; the other side ends when it has answered.

    sending = asyncio.gather(send())
    try:
        async for data in _received(socket):
            writer.write(data)
            await writer.drain()
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sending


async def _received(socket: "aiohttp.ClientWebSocketResponse") -> AsyncIterator[bytes]:
    """Yield the data that the pod sends, until it reports an error or the connection ends."""
    skipped: set[int] = set()
    async for message in socket:
        if not isinstance(message.data, bytes) or not message.data:
            return
        channel, data = message.data[0], message.data[1:]
        if channel not in skipped:
            # Each channel begins with the number of the port.
            skipped.add(channel)
            data = data[_PORT_BYTES:]
        if channel == _TROUBLE and data:
            return
        if channel == _DATA and data:
            yield data


def directory_for(state_dir: Path, instance_id: str) -> Path:
    """Return the directory of the sockets: below `state_dir`, unless their paths are too long."""
    wanted = state_dir / "pods"
    if len(os.fsencode(wanted)) + 1 + _NAME_BYTES <= _PATH_MAX:
        return wanted
    mark = _hash(f"{state_dir}/{instance_id}")
    return Path(tempfile.gettempdir()) / f"agentsvc-pods-{mark}"


def make_private(directory: Path) -> None:
    """Create a directory for this user only; raises BackendUnavailable if others have access."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise BackendUnavailable(f"{directory} is open to others: remove it")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
