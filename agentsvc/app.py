"""The composition root: creates every object of a server in order, and closes them in reverse order.

Each resource is an async generator; dependencies are created first and closed last. No
decisions are made here.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from agentsvc.accounts import (
    POLL_SECONDS,
    AuditLog,
    DeviceLogins,
    IdempotencyStore,
    KeyRing,
    Logins,
    OpenConnections,
    QuotaStore,
    ServiceKeys,
    Users,
)
from agentsvc.agentserver import AgentClient, SafeConnector
from agentsvc.base import EventBus, Notice, Subject, Supervisor
from agentsvc.config import TRACE_PLUGINS_VARIABLE, Config, DataDirectory, OnShutdown
from agentsvc.conversations import (
    AgentLiveness,
    Archives,
    ConversationDeletion,
    ConversationFiles,
    Conversations,
    ConversationStores,
    DeltaSubscriptions,
    EventIngestor,
    EventLog,
    Exports,
    LiveSettings,
    LookupTokens,
    MessageQueue,
    ModelTokens,
    Replays,
    SandboxCallbacks,
    StartParts,
    Starts,
    Streams,
    UserDeletions,
    keep_to_age,
)
from agentsvc.extension.publishing import publish_to
from agentsvc.extension.server import (
    Extension,
    Server,
    git_hosts_of,
    make_extensions,
    mount_extension,
)
from agentsvc.extension.tables import migrate
from agentsvc.git import GitProviders
from agentsvc.http import (
    LIVE,
    TRUSTED,
    Authorizer,
    OpenStreams,
    Route,
    gateway,
    install,
    keys,
    metrics,
    mount,
    mount_console,
    mount_guide,
    mounted,
    prefix_of,
    to_networks,
    v0,
    v1,
)
from agentsvc.http import health as ops
from agentsvc.http import model_proxy as llm
from agentsvc.http.openapi import handlers as description
from agentsvc.models import Catalogue, ModelProxy
from agentsvc.sandboxes import (
    SPARES_SECONDS,
    BackendRegistry,
    CallbackRules,
    IdleCuller,
    Notifier,
    PluginHost,
    Sandbox,
    Sandboxes,
    SandboxStores,
    StartSlots,
    Target,
    check_isolation,
    kinds_of,
)
from agentsvc.settings import ModelHosts, SecretStore, SettingsStore
from agentsvc.storage import Installation, Vault

log = logging.getLogger(__name__)

_LOOKS_IN_SILENCE: Final = 3
_REMOVE_FAILED_SECONDS: Final = 60.0
_FORGET_AUDIT_SECONDS: Final = 3600.0
_FORGET_ARCHIVES_SECONDS: Final = 60.0
_FORGET_ANSWERS_SECONDS: Final = 600.0
_FORGET_EVENTS_SECONDS: Final = 600.0

_DATA_DIRECTORY: Final = web.AppKey("data_directory", DataDirectory)
_INSTALLATION: Final = web.AppKey("installation", Installation)
_VAULT: Final = web.AppKey("vault", Vault)
_HOST: Final = web.AppKey("plugin_host", PluginHost)
_EXTENSIONS: Final = web.AppKey("extensions", list[tuple[str, Extension[Any]]])
_AGENTS: Final = web.AppKey("agents", AgentClient)
_SANDBOX_STORES: Final = web.AppKey("sandbox_stores", SandboxStores)
_CULLER: Final = web.AppKey("culler", IdleCuller)
_STORES: Final = web.AppKey("conversation_stores", ConversationStores)
_DELTAS: Final = web.AppKey("deltas", DeltaSubscriptions)

type _Loop = tuple[str, float, Callable[[], Awaitable[None]]]
"""Name, interval in seconds, and body."""


async def build_app(
    config: Config, *, data_dir: Path, plugins: PluginHost | None = None
) -> web.Application:
    """Return an application that is ready for `AppRunner.setup`; nothing runs yet.

    `config` has the real port and the URLs of the server. `plugins` are plugins that are already loaded,
    for tests; otherwise they are loaded as configured. Setting the application up raises StartFailed
    if a resource is unavailable.
    """
    app = web.Application(client_max_size=config.server.max_body_bytes)
    app[keys.CONFIG] = config
    app[TRUSTED] = to_networks(config.server.trusted_proxies)
    app[keys.CATALOGUE] = Catalogue()
    app[LIVE] = OpenStreams()
    app[_DATA_DIRECTORY] = DataDirectory(path=data_dir)
    app[_HOST] = plugins or _load_plugins(config)
    app[_EXTENSIONS] = make_extensions(app[_HOST], config)
    install(app, config, before_callers=(gateway.divert,))
    app.cleanup_ctx.extend(
        (
            _database,
            _backends,
            _agents,
            _git_providers,
            _supervisor,
            _sandboxes,
            _models,
            _conversations,
            _messages,
            _recovery,
            _extensions,
            _plugin_events,
            _loops,
            _gateway,
        )
    )
    app.on_shutdown.append(_end_streams)
    _add_routes(app, config)
    return app


def published_routes(config: Config) -> tuple[Route, ...]:
    """Return every route of a server with this configuration, without creating the server."""
    app = web.Application()
    app[_EXTENSIONS] = make_extensions(_load_plugins(config), config)
    _add_routes(app, config)
    return mounted(app)


def _load_plugins(config: Config) -> PluginHost:
    return PluginHost.load(
        dirs=[Path(folder) for folder in config.plugins.dirs],
        disable=config.plugins.disable,
        kinds=kinds_of(config),
        settings=config.extensions,
        environ=os.environ,
        is_traced=bool(os.environ.get(TRACE_PLUGINS_VARIABLE)),
    )


def _add_routes(app: web.Application, config: Config) -> None:
    """Mount the configured routes; the clean-up contexts create the objects that their handlers use."""
    description.install(app)
    mount(app, [*ops.ROUTES, *metrics.ROUTES, *description.ROUTES, *v1.ROUTES, *llm.ROUTES])
    mount_guide(app)
    mount_console(app, prefix=prefix_of(config.server.public_url))
    if config.server.device_login:
        mount(app, v1.LOGIN_ROUTES)
    v0.install(app, enabled=config.v0.enabled)
    gateway.mount_ports(app)
    for name, extension in app[_EXTENSIONS]:
        mount_extension(app, name, extension)


async def _database(app: web.Application) -> AsyncIterator[None]:
    config, data_directory = app[keys.CONFIG], app[_DATA_DIRECTORY]
    data_directory.prepare()
    app[_INSTALLATION] = installation = await Installation.open(data_directory)
    app[_VAULT] = vault = installation.vault
    app[keys.DATABASE] = database = installation.database
    app[keys.KEYRING] = KeyRing(database)
    app[keys.USERS] = Users(database)
    app[keys.SERVICE_KEYS] = ServiceKeys(database, vault)
    app[keys.QUOTAS] = QuotaStore(database)
    app[keys.AUDIT] = AuditLog(database)
    app[keys.IDEMPOTENCY] = IdempotencyStore(database, vault, config.idempotency)
    app[keys.DEVICES] = DeviceLogins(database)
    lifetime = timedelta(seconds=config.server.login_seconds)
    app[keys.LOGINS] = Logins(database, app[keys.KEYRING], lifetime=lifetime)
    app[keys.OPEN_CONNECTIONS] = OpenConnections(app[keys.KEYRING], app[keys.LOGINS])
    app[keys.SETTINGS] = SettingsStore(database, vault)
    app[keys.MODEL_HOSTS] = model_hosts = ModelHosts(database, config.sandboxes.model_hosts)
    await model_hosts.load()
    app[keys.SECRETS] = SecretStore(database, vault)
    app[keys.EVENT_BUS] = event_bus = EventBus()
    app[keys.EVENTS] = EventLog(database, event_bus, store_deltas=config.events.store_deltas)
    app[_STORES] = ConversationStores(database, vault, event_bus)
    yield
    await installation.close()


async def _backends(app: web.Application) -> AsyncIterator[None]:
    database, model_hosts = app[keys.DATABASE], app[keys.MODEL_HOSTS]
    stores = SandboxStores(database, app[_VAULT], app[keys.SETTINGS], model_hosts)
    app[_SANDBOX_STORES] = stores
    app[keys.BACKENDS] = registry = BackendRegistry.build(
        app[_HOST],
        app[keys.CONFIG],
        instance_id=app[_INSTALLATION].read_id(),
        state_dir=app[_DATA_DIRECTORY].backends,
        owner_key=stores.find_owner_key,
    )
    try:
        await registry.open()
        check_isolation(registry, app[keys.CONFIG].sandboxes)
        await registry.check_health(app[keys.CONFIG].sandboxes.call_seconds)
        yield
    finally:
        await registry.close()


async def _agents(app: web.Application) -> AsyncIterator[None]:
    app[_AGENTS] = agents = AgentClient()
    await agents.open()
    yield
    await agents.close()


async def _is_admin(app: web.Application, user_id: str) -> bool:
    return (await app[keys.USERS].get(user_id)).is_active_admin


async def _git_providers(app: web.Application) -> AsyncIterator[None]:
    app[keys.GIT_PROVIDERS] = providers = GitProviders(
        app[keys.SECRETS],
        time_limit=app[keys.CONFIG].git.api_seconds,
        checks_tokens=app[keys.CONFIG].git.check_tokens,
        reach=SafeConnector(
            listed=app[keys.CONFIG].git.private_hosts, own=app[keys.CONFIG].server.own_urls()
        ),
        trusts=partial(_is_admin, app),
        more=git_hosts_of(app[_EXTENSIONS]),
    )
    await providers.open(app[_DATA_DIRECTORY].checkouts)
    yield
    await providers.close()


async def _supervisor(app: web.Application) -> AsyncIterator[None]:
    app[keys.SUPERVISOR] = supervisor = Supervisor()
    yield
    await supervisor.stop(app[keys.CONFIG].server.shutdown_grace_seconds)


async def _sandboxes(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.CONFIG]
    app[keys.SANDBOXES] = sandboxes = Sandboxes(
        app[_SANDBOX_STORES],
        registry=app[keys.BACKENDS],
        supervisor=app[keys.SUPERVISOR],
        config=config.sandboxes,
        callbacks=CallbackRules(
            internal_url=config.server.internal_url.rstrip("/"),
            flush_seconds=config.conversations.webhook_flush_seconds,
            git_hosts=tuple(config.git.private_hosts),
        ),
        agents=app[_AGENTS],
        slots=StartSlots(
            config.conversations.starts_at_once, lapse_seconds=config.conversations.turn_seconds
        ),
    )
    app[keys.ARCHIVES] = Archives(
        db=app[keys.DATABASE],
        directory=app[_DATA_DIRECTORY].archives,
        sandboxes=sandboxes,
        supervisor=app[keys.SUPERVISOR],
        config=config.archives,
    )
    app[_CULLER] = IdleCuller(
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        settings=app[keys.SETTINGS],
        supervisor=app[keys.SUPERVISOR],
        config=config.sandboxes,
    )
    yield


async def _models(app: web.Application) -> AsyncIterator[None]:
    config, model_hosts = app[keys.CONFIG], app[keys.MODEL_HOSTS]
    app[keys.MODELS] = models = ModelProxy(
        model_hosts, silence_seconds=config.models.silence_seconds, own=config.server.own_urls()
    )
    app[keys.MODEL_TOKENS] = ModelTokens(
        stores=app[_STORES],
        vault=app[_VAULT],
        sandboxes=app[keys.SANDBOXES],
        may_reach=models.may_reach,
        is_on=config.models.proxy,
    )
    yield


async def _conversations(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.CONFIG]
    ingestor = EventIngestor(
        stores=app[_STORES],
        events=app[keys.EVENTS],
        sandboxes=app[keys.SANDBOXES],
        supervisor=app[keys.SUPERVISOR],
        config=config.conversations,
        liveness=AgentLiveness(config.conversations.silent_seconds),
        max_event_bytes=config.limits.event_bytes_per_sandbox,
    )
    deletion = ConversationDeletion(
        stores=app[_STORES],
        sandboxes=app[keys.SANDBOXES],
        archives=app[keys.ARCHIVES],
        supervisor=app[keys.SUPERVISOR],
        keep_failed_seconds=config.conversations.keep_failed_seconds,
    )
    app[keys.CALLBACKS] = _make_callbacks(app, ingestor, deletion)
    app[keys.CONVERSATIONS] = Conversations(
        stores=app[_STORES],
        sandboxes=app[keys.SANDBOXES],
        archives=app[keys.ARCHIVES],
        ingestor=ingestor,
        deletion=deletion,
        starts=Starts(
            StartParts(
                stores=app[_STORES],
                vault=app[_VAULT],
                sandboxes=app[keys.SANDBOXES],
                archives=app[keys.ARCHIVES],
                settings=app[keys.SETTINGS],
                secrets=app[keys.SECRETS],
                events=app[keys.EVENTS],
                model_tokens=app[keys.MODEL_TOKENS],
                ingestor=ingestor,
                deletion=deletion,
                supervisor=app[keys.SUPERVISOR],
                git=app[keys.GIT_PROVIDERS],
                config=config.conversations,
            ),
        ),
    )
    app[_DELTAS] = DeltaSubscriptions(
        stores=app[_STORES],
        sandboxes=app[keys.SANDBOXES],
        events=app[keys.EVENTS],
        ingestor=ingestor,
        supervisor=app[keys.SUPERVISOR],
    )
    yield


def _make_callbacks(
    app: web.Application, ingestor: EventIngestor, deletion: ConversationDeletion
) -> SandboxCallbacks:
    return SandboxCallbacks(
        stores=app[_STORES],
        lookup_tokens=LookupTokens(app[_VAULT]),
        sandboxes=app[keys.SANDBOXES],
        secrets=app[keys.SECRETS],
        ingestor=ingestor,
        deletion=deletion,
        max_adopted=app[keys.CONFIG].limits.adopted_per_sandbox,
    )


async def _messages(app: web.Application) -> AsyncIterator[None]:
    conversations, sandboxes = app[keys.CONVERSATIONS], app[keys.SANDBOXES]
    has_public_skills = app[keys.CONFIG].conversations.public_skills
    app[keys.PENDING] = pending = MessageQueue(
        stores=app[_STORES],
        conversations=conversations,
        sandboxes=sandboxes,
        events=app[keys.EVENTS],
        supervisor=app[keys.SUPERVISOR],
        wait_seconds=app[keys.CONFIG].conversations.hand_over_seconds,
    )
    app[keys.REPLAYS] = Replays(
        stores=app[_STORES],
        sandboxes=sandboxes,
        settings=app[keys.SETTINGS],
        model_tokens=app[keys.MODEL_TOKENS],
        say_later=pending.say_later,
    )
    app[keys.FILES] = ConversationFiles(
        conversations=conversations,
        sandboxes=sandboxes,
        settings=app[keys.SETTINGS],
        has_public_skills=has_public_skills,
    )
    app[keys.LIVE_SETTINGS] = LiveSettings(
        conversations=conversations,
        sandboxes=sandboxes,
        settings=app[keys.SETTINGS],
        has_public_skills=has_public_skills,
        model_tokens=app[keys.MODEL_TOKENS],
    )
    app[keys.EXPORTS] = Exports(app[keys.EVENTS])
    app[keys.STREAMS] = Streams(
        event_bus=app[keys.EVENT_BUS],
        events=app[keys.EVENTS],
        conversations=conversations,
        sandboxes=sandboxes,
        deltas=app[_DELTAS],
        beat_seconds=app[keys.CONFIG].events.heartbeat_seconds,
    )
    sandboxes.on_change(pending.sandbox_changed)
    sandboxes.on_change(lambda before, after: app[keys.EVENT_BUS].announce(_news(before, after)))
    yield


async def _recovery(app: web.Application) -> AsyncIterator[None]:
    """Resume unfinished work of the last server; at shutdown, stop sandboxes if configured."""
    conversations, sandboxes = app[keys.CONVERSATIONS], app[keys.SANDBOXES]
    app[keys.USER_DELETIONS] = UserDeletions(
        db=app[keys.DATABASE],
        conversations=conversations,
        sandboxes=sandboxes,
        archives=app[keys.ARCHIVES],
        supervisor=app[keys.SUPERVISOR],
    )
    await app[keys.MODEL_TOKENS].recover()
    await sandboxes.recover(await conversations.starts.waiting())
    await app[keys.ARCHIVES].go_on()
    await conversations.recover()
    yield
    await sandboxes.warm_pool.drain()
    match app[keys.CONFIG].sandboxes.on_shutdown:
        case OnShutdown.PAUSE:
            await sandboxes.stop_all(Target.PAUSED)
        case OnShutdown.DELETE:
            await sandboxes.stop_all(Target.DELETED)
        case OnShutdown.LEAVE:
            pass


async def _extensions(app: web.Application) -> AsyncIterator[None]:
    server = Server(
        app=app,
        config=app[keys.CONFIG],
        database=app[keys.DATABASE],
        vault=app[_VAULT],
        supervisor=app[keys.SUPERVISOR],
        event_bus=app[keys.EVENT_BUS],
        events=app[keys.EVENTS],
        sandboxes=app[keys.SANDBOXES],
        conversations=app[keys.CONVERSATIONS],
        messages=app[keys.PENDING],
        secrets=app[keys.SECRETS],
        agents=app[_AGENTS],
        git=app[keys.GIT_PROVIDERS],
    )
    async with AsyncExitStack() as running:
        for name, extension in app[_EXTENSIONS]:
            await migrate(app[keys.DATABASE], name, extension.migrations)
            await running.enter_async_context(extension.run(server))
        # After the extensions have started, because starts may use them.
        await server.conversations.starts.go_on()
        yield


async def _plugin_events(app: web.Application) -> AsyncIterator[None]:
    notifier = Notifier(app[_HOST])
    publish_to(
        notifier,
        event_bus=app[keys.EVENT_BUS],
        conversations=app[keys.CONVERSATIONS],
        sandboxes=app[keys.SANDBOXES],
    )
    app[keys.SUPERVISOR].spawn("plugin events", notifier.run)
    yield


async def _loops(app: web.Application) -> AsyncIterator[None]:
    loops = (*_loops_of_sandboxes(app), *_loops_of_conversations(app), *_loops_that_forget(app))
    for name, every_seconds, body in loops:
        app[keys.SUPERVISOR].loop(name, body, every_seconds=every_seconds)
    yield


def _loops_of_sandboxes(app: web.Application) -> Iterator[_Loop]:
    config, registry = app[keys.CONFIG].sandboxes, app[keys.BACKENDS]
    sandboxes, every = app[keys.SANDBOXES], config.sweep_seconds
    yield "backends", every, registry.open
    yield "health of backends", every, lambda: registry.check_health(config.call_seconds)
    yield "sandboxes", every, sandboxes.sweep
    yield "warm pool", min(every, SPARES_SECONDS), sandboxes.warm_pool.refill
    yield "idle sandboxes", every, app[_CULLER].cull
    yield "user deletions", every, app[keys.USER_DELETIONS].delete_due


def _loops_of_conversations(app: web.Application) -> Iterator[_Loop]:
    config, conversations = app[keys.CONFIG].conversations, app[keys.CONVERSATIONS]
    yield "event polling", config.poll_seconds, conversations.ingestor.sync_unreachable
    every = config.silent_seconds / _LOOKS_IN_SILENCE
    yield "agent liveness", every, conversations.ingestor.watch
    yield "open connections", POLL_SECONDS, app[keys.OPEN_CONNECTIONS].close_revoked
    yield "events", config.sync_seconds, conversations.sync
    yield "pending messages", config.sync_seconds, app[keys.PENDING].deliver_all
    yield "failed starts", _REMOVE_FAILED_SECONDS, conversations.deletion.remove_failed


def _loops_that_forget(app: web.Application) -> Iterator[_Loop]:
    yield "old archives", _FORGET_ARCHIVES_SECONDS, app[keys.ARCHIVES].forget_old
    yield "idempotency records", _FORGET_ANSWERS_SECONDS, app[keys.IDEMPOTENCY].forget_old
    if event_seconds := app[keys.CONFIG].events.delete_after_seconds:
        age = timedelta(seconds=event_seconds)
        yield "old events", _FORGET_EVENTS_SECONDS, lambda: keep_to_age(app[keys.DATABASE], age)
    if audit_seconds := app[keys.CONFIG].audit.delete_after_seconds:
        oldest = timedelta(seconds=audit_seconds)
        forget = partial(app[keys.AUDIT].delete_older_than, oldest)
        yield "old entries of the audit log", _FORGET_AUDIT_SECONDS, forget


def _news(was: Sandbox, now: Sandbox | None) -> Notice:
    return Notice(subject=Subject.SANDBOX, user_id=was.user_id, id=was.id, is_deleted=now is None)


async def _gateway(app: web.Application) -> AsyncIterator[None]:
    config = app[keys.CONFIG].gateway
    authorizer = Authorizer(
        keyring=app[keys.KEYRING],
        logins=app[keys.LOGINS],
        admitted=app[keys.OPEN_CONNECTIONS],
        sandboxes=app[keys.SANDBOXES],
        config=config,
    )
    app[gateway.GATEWAY] = gateway.Gateway(authorizer, connect_seconds=config.connect_seconds)
    yield
    app[gateway.GATEWAY].close()


async def _end_streams(app: web.Application) -> None:
    app[LIVE].end()
