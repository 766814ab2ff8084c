"""Handlers of settings and of what a page needs to show them."""

from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest, NotFound
from agentsvc.http.keys import CONFIG, MODEL_HOSTS, PRINCIPAL, SECRETS, SETTINGS
from agentsvc.http.routes import Routes
from agentsvc.http.v1.settings_schema import AGENT_SCHEMA, CONVERSATION_SCHEMA, Schema
from agentsvc.http.v1.types_settings import (
    SettingsBody,
    SettingsStored,
    SettingsView,
    from_settings,
    to_change,
    to_secrets,
)
from agentsvc.http.wire import json_response
from agentsvc.models import Checked, check_model
from agentsvc.settings import Settings, llm_of

PREFIX: Final = "/api/v1/settings"

ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "", SettingsView, errors=(NotFound,))
async def get_settings(request: web.Request) -> web.Response:
    """Return settings.

    Settings in both shapes: nested as V1 has them, and flat as V0 had. Not found (404) before they
    are saved for the first time. Secrets are never shown.
    """
    user_id = request[PRINCIPAL].user_id
    settings = await request.app[SETTINGS].find(user_id)
    if settings is None:
        raise NotFound("Settings not found", extra={"error": "Settings not found"})
    hosts = await request.app[SECRETS].provider_hosts(user_id)
    return json_response(from_settings(settings, hosts))


@ROUTES.add(
    "POST",
    "",
    errors=(BadRequest,),
    example={"language": "en", "agent_settings_diff": {"llm": {"temperature": 0.2}}},
)
async def post_settings(request: web.Request, body: SettingsBody) -> SettingsStored:
    """Change settings: they are merged with what is stored.

    It merges: what is not sent stays. Null puts a field back to its default, but leaves
    `llm_model`, `llm_base_url` and the three keys alone, which an empty text clears. Where a value
    is sent in both forms, the nested one counts. A nested value that does not fit is a 400.
    """
    change = to_change(body)
    await request.app[SETTINGS].change(
        request[PRINCIPAL].user_id,
        lambda old: change(old or Settings()),
        secrets=to_secrets(body),
    )
    return SettingsStored()


@ROUTES.add("POST", "/test-model")
async def post_test_model(request: web.Request) -> Checked:
    """Ask the stored language model once, and tell whether it answers.

    It costs a few tokens. The answer is 200 also where the model does not answer: `outcome` tells.
    """
    settings = await request.app[SETTINGS].find(request[PRINCIPAL].user_id) or Settings()
    config, hosts = request.app[CONFIG], request.app[MODEL_HOSTS]
    return await check_model(llm_of(settings), hosts, own=config.server.own_urls())


@ROUTES.add("GET", "/agent-schema")
async def get_agent_schema(_request: web.Request) -> Schema:
    """Describe the settings of the agent, for pages that show them.

    Sections and fields of `agent_settings`, with labels, types, defaults and choices, from which a
    page can be made.
    """
    return AGENT_SCHEMA


@ROUTES.add("GET", "/conversation-schema")
async def get_conversation_schema(_request: web.Request) -> Schema:
    """Describe the settings of conversations, for pages that show them.

    Sections and fields of `conversation_settings`, with labels, types, defaults and choices, from
    which a page can be made.
    """
    return CONVERSATION_SCHEMA
