"""Settings of V0: wire structs, their conversion to and from the domain, and handlers."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.base import Gone, NotFound, Problems
from agentsvc.domain import McpListsBody, to_mcp_config
from agentsvc.http.keys import SECRETS, SETTINGS, user_of
from agentsvc.http.routes import Routes
from agentsvc.http.wire import json_response
from agentsvc.settings import (
    SecretsStoreBody,
    SentSettings,
    Settings,
    SettingsPatch,
    ShownFields,
    check_patch,
    patch_of,
    show_settings,
    to_secrets_patch,
)


class SettingsBody(SentSettings, frozen=True, kw_only=True):
    """Changes to settings, which are merged: fields that are omitted stay unchanged.

    (OpenHands servers with V0 replaced all settings instead.) Null resets a field to its default,
    except for `llm_model`, `llm_base_url` and the three keys, which null does not change because
    clients send back what they read; an empty string resets any string field. A new `agent`,
    `security_analyzer` or `llm_base_url` that can never work is refused.
    """

    secrets_store: SecretsStoreBody | UnsetType | None = UNSET
    """Secrets and provider tokens to store. Others stay unchanged; null or omitted: unchanged"""
    mcp_config: McpListsBody | UnsetType | None = UNSET
    """Tool servers in three lists. They replace all stored ones; a masked value (stars) keeps the
    stored secret. Null: no tool servers, omitted: unchanged"""


class SettingsView(ShownFields, frozen=True, kw_only=True):
    """Settings; null means not set. Secrets are never shown."""

    llm_api_key: None
    search_api_key: None
    sandbox_api_key: None
    provider_tokens_set: dict[str, str | None]
    llm_api_key_set: bool
    search_api_key_set: bool


class SettingsStored(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that settings were stored."""

    message: str = "Settings stored"
    """Confirmation, for people"""


class FeatureFlags(msgspec.Struct, frozen=True, kw_only=True, rename=str.upper):
    """Features that a front end shows or hides."""

    enable_billing: bool = False
    """Always false: there is no billing"""
    hide_llm_settings: bool = False
    """Always false: users choose their own models"""


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, rename=str.upper):
    """Configuration of V0 front ends: no analytics, no login by git providers."""

    app_mode: str = "oss"
    """Always `oss`: users log in with API keys"""
    github_client_id: str = ""
    """Always empty: there is no login by GitHub"""
    posthog_client_key: str = ""
    """Always empty: there are no analytics"""
    feature_flags: FeatureFlags = FeatureFlags()
    """Features that a front end shows or hides"""


_SHOWN: Final = [
    name for name in SettingsBody.__struct_fields__ if name in show_settings(Settings())
]


def to_patch(body: SettingsBody) -> SettingsPatch:
    """Convert the body to a settings patch; raises InvalidRequest."""
    patch, problems = patch_of(body), Problems()
    with problems.noted():
        check_patch(patch)
    with problems.noted():
        if body.mcp_config is not UNSET:
            servers = to_mcp_config(body.mcp_config)
            patch = msgspec.structs.replace(patch, mcp_config=servers)
    with problems.noted():
        if body.secrets_store is not UNSET:
            secrets = to_secrets_patch(body.secrets_store)
            patch = msgspec.structs.replace(patch, secrets_store=secrets)
    problems.refuse()
    return patch


def from_settings(settings: Settings, provider_hosts: dict[str, str | None]) -> dict[str, Any]:
    """Return the response with the settings; instead of secrets, whether they are set."""
    shown = show_settings(settings)
    return {
        **{name: shown[name] for name in _SHOWN},
        # Front ends that support both V0 and V1 start V1 conversations if this is true.
        "v1_enabled": settings.v1_enabled is not False,
        "secrets_store": {"provider_tokens": {}},
        "provider_tokens_set": provider_hosts,
        "llm_api_key_set": bool(settings.llm_api_key),
        "search_api_key_set": bool(settings.search_api_key),
    }


RESET_REMOVED: Final = "Reset settings functionality has been removed."

ROUTES: Final = Routes()


@ROUTES.add(
    "POST",
    "/api/settings",
    example={"language": "en", "llm_model": "openai/gpt-5-mini", "confirmation_mode": False},
)
async def post_settings(request: web.Request, body: SettingsBody) -> SettingsStored:
    """Change your settings.

    The changes are merged with the stored settings: fields that are omitted stay unchanged. Null
    resets a field to its default, except for `llm_model`, `llm_base_url` and the three keys, which
    only an empty string clears.
    """
    await request.app[SETTINGS].patch(user_of(request), to_patch(body))
    return SettingsStored()


@ROUTES.add("GET", "/api/settings", SettingsView, errors=(NotFound,))
async def get_settings(request: web.Request) -> web.Response:
    """Get your settings.

    Not found (404) before they are saved for the first time. Secrets are never shown.
    """
    user_id = user_of(request)
    settings = await request.app[SETTINGS].find(user_id)
    if settings is None:
        raise NotFound("Settings not found", extra={"error": "Settings not found"})
    hosts = await request.app[SECRETS].provider_hosts(user_id)
    return json_response(from_settings(settings, hosts))


@ROUTES.add("POST", "/api/reset-settings", None, status=HTTPStatus.GONE, errors=(Gone,))
async def post_reset(_request: web.Request) -> web.Response:
    """Refuse to reset settings (removed).

    Always 410: change the fields with `POST /api/settings` instead.
    """
    raise Gone(RESET_REMOVED, extra={"error": RESET_REMOVED})
