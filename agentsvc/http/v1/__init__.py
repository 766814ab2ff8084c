"""Version 1 of the API, under `/api/v1`: wire structs, their mapping, and thin handlers."""

from typing import Final

from agentsvc.http.routes import Route
from agentsvc.http.v1 import (
    accounts,
    api_keys,
    archives,
    audit_log,
    callbacks,
    catalogue,
    conversations,
    device_login,
    events,
    files,
    git,
    logins,
    message_search,
    model_hosts,
    pending_messages,
    profiles,
    sandbox_rules,
    sandboxes,
    secrets,
    service_keys,
    settings,
    skills,
    start_tasks,
    streams,
    users,
    web_client,
)

ROUTES: Final[tuple[Route, ...]] = (
    *conversations.ROUTES,
    *files.ROUTES,
    *pending_messages.ROUTES,
    *message_search.ROUTES,
    *start_tasks.ROUTES,
    *sandboxes.ROUTES,
    *sandbox_rules.ROUTES,
    *archives.ROUTES,
    *events.ROUTES,
    *streams.ROUTES,
    *callbacks.ROUTES,
    *settings.ROUTES,
    *profiles.ROUTES,
    *model_hosts.ROUTES,
    *secrets.ROUTES,
    *skills.ROUTES,
    *users.ROUTES,
    *accounts.ROUTES,
    *audit_log.ROUTES,
    *git.ROUTES,
    *catalogue.ROUTES,
    *web_client.ROUTES,
    *api_keys.ROUTES,
    *service_keys.ROUTES,
    *logins.ROUTES,
)
"""Every operation of version 1 that is always mounted."""

LOGIN_ROUTES: Final = device_login.ROUTES
"""The device login; callers need no key, so it is mounted only if the configuration enables it."""
