"""Outgoing webhooks as a part of a server."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import Route

from .courier import Courier
from .routes import COURIER, PREFIX, ROUTES, WEBHOOKS
from .sender import Sender
from .service import Webhooks
from .settings import WebhooksConfig

_FORGET_SECONDS: Final = 600.0


class WebhooksExtension(Extension[WebhooksConfig]):
    """Delivers what is to be told, while the server runs."""

    Config = WebhooksConfig
    prefix = PREFIX

    def routes(self) -> Iterable[Route]:
        """Return what a user keeps subscriptions with."""
        return ROUTES

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Deliver until the server stops."""
        sender = Sender(
            time_limit=self.config.send_seconds,
            allows_private=self.config.allow_private,
            most=self.config.concurrency,
            own=server.config.server.own_urls(),
        )
        courier = Courier(
            db=server.database,
            vault=server.vault,
            events=server.events,
            event_bus=server.event_bus,
            supervisor=server.supervisor,
            sender=sender,
            config=self.config,
        )
        server.app[WEBHOOKS] = Webhooks(server.database, server.vault, self.config)
        server.app[COURIER] = courier
        server.supervisor.loop("webhooks", courier.look, every_seconds=0)
        server.supervisor.loop(
            "old webhook deliveries", courier.forget_settled, every_seconds=_FORGET_SECONDS
        )
        try:
            yield
        finally:
            courier.close()
            await sender.close()
