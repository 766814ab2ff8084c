"""Prepared environments as a part of a server."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import Route

from .preparing import Preparer
from .routes import ENVIRONMENTS, PREFIX, ROUTES
from .service import EnvironmentService
from .settings import EnvironmentsConfig
from .table import MIGRATIONS

_LOOK_SECONDS = 30.0


class EnvironmentsExtension(Extension[EnvironmentsConfig]):
    """Prepares environments while the server runs."""

    Config = EnvironmentsConfig
    prefix = PREFIX
    migrations = MIGRATIONS

    def routes(self) -> Iterable[Route]:
        """Return what a user keeps environments with."""
        return ROUTES

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Prepare environments until the server stops."""
        preparer = Preparer(server, self.config)

        def wake() -> None:
            # What is removed may take long, and keeps nobody waiting.
            server.supervisor.spawn("begin environments", preparer.begin_waiting)
            server.supervisor.spawn("look at environments", preparer.look)

        service = EnvironmentService(server, self.config, wake)
        server.app[ENVIRONMENTS] = service
        server.conversations.starts.environments.source = service
        server.supervisor.loop("environments", preparer.look, every_seconds=_LOOK_SECONDS)
        yield
