"""The interface of extensions: what a plugin may add, and the services it gets."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware as Middleware

from agentsvc import __version__
from agentsvc.agentserver import AgentClient
from agentsvc.base import EventBus as EventBus
from agentsvc.base import Notice as Notice
from agentsvc.base import StartFailed
from agentsvc.base import Subject as Subject
from agentsvc.base import Supervisor as Supervisor
from agentsvc.config import Config, settings_of
from agentsvc.conversations import Conversations as Conversations
from agentsvc.conversations import EventLog as EventLog
from agentsvc.conversations import MessageQueue as MessageQueue
from agentsvc.conversations import StartTask as StartTask
from agentsvc.domain import Provider
from agentsvc.domain import StartStatus as StartStatus
from agentsvc.git import GitProviders, Hosting
from agentsvc.http import Handler as Handler
from agentsvc.http import Route, mount, mounted, trace_request
from agentsvc.plugin import bundled
from agentsvc.sandboxes import ClientOrder as ClientOrder
from agentsvc.sandboxes import PluginHost, listed
from agentsvc.sandboxes import Sandbox as Sandbox
from agentsvc.sandboxes import Sandboxes as Sandboxes
from agentsvc.sandboxes import SandboxStatus as SandboxStatus
from agentsvc.sandboxes import Target as Target
from agentsvc.sandboxes import status_of as status_of
from agentsvc.settings import SecretStore
from agentsvc.storage import Database, Vault

VERSION: Final = __version__
"""The version of the server."""


class NoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an extension without any."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The services that an extension gets from a server that is about to run."""

    app: web.Application
    """The application, for state of its handlers under typed keys of its own."""
    config: Config
    database: Database
    vault: Vault
    """Encrypts values that must not be readable in the database."""
    supervisor: Supervisor
    """Runs its loops and tasks: `loop(name, body, every_seconds=60)`."""
    event_bus: EventBus
    """Publishes each change once it is committed."""
    events: EventLog
    sandboxes: Sandboxes
    conversations: Conversations
    messages: MessageQueue
    """Delivers messages to agents, once and in order."""
    secrets: SecretStore
    """Secrets that users have stored for their agents."""
    agents: AgentClient
    """Client of the agent servers in sandboxes."""
    git: GitProviders
    """Calls git hosting services with the tokens of users, fetches from them, and pushes."""


class Extension[Settings: msgspec.Struct]:
    """An addition of a plugin to the server; one instance is created per server."""

    Config: ClassVar[type[msgspec.Struct]] = NoSettings
    """Its settings: a struct with `forbid_unknown_fields`, whose fields all have defaults. A field
    `enabled` switches the extension on and off."""
    prefix: ClassVar[str] = ""
    """The prefix of the paths of its routes, such as `/api/notes`; may be empty."""
    operations: ClassVar[Iterable[Route]] = ()
    """Its routes, if no handler is a method of the extension."""
    migrations: ClassVar[Sequence[str]] = ()
    """SQL scripts that create its tables, in order: append to them, never change one. The names of its
    tables and indexes begin with `plugin_NAME_`."""

    git_hosts: ClassVar[Mapping[Provider, type[Hosting]]] = MappingProxyType({})
    """Clients of git hosting services, by the name of the provider; see `agentsvc.extension.git`."""

    def __init__(self, config: Settings) -> None:
        self.config = config

    def routes(self) -> Iterable[Route]:
        """Return its routes, with paths relative to the prefix."""
        return self.operations

    def middlewares(self) -> Iterable[Middleware]:
        """Return middlewares for all requests, which run after a request has its id."""
        return ()

    def install(self, app: web.Application) -> None:
        """Add handlers that are not routes of the API."""

    def run(self, server: Server) -> AbstractAsyncContextManager[None]:
        """Return a context that is entered before the server listens, and exited when it stops.

        It may start loops with the supervisor, which stops them after the context is exited.
        """
        return nullcontext()


def make_extensions(host: PluginHost, config: Config) -> list[tuple[str, Extension[Any]]]:
    """Create the extensions of all plugins, with the name of their plugin; raises StartFailed."""
    known = {plugin.name for plugin in host.plugins()} | {plugin.name for plugin in bundled()}
    if unknown := config.extensions.keys() - known - set(config.plugins.disable):
        raise StartFailed(
            f"There are settings for unknown plugins: {listed(unknown)}",
            hint=f"remove [extensions.{min(unknown)}], or install the plugin",
        )
    made = [(name, _make(name, kind, config)) for name, kind in host.extensions()]
    return [(name, one) for name, one in made if getattr(one.config, "enabled", True)]


def git_hosts_of(extensions: list[tuple[str, Extension[Any]]]) -> dict[Provider, type[Hosting]]:
    """Return the git hosting services of all extensions."""
    return {
        provider: kind
        for _, extension in extensions
        for provider, kind in extension.git_hosts.items()
    }


def _make(name: str, kind: object, config: Config) -> Extension[Any]:
    if not (isinstance(kind, type) and issubclass(kind, Extension)):
        offered = getattr(kind, "__name__", kind)
        raise StartFailed(
            f"Plugin `{name}` offers `{offered}`, which is not a subclass of Extension"
        )
    return kind(settings_of(config, name, kind.Config))


def mount_extension(app: web.Application, name: str, extension: Extension[Any]) -> None:
    """Add the routes and middlewares of an extension; raises StartFailed if a route exists already."""
    routes = [
        msgspec.structs.replace(route, path=extension.prefix + route.path)
        for route in extension.routes()
    ]
    if not all(route.path.startswith("/") for route in routes):
        raise StartFailed(f"Plugin `{name}` has routes, but no `prefix` that begins with a slash")
    taken = {(route.method, route.path) for route in mounted(app)}
    for route in routes:
        if (route.method, route.path) in taken:
            raise StartFailed(
                f"Plugin `{name}` has the route {route.method} {route.path}, which exists already"
            )
    mount(app, routes)
    extension.install(app)
    if trace_request not in app.middlewares:
        # The application is only created to describe its routes.
        return
    for middleware in extension.middlewares():
        # After the middleware that sets the request's id, and around those that create its response.
        app.middlewares.insert(app.middlewares.index(trace_request) + 1, middleware)
