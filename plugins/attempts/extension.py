"""Attempts as a part of a server."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import Route

from .routes import ATTEMPTS, PREFIX, ROUTES
from .runner import Runner
from .service import Attempts
from .settings import AttemptsConfig
from .table import MIGRATIONS


class AttemptsExtension(Extension[AttemptsConfig]):
    """Takes attempts on while the server runs."""

    Config = AttemptsConfig
    prefix = PREFIX
    migrations = MIGRATIONS

    def routes(self) -> Iterable[Route]:
        """Return what a user makes attempts with."""
        return ROUTES

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Take attempts on until the server stops."""
        runner = Runner(server, self.config)
        server.app[ATTEMPTS] = Attempts(server, self.config, runner.wake)
        server.event_bus.watch_all(runner.hear)
        server.supervisor.loop("attempts", runner.look, every_seconds=0)
        if self.config.delete_after_seconds:
            server.supervisor.loop("old attempts", runner.delete_old, every_seconds=600)
        yield
