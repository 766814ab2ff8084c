"""The server extension of automations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from agentsvc.extension.server import Extension, Server

from .app_routes import APPS
from .app_routes import ROUTES as APP_ROUTES
from .config import AutomationsConfig
from .follower import Follower
from .github_app import GithubApps
from .issue_hosts import IssueHosts
from .issue_start import IssueStarter
from .polling import Poller
from .publication import Publisher
from .routes import AUTOMATIONS, PREFIX, ROUTES
from .scheduler import Scheduler
from .service import Automations, delete_old_runs
from .table import MIGRATIONS


class AutomationsExtension(Extension[AutomationsConfig]):
    """Creates, starts and follows runs while the server runs."""

    Config = AutomationsConfig
    prefix = PREFIX
    operations = (*APP_ROUTES, *ROUTES)
    migrations = MIGRATIONS

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Run automations until the server stops."""
        wake = asyncio.Event()
        server.app[APPS] = apps = GithubApps(server.database, server.vault, server.git)
        server.git.lender = apps.lend
        hosts = IssueHosts(server.database, server.git, apps)
        publisher, starter = Publisher(server, hosts), IssueStarter(server, hosts)
        follower = Follower(server, publisher, on_end=wake.set)
        scheduler = Scheduler(server, self.config, wake, starter, follower.watch)
        server.app[AUTOMATIONS] = automations = Automations(server, apps, self.config, wake.set)
        age = timedelta(seconds=self.config.delete_runs_after_seconds)
        poller = Poller(server, hosts, automations, known_for=age or None)
        server.event_bus.watch_all(follower.on_notice)
        server.supervisor.loop("automations", scheduler.start_due, every_seconds=0)
        server.supervisor.loop("automation runs", follower.follow_runs, every_seconds=0.2)
        server.supervisor.loop("pull requests", publisher.publish_due, every_seconds=1)
        server.supervisor.loop("git host polling", poller.poll_due, every_seconds=1)
        if age:
            work = partial(delete_old_runs, server.database, age)
            server.supervisor.loop("old automation runs", work, every_seconds=600)
        yield
