"""The composition root: every object of a server, made once, in order, and let go of in reverse.

Each resource is one generator; what others use comes first and is closed last. Nothing here
decides anything.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from agentsvc.accounts import (
    LOOK_SECONDS,
    AuditLog,
    DeviceLogins,
    IdempotencyStore,
    KeyRing,
    Logins,
    OpenConnections,
    QuotaStore,
    Users,
)
from agentsvc.agentserver import AgentClient
from agentsvc.base import EventBus, Notice, Subject, Supervisor
from agentsvc.config import TRACE_PLUGINS_VARIABLE, Config, DataDirectory, OnShutdown
from agentsvc.conversations import (
    Archives,
    ConversationFiles,
    Conversations,
    EventLog,
    Exports,
    LiveSettings,
    MessageQueue,
    ModelTokens,
    Replays,
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
    ARCHIVES,
    AUDIT,
    BACKENDS,
    CATALOGUE,
    CONFIG,
    CONVERSATIONS,
    DATABASE,
    DEVICES,
    EVENT_BUS,
    EVENTS,
    EXPORTS,
    FILES,
    FIRST_MESSAGE_AUTH,
    GIT_PROVIDERS,
    IDEMPOTENCY,
    KEYRING,
    LIVE,
    LIVE_SETTINGS,
    LOGINS,
    MODEL_HOSTS,
    MODEL_TOKENS,
    MODELS,
    OPEN_CONNECTIONS,
    PENDING,
    QUOTAS,
    REPLAYS,
    SANDBOXES,
    SECRETS,
    SETTINGS,
    STREAMS,
    SUPERVISOR,
    TRUSTED,
    USER_DELETIONS,
    USERS,
    Admission,
    FirstMessageAuth,
    LiveAnswers,
    Route,
    gateway,
    install,
    known_hosts,
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
    Owners,
    PluginHost,
    Sandbox,
    Sandboxes,
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

_PLACES: Final = web.AppKey("places", DataDirectory)
_INSTALLATION: Final = web.AppKey("installation", Installation)
_VAULT: Final = web.AppKey("vault", Vault)
_HOST: Final = web.AppKey("plugin_host", PluginHost)
_EXTENSIONS: Final = web.AppKey("extensions", list[tuple[str, Extension[Any]]])
_AGENTS: Final = web.AppKey("agents", AgentClient)
_CULLER: Final = web.AppKey("culler", IdleCuller)


async def build_app(
    config: Config, *, data_dir: Path, plugins: PluginHost | None = None
) -> web.Application:
    """Return an application that is ready to be set up; nothing runs yet.

    `config` has the real port and the URLs of the server. `plugins` is what was loaded already,
    for tests; otherwise they are loaded as the config says. Setting the application up raises
    StartFailed when something it needs cannot be had.
    """
    app = web.Application(client_max_size=config.server.max_body_bytes)
    app[CONFIG] = config
    app[TRUSTED] = to_networks(config.server.trusted_proxies)
    app[CATALOGUE] = Catalogue()
    app[LIVE] = LiveAnswers()
    app[FIRST_MESSAGE_AUTH] = FirstMessageAuth(time_limit=config.server.first_message_seconds)
    app[_PLACES] = DataDirectory(path=data_dir)
    app[_HOST] = plugins or _load_plugins(config)
    app[_EXTENSIONS] = make_extensions(app[_HOST], config)
    install(
        app,
        cors_origins=config.server.cors_origins,
        request_seconds=config.server.request_seconds,
        hosts=known_hosts(config),
        before_callers=(gateway.divert,),
        limits=config.limits,
        most_held=config.server.max_connections // 4,
    )
    app.cleanup_ctx.extend(
        (
            _database,
            _backends,
            _agents,
            _git_providers,
            _supervisor,
            _core,
            _extensions,
            _loops,
            _gateway,
        )
    )
    app.on_shutdown.append(_end_streams)
    _add_routes(app, config)
    return app


def published_routes(config: Config) -> tuple[Route, ...]:
    """Return every route of a server with this configuration, without making one."""
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
    """Mount what the configuration asks for; whatever it uses is among the clean-up contexts."""
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
    places = app[_PLACES]
    places.prepare()
    app[_INSTALLATION] = installation = await Installation.open(places)
    app[_VAULT] = vault = installation.vault
    app[DATABASE] = database = installation.database
    app[KEYRING] = KeyRing(database)
    app[USERS] = Users(database)
    app[QUOTAS] = QuotaStore(database)
    app[AUDIT] = AuditLog(database)
    app[IDEMPOTENCY] = IdempotencyStore(database, vault, app[CONFIG].idempotency)
    app[DEVICES] = DeviceLogins(database)
    lifetime = timedelta(seconds=app[CONFIG].server.login_seconds)
    app[LOGINS] = Logins(database, app[KEYRING], lifetime=lifetime)
    app[OPEN_CONNECTIONS] = OpenConnections(app[KEYRING], app[LOGINS])
    app[SETTINGS] = SettingsStore(database, vault)
    app[MODEL_HOSTS] = ModelHosts(database, app[CONFIG].sandboxes.model_hosts)
    await app[MODEL_HOSTS].load()
    app[SECRETS] = SecretStore(database, vault)
    app[EVENT_BUS] = event_bus = EventBus()
    app[EVENTS] = EventLog(database, event_bus, store_deltas=app[CONFIG].events.store_deltas)
    yield
    await installation.close()


async def _backends(app: web.Application) -> AsyncIterator[None]:
    places = app[_PLACES]
    app[BACKENDS] = registry = BackendRegistry.build(
        app[_HOST],
        app[CONFIG],
        instance_id=app[_INSTALLATION].read_id(),
        state_dir=places.backends,
        owner_key=Owners(app[DATABASE], app[_VAULT], app[SETTINGS]).find_key,
    )
    try:
        await registry.open()
        check_isolation(registry, app[CONFIG].sandboxes)
        await registry.check_health(app[CONFIG].sandboxes.call_seconds)
        yield
    finally:
        await registry.close()


async def _agents(app: web.Application) -> AsyncIterator[None]:
    app[_AGENTS] = agents = AgentClient()
    await agents.open()
    yield
    await agents.close()


async def _is_admin(app: web.Application, user_id: str) -> bool:
    return (await app[USERS].get(user_id)).is_active_admin


async def _git_providers(app: web.Application) -> AsyncIterator[None]:
    app[GIT_PROVIDERS] = providers = GitProviders(
        app[SECRETS],
        time_limit=app[CONFIG].git.api_seconds,
        checks_tokens=app[CONFIG].git.check_tokens,
        private_hosts=app[CONFIG].git.private_hosts,
        own=app[CONFIG].server.own_urls(),
        trusts=partial(_is_admin, app),
        more=git_hosts_of(app[_EXTENSIONS]),
    )
    await providers.open()
    yield
    await providers.close()


async def _supervisor(app: web.Application) -> AsyncIterator[None]:
    app[SUPERVISOR] = supervisor = Supervisor()
    yield
    await supervisor.stop(app[CONFIG].server.shutdown_grace_seconds)


async def _core(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    callbacks = CallbackRules(
        internal_url=config.server.internal_url.rstrip("/"),
        flush_seconds=config.conversations.webhook_flush_seconds,
    )
    model_hosts = app[MODEL_HOSTS]
    app[SANDBOXES] = sandboxes = Sandboxes(
        db=app[DATABASE],
        vault=app[_VAULT],
        registry=app[BACKENDS],
        supervisor=app[SUPERVISOR],
        config=config.sandboxes,
        callbacks=callbacks,
        settings=app[SETTINGS],
        agents=app[_AGENTS],
        git_hosts=config.git.private_hosts,
        model_hosts=model_hosts,
    )
    app[ARCHIVES] = archives = Archives(
        db=app[DATABASE],
        directory=app[_PLACES].archives,
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        supervisor=app[SUPERVISOR],
        config=config.archives,
    )
    app[MODELS] = models = ModelProxy(
        model_hosts,
        silence_seconds=config.models.silence_seconds,
        own=config.server.own_urls(),
    )
    app[MODEL_TOKENS] = grants = ModelTokens(
        db=app[DATABASE],
        vault=app[_VAULT],
        sandboxes=sandboxes,
        may_reach=models.may_reach,
        is_on=config.models.proxy,
        event_bus=app[EVENT_BUS],
    )
    app[CONVERSATIONS] = conversations = Conversations(
        db=app[DATABASE],
        vault=app[_VAULT],
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        events=app[EVENTS],
        settings=app[SETTINGS],
        secrets=app[SECRETS],
        supervisor=app[SUPERVISOR],
        config=config.conversations,
        archives=archives,
        event_bus=app[EVENT_BUS],
        grants=grants,
        limits=config.limits,
    )
    app[FILES] = ConversationFiles(
        conversations=conversations,
        agents=app[_AGENTS],
        settings=app[SETTINGS],
        has_public_skills=config.conversations.public_skills,
    )
    app[LIVE_SETTINGS] = LiveSettings(
        conversations=conversations,
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        settings=app[SETTINGS],
        has_public_skills=config.conversations.public_skills,
        grants=grants,
    )
    app[PENDING] = pending = MessageQueue(
        db=app[DATABASE],
        conversations=conversations,
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        events=app[EVENTS],
        supervisor=app[SUPERVISOR],
        event_bus=app[EVENT_BUS],
        wait_seconds=config.conversations.hand_over_seconds,
    )
    app[REPLAYS] = Replays(
        db=app[DATABASE],
        vault=app[_VAULT],
        event_bus=app[EVENT_BUS],
        agents=app[_AGENTS],
        settings=app[SETTINGS],
        grants=grants,
        say_later=pending.say_later,
    )
    app[EXPORTS] = Exports(app[EVENTS])
    app[STREAMS] = Streams(
        event_bus=app[EVENT_BUS],
        events=app[EVENTS],
        conversations=conversations,
        sandboxes=sandboxes,
        beat_seconds=config.events.heartbeat_seconds,
    )
    sandboxes.on_change(pending.sandbox_changed)
    sandboxes.on_change(lambda before, after: app[EVENT_BUS].announce(_news(before, after)))
    app[_CULLER] = IdleCuller(
        db=app[DATABASE],
        sandboxes=sandboxes,
        agents=app[_AGENTS],
        settings=app[SETTINGS],
        supervisor=app[SUPERVISOR],
        config=config.sandboxes,
    )
    app[USER_DELETIONS] = UserDeletions(
        db=app[DATABASE],
        conversations=conversations,
        sandboxes=sandboxes,
        archives=archives,
        supervisor=app[SUPERVISOR],
    )
    await grants.recover()
    await sandboxes.recover()
    await archives.go_on()
    await conversations.recover()
    yield
    await sandboxes.spares.drain()
    match config.sandboxes.on_shutdown:
        case OnShutdown.PAUSE:
            await sandboxes.stop_all(Target.PAUSED)
        case OnShutdown.DELETE:
            await sandboxes.stop_all(Target.DELETED)
        case OnShutdown.LEAVE:
            pass


async def _extensions(app: web.Application) -> AsyncIterator[None]:
    server = Server(
        app=app,
        config=app[CONFIG],
        database=app[DATABASE],
        vault=app[_VAULT],
        supervisor=app[SUPERVISOR],
        event_bus=app[EVENT_BUS],
        events=app[EVENTS],
        sandboxes=app[SANDBOXES],
        conversations=app[CONVERSATIONS],
    )
    async with AsyncExitStack() as running:
        for name, extension in app[_EXTENSIONS]:
            await migrate(app[DATABASE], name, extension.migrations)
            await running.enter_async_context(extension.run(server))
        yield


async def _loops(app: web.Application) -> AsyncIterator[None]:
    config, supervisor = app[CONFIG], app[SUPERVISOR]
    registry, conversations = app[BACKENDS], app[CONVERSATIONS]
    notifier = Notifier(app[_HOST])
    publish_to(
        notifier,
        event_bus=app[EVENT_BUS],
        conversations=conversations,
        sandboxes=app[SANDBOXES],
    )
    supervisor.spawn("plugin events", notifier.run)
    sweep_seconds = config.sandboxes.sweep_seconds
    supervisor.loop("backends", registry.open, every_seconds=sweep_seconds)
    supervisor.loop(
        "health of backends",
        lambda: registry.check_health(config.sandboxes.call_seconds),
        every_seconds=sweep_seconds,
    )
    supervisor.loop(
        "events out of reach",
        conversations.poll,
        every_seconds=config.conversations.poll_seconds,
    )
    supervisor.loop(
        "silent agents",
        conversations.watch,
        every_seconds=config.conversations.silent_seconds / _LOOKS_IN_SILENCE,
    )
    supervisor.loop("open connections", app[OPEN_CONNECTIONS].look, every_seconds=LOOK_SECONDS)
    supervisor.loop("sandboxes", app[SANDBOXES].sweep, every_seconds=sweep_seconds)
    look_seconds = min(sweep_seconds, SPARES_SECONDS)
    supervisor.loop("spare sandboxes", app[SANDBOXES].spares.look, every_seconds=look_seconds)
    supervisor.loop("idle sandboxes", app[_CULLER].look, every_seconds=sweep_seconds)
    supervisor.loop("users who go", app[USER_DELETIONS].look, every_seconds=sweep_seconds)
    supervisor.loop("events", conversations.sync, every_seconds=config.conversations.sync_seconds)
    supervisor.loop(
        "old archives", app[ARCHIVES].forget_old, every_seconds=_FORGET_ARCHIVES_SECONDS
    )
    supervisor.loop(
        "kept answers", app[IDEMPOTENCY].forget_old, every_seconds=_FORGET_ANSWERS_SECONDS
    )
    if age_seconds := config.events.delete_after_seconds:
        supervisor.loop(
            "old events",
            lambda: keep_to_age(app[DATABASE], timedelta(seconds=age_seconds)),
            every_seconds=_FORGET_EVENTS_SECONDS,
        )
    if audit_seconds := config.audit.delete_after_seconds:
        supervisor.loop(
            "old entries of the audit log",
            lambda: app[AUDIT].keep_to_age(timedelta(seconds=audit_seconds)),
            every_seconds=_FORGET_AUDIT_SECONDS,
        )
    supervisor.loop(
        "pending messages",
        app[PENDING].deliver_all,
        every_seconds=config.conversations.sync_seconds,
    )
    supervisor.loop(
        "failed starts", conversations.remove_failed, every_seconds=_REMOVE_FAILED_SECONDS
    )
    yield


def _news(before: Sandbox, after: Sandbox | None) -> Notice:
    return Notice(
        subject=Subject.SANDBOX, user_id=before.user_id, id=before.id, is_deleted=after is None
    )


async def _gateway(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG].gateway
    admission = Admission(
        keyring=app[KEYRING],
        logins=app[LOGINS],
        admitted=app[OPEN_CONNECTIONS],
        sandboxes=app[SANDBOXES],
        config=config,
    )
    app[gateway.GATEWAY] = made = gateway.Gateway(
        admission, app[FIRST_MESSAGE_AUTH], connect_seconds=config.connect_seconds
    )
    yield
    made.close()


async def _end_streams(app: web.Application) -> None:
    app[LIVE].end()
    if gateway.GATEWAY in app:
        app[gateway.GATEWAY].end_streams()
