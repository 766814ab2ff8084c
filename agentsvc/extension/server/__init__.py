"""The interface of extensions: the parts a plugin may add, and the services it gets."""

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
    """The settings of an extension that has none."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What an extension gets of a server that is about to run."""

    app: web.Application
    """Where it keeps what its handlers need, by typed keys of its own."""
    config: Config
    database: Database
    vault: Vault
    """Seals what must not be readable in the database."""
    supervisor: Supervisor
    """Runs its loops and tasks: `loop(name, body, every_seconds=60)`."""
    event_bus: EventBus
    """Told of each change, once it is stored."""
    events: EventLog
    sandboxes: Sandboxes
    conversations: Conversations
    messages: MessageQueue
    """Tells agents something, once, in the order it was taken."""
    secrets: SecretStore
    """What users have stored for their agents."""
    agents: AgentClient
    """Speaks with the agent servers in sandboxes."""
    git: GitProviders
    """Asks git hosts with the tokens of users, fetches from them, and pushes."""


class Extension[Settings: msgspec.Struct]:
    """Something that a plugin adds to a server; one instance is made for each server."""

    Config: ClassVar[type[msgspec.Struct]] = NoSettings
    """Its settings: a struct with `forbid_unknown_fields`, all of whose fields have defaults. Where
    one is called `enabled`, that switches the extension on and off."""
    prefix: ClassVar[str] = ""
    """What the paths of its routes begin with, such as `/api/notes`; may be empty."""
    operations: ClassVar[Iterable[Route]] = ()
    """Its routes, where none of them is a method of it."""
    migrations: ClassVar[Sequence[str]] = ()
    """SQL scripts that make its tables, in their order: add to them, change none. The names of its
    tables and indexes begin with `plugin_NAME_`."""

    git_hosts: ClassVar[Mapping[Provider, type[Hosting]]] = MappingProxyType({})
    """What asks git hosting services, by what users call these; see `agentsvc.extension.git`."""

    def __init__(self, config: Settings) -> None:
        self.config = config

    def routes(self) -> Iterable[Route]:
        """Return its routes, whose paths come behind the prefix."""
        return self.operations

    def middlewares(self) -> Iterable[Middleware]:
        """Return what runs around all requests, once these have their ids."""
        return ()

    def install(self, app: web.Application) -> None:
        """Add what is no route of the API."""

    def run(self, server: Server) -> AbstractAsyncContextManager[None]:
        """Return a context that is entered before the server listens, and left when it stops.

        It may start loops with the supervisor, which stops them after the context is left.
        """
        return nullcontext()


def make_extensions(host: PluginHost, config: Config) -> list[tuple[str, Extension[Any]]]:
    """Make what the plugins add, each with the name of its plugin; raises StartFailed."""
    known = {plugin.name for plugin in host.plugins()} | {plugin.name for plugin in bundled()}
    if unknown := config.extensions.keys() - known - set(config.plugins.disable):
        raise StartFailed(
            f"There are settings for plugins that are not there: {listed(unknown)}",
            hint=f"remove [extensions.{min(unknown)}], or install the plugin",
        )
    made = [(name, _make(name, kind, config)) for name, kind in host.extensions()]
    return [(name, one) for name, one in made if getattr(one.config, "enabled", True)]


def git_hosts_of(extensions: list[tuple[str, Extension[Any]]]) -> dict[Provider, type[Hosting]]:
    """Return the git hosting services that plugins know."""
    return {
        provider: kind
        for _, extension in extensions
        for provider, kind in extension.git_hosts.items()
    }


def _make(name: str, kind: object, config: Config) -> Extension[Any]:
    if not (isinstance(kind, type) and issubclass(kind, Extension)):
        offered = getattr(kind, "__name__", kind)
        raise StartFailed(f"Plugin `{name}` offers `{offered}`, which is no Extension")
    return kind(settings_of(config, name, kind.Config))


def mount_extension(app: web.Application, name: str, extension: Extension[Any]) -> None:
    """Add the routes and middlewares of an extension; raises StartFailed where a route is taken."""
    routes = [
        msgspec.structs.replace(route, path=extension.prefix + route.path)
        for route in extension.routes()
    ]
    if not all(route.path.startswith("/") for route in routes):
        raise StartFailed(f"Plugin `{name}` has routes and no `prefix` that begins with a slash")
    taken = {(route.method, route.path) for route in mounted(app)}
    for route in routes:
        if (route.method, route.path) in taken:
            raise StartFailed(
                f"Plugin `{name}` has the route {route.method} {route.path}, which there is already"
            )
    mount(app, routes)
    extension.install(app)
    if trace_request not in app.middlewares:
        # It is asked for its routes only.
        return
    for middleware in extension.middlewares():
        # Behind what gives the request its id, and around what makes its answer.
        app.middlewares.insert(app.middlewares.index(trace_request) + 1, middleware)
