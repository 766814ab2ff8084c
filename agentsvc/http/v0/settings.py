"""Handlers of the older generation for settings."""

from http import HTTPStatus
from typing import Final

from aiohttp import web

from agentsvc.base import Gone, NotFound
from agentsvc.http.keys import PRINCIPAL, SECRETS, SETTINGS
from agentsvc.http.routes import Routes
from agentsvc.http.v0.types_settings import (
    SettingsBody,
    SettingsStored,
    SettingsView,
    from_settings,
    to_patch,
)
from agentsvc.http.wire import json_response

RESET_REMOVED: Final = "Reset settings functionality has been removed."

ROUTES: Final = Routes()


@ROUTES.add(
    "POST",
    "/api/settings",
    example={"language": "en", "llm_model": "openai/gpt-5-mini", "confirmation_mode": False},
)
async def post_settings(request: web.Request, body: SettingsBody) -> SettingsStored:
    """Store settings: they are merged with what is stored.

    It merges: what is not sent stays. Null puts a field back to its default, but leaves
    `llm_model`, `llm_base_url` and the three keys alone, which an empty text clears.
    """
    await request.app[SETTINGS].patch(request[PRINCIPAL].user_id, to_patch(body))
    return SettingsStored()


@ROUTES.add("GET", "/api/settings", SettingsView, errors=(NotFound,))
async def get_settings(request: web.Request) -> web.Response:
    """Return settings.

    Not found (404) before they are saved for the first time. Secrets are never shown.
    """
    user_id = request[PRINCIPAL].user_id
    settings = await request.app[SETTINGS].find(user_id)
    if settings is None:
        raise NotFound("Settings not found", extra={"error": "Settings not found"})
    hosts = await request.app[SECRETS].provider_hosts(user_id)
    return json_response(from_settings(settings, hosts))


@ROUTES.add("POST", "/api/reset-settings", None, status=HTTPStatus.GONE, errors=(Gone,))
async def post_reset(_request: web.Request) -> web.Response:
    """Say that settings are not reset any more.

    Always 410: clients change the fields they want to change.
    """
    raise Gone(RESET_REMOVED, extra={"error": RESET_REMOVED})
