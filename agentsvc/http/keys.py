"""Typed keys of the application's services and of per-request state set by the middleware.

The composition root sets the application keys once; a handler reads the services it needs.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.accounts import (
    AuditLog,
    DeviceLogins,
    IdempotencyStore,
    KeyRing,
    LoginProvider,
    Logins,
    OpenConnections,
    Principal,
    QuotaStore,
    ServiceKeys,
    Users,
)
from agentsvc.base import EventBus, Supervisor
from agentsvc.config import Config
from agentsvc.conversations import (
    Archives,
    ConversationFiles,
    Conversations,
    EventLog,
    Exports,
    LiveSettings,
    MessageQueue,
    ModelToken,
    ModelTokens,
    ProviderPass,
    Replays,
    SandboxCallbacks,
    Streams,
    UserDeletions,
)
from agentsvc.git import GitProviders
from agentsvc.http.sdk_versions import Version
from agentsvc.http.server.metrics_registry import Refusal, RequestMetrics
from agentsvc.models import Catalogue, ModelProxy
from agentsvc.sandboxes import BackendRegistry, Sandbox, Sandboxes
from agentsvc.settings import ModelHosts, SecretStore, SettingsStore
from agentsvc.storage import Database

CONFIG: Final[web.AppKey[Config]] = web.AppKey("config")
DATABASE: Final[web.AppKey[Database]] = web.AppKey("database")
BACKENDS: Final[web.AppKey[BackendRegistry]] = web.AppKey("backends")
SUPERVISOR: Final[web.AppKey[Supervisor]] = web.AppKey("supervisor")
KEYRING: Final[web.AppKey[KeyRing]] = web.AppKey("keyring")
SERVICE_KEYS: Final[web.AppKey[ServiceKeys]] = web.AppKey("service_keys")
USER_DELETIONS: Final[web.AppKey[UserDeletions]] = web.AppKey("user_deletions")
DEVICES: Final[web.AppKey[DeviceLogins]] = web.AppKey("device_logins")
OPEN_CONNECTIONS: Final[web.AppKey[OpenConnections]] = web.AppKey("open_connections")
AUDIT: Final[web.AppKey[AuditLog]] = web.AppKey("audit")
QUOTAS: Final[web.AppKey[QuotaStore]] = web.AppKey("quotas")
USERS: Final[web.AppKey[Users]] = web.AppKey("users")
LOGINS: Final[web.AppKey[Logins]] = web.AppKey("logins")
LOGIN_PROVIDERS: Final[web.AppKey[tuple[LoginProvider, ...]]] = web.AppKey("login_providers")
MODEL_HOSTS: Final[web.AppKey[ModelHosts]] = web.AppKey("model_hosts")
SETTINGS: Final[web.AppKey[SettingsStore]] = web.AppKey("settings")
SECRETS: Final[web.AppKey[SecretStore]] = web.AppKey("secrets")
GIT_PROVIDERS: Final[web.AppKey[GitProviders]] = web.AppKey("git_providers")
CATALOGUE: Final[web.AppKey[Catalogue]] = web.AppKey("catalogue")
EVENT_BUS: Final[web.AppKey[EventBus]] = web.AppKey("event_bus")
EVENTS: Final[web.AppKey[EventLog]] = web.AppKey("events")
SANDBOXES: Final[web.AppKey[Sandboxes]] = web.AppKey("sandboxes")
CONVERSATIONS: Final[web.AppKey[Conversations]] = web.AppKey("conversations")
CALLBACKS: Final[web.AppKey[SandboxCallbacks]] = web.AppKey("callbacks")
FILES: Final[web.AppKey[ConversationFiles]] = web.AppKey("files")
LIVE_SETTINGS: Final[web.AppKey[LiveSettings]] = web.AppKey("live_settings")
EXPORTS: Final[web.AppKey[Exports]] = web.AppKey("exports")
REPLAYS: Final[web.AppKey[Replays]] = web.AppKey("replays")
MODEL_TOKENS: Final[web.AppKey[ModelTokens]] = web.AppKey("model_tokens")
MODELS: Final[web.AppKey[ModelProxy]] = web.AppKey("models")
STREAMS: Final[web.AppKey[Streams]] = web.AppKey("streams")
ARCHIVES: Final[web.AppKey[Archives]] = web.AppKey("archives", Archives)
PENDING: Final[web.AppKey[MessageQueue]] = web.AppKey("pending_messages")
IDEMPOTENCY: Final[web.AppKey[IdempotencyStore]] = web.AppKey("idempotency")
MEASURES: Final[web.AppKey[RequestMetrics]] = web.AppKey("measures", RequestMetrics)

REFUSAL_REASON: Final[web.RequestKey[Refusal]] = web.RequestKey("refused_for", Refusal)
"""Why a request was rejected, for the metrics, if the error class does not say so."""
REQUEST_ID: Final[web.RequestKey[str]] = web.RequestKey("request_id", str)
"""Id of the request, also in its log lines, error body and `X-Request-Id` header."""
PRINCIPAL: Final[web.RequestKey[Principal]] = web.RequestKey("principal")
"""The authenticated user; set on routes that a user's key opens."""
SANDBOX: Final[web.RequestKey[Sandbox]] = web.RequestKey("sandbox")
"""The authenticated sandbox; set on routes of scope SANDBOX."""
MODEL_TOKEN: Final[web.RequestKey[ModelToken]] = web.RequestKey("grant")
"""The caller's model token; set on routes of scope MODEL."""
PASS: Final[web.RequestKey[ProviderPass]] = web.RequestKey("pass")
"""The caller's pass for one secret; set on routes of scope PASS."""
IS_FORWARDED: Final[web.RequestKey[bool]] = web.RequestKey("is_forwarded", bool)
"""Whether the response, headers included, comes from a sandbox."""
AWAITS_CONTINUE: Final[web.RequestKey[bool]] = web.RequestKey("awaits_continue", bool)
"""Whether the client waits for `100 Continue` before it sends its body."""
SENT_TARGET: Final[web.RequestKey[str]] = web.RequestKey("sent_target", str)
"""The request target as the client sent it, if the path was rewritten."""
SDK_VERSION: Final[web.RequestKey[Version]] = web.RequestKey("sdk_version")
"""The version of the Python SDK that the client's key states; absent if it states none."""
ON_LOST: Final[web.RequestKey[Callable[[], None]]] = web.RequestKey("on_lost")
"""Callback for a client that disconnects while its request is being served."""


class AuditNote(msgspec.Struct, frozen=True, kw_only=True):
    """An audit log entry that replaces the route's own; an empty action means no entry."""

    action: str
    subject: str = ""
    status: int = 200


AUDITED: Final[web.RequestKey[AuditNote]] = web.RequestKey("audited", AuditNote)
"""The audit entry of a request, for requests that share one path."""


def user_of(request: web.Request) -> str:
    """Return the id of the authenticated user; for routes that a user's key opens."""
    return request[PRINCIPAL].user_id
