"""The base class of the test kit's servers: each keeps its port when it is stopped and restarted."""

import abc
from typing import Self

from aiohttp import web


class Listening(abc.ABC):
    """A test server that listens on a port; use it as an async context manager."""

    _host = "127.0.0.1"
    _port = 0
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @abc.abstractmethod
    async def start(self) -> None:
        """Start listening; the port is chosen by the system unless one was given."""

    async def stop(self) -> None:
        """Stop listening. A later start uses the same port."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _listen(self, app: web.Application, *, grace_seconds: float = 1) -> None:
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=grace_seconds)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._port = self._runner.addresses[0][1]
