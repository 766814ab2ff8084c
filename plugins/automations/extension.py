"""Automations as a part of a server."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import Route

from .follower import Follower
from .routes import AUTOMATIONS, PREFIX, ROUTES, WAKE
from .scheduler import Scheduler
from .service import Automations
from .settings import AutomationsConfig
from .table import MIGRATIONS


class AutomationsExtension(Extension[AutomationsConfig]):
    """Makes, begins and follows runs while the server runs."""

    Config = AutomationsConfig
    prefix = PREFIX
    migrations = MIGRATIONS

    def routes(self) -> Iterable[Route]:
        """Return what a user keeps automations with, and where webhooks deliver."""
        return ROUTES

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Run automations until the server stops."""
        wake = asyncio.Event()
        follower = Follower(server, on_end=wake.set)
        scheduler = Scheduler(server, self.config, wake, follower.watch)
        server.app[AUTOMATIONS] = Automations(
            server.database, server.vault, server.conversations, self.config
        )
        server.app[WAKE] = wake
        server.event_bus.watch_all(follower.hear)
        server.supervisor.loop("automations", scheduler.look, every_seconds=0)
        server.supervisor.loop("runs of automations", follower.look, every_seconds=0.2)
        yield
