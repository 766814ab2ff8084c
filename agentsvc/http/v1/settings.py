"""Settings in nested and flat form: wire structs, conversion from and to the record, handlers."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.accounts import Principal, Role
from agentsvc.base import (
    MASK,
    BadRequest,
    InvalidRequest,
    NotFound,
    Problem,
    Problems,
    ShownSecret,
    dashed,
    stated,
    with_check,
)
from agentsvc.domain import NamedServers, read_mcp_map, show_mcp_config
from agentsvc.http.keys import CONFIG, MODEL_HOSTS, SECRETS, SETTINGS, user_of
from agentsvc.http.routes import Routes, shown_as
from agentsvc.http.v1.settings_schema import AGENT_SCHEMA, CONVERSATION_SCHEMA, Schema
from agentsvc.http.v1.types_agent_settings import (
    AgentBody,
    ConversationBody,
    change_agent,
    change_conversation,
    refuse_many,
    show_agent_settings,
    show_conversation_settings,
    show_llm,
)
from agentsvc.http.wire import json_response
from agentsvc.models import Checked, check_model
from agentsvc.settings import (
    SECRET_FIELDS,
    FlatText,
    GroupingStrategy,
    SecretsStoreBody,
    SentSettings,
    Settings,
    ShownFields,
    Skills,
    UserVersion,
    active_profile,
    check_patch,
    llm_of,
    merge,
    patch_of,
    show_settings,
    to_secrets_patch,
)

_WHOLE: Final = ("agent_settings", "conversation_settings")
_USE_DIFFS: Final = "Use *_diff nested settings payloads instead of legacy keys"


_NEVER: Final = stated(**{"not": {}})


class SettingsBody(SentSettings, frozen=True, kw_only=True):
    """Changes to settings: diffs of the nested objects, and fields in the flat form of V0.

    They are merged with the stored settings: fields that are omitted stay unchanged. Null resets a
    field to its default, except for `llm_model`, `llm_base_url` and the three keys, which null does
    not change because clients send back what they read; an empty string resets any string field. If
    a value is sent in both forms, the nested one wins. Whole nested objects are refused, and so is
    a new `agent`, `security_analyzer` or `llm_base_url` that can never work.
    """

    agent_settings_diff: Annotated[dict[str, Any], shown_as(AgentBody)] | None = None
    """Changes to `agent_settings`: objects are merged deeply, `mcp_config` is replaced as a whole,
    null resets a field to its default"""
    conversation_settings_diff: Annotated[dict[str, Any], shown_as(ConversationBody)] | None = None
    """Changes to `conversation_settings`; null resets a field to its default"""
    agent_settings: Annotated[Any, _NEVER] = UNSET
    """Refused (422): use `agent_settings_diff`"""
    conversation_settings: Annotated[Any, _NEVER] = UNSET
    """Refused (422): use `conversation_settings_diff`"""
    secrets_store: SecretsStoreBody | None = None
    """Secrets and provider tokens to store. Others stay unchanged; null or omitted: unchanged"""
    mcp_config: Annotated[Any, shown_as(NamedServers), with_check(read_mcp_map)] = UNSET
    """Tool servers by name. They replace all stored ones; a masked value (stars) keeps the stored
    secret. Null: no tool servers, omitted: unchanged"""
    user_version: UserVersion | UnsetType | None = UNSET
    git_full_clone: bool | UnsetType | None = UNSET
    disabled_skills: Skills | UnsetType | None = UNSET
    sandbox_grouping_strategy: GroupingStrategy | UnsetType | None = UNSET
    default_sandbox_spec_id: FlatText | UnsetType | None = UNSET
    title_llm_profile: FlatText | UnsetType | None = UNSET


type Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)]
"""An always empty list, for a feature that this server does not have."""


class ConversationSettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of conversations."""

    schema_version: int
    """Always 1"""
    max_iterations: int
    """Maximum number of agent steps in a run"""
    confirmation_mode: bool
    """Whether the agent asks before it acts"""
    security_analyzer: Literal["llm", "none"] | None
    """Security analyzer, which rates the risk of an action; null if neither of these is set"""


class ProfilesView(msgspec.Struct, frozen=True, kw_only=True):
    """The LLM profiles by name, and the active one."""

    profiles: dict[str, dict[str, Any]]
    """The profiles by name, each in the form of `LlmBody`, with masked keys"""
    active: str | None
    """Name of the profile that was activated last; null if there is none, or if the settings differ
    from it by now"""


class RecordView(ShownFields, frozen=True, kw_only=True):
    """Settings in nested and flat form; null means not set."""

    user_version: int | None
    llm_api_key: ShownSecret | None
    search_api_key: ShownSecret | None
    sandbox_api_key: ShownSecret | None
    git_full_clone: bool
    disabled_skills: list[str] | None
    sandbox_grouping_strategy: GroupingStrategy
    default_sandbox_spec_id: str | None
    title_llm_profile: str | None
    agent_settings: dict[str, Any]
    """The agent in the form of `AgentBody`, with all fields; secrets are null unless
    `expose_secrets` is set"""
    conversation_settings: ConversationSettingsView
    """Settings of conversations"""
    llm_profiles: ProfilesView
    """The LLM profiles"""
    active_agent_profile_id: str | None
    """Always null: there are no agent profiles"""
    active_agent_profile_revision: int | None
    """Always null"""
    registered_marketplaces: Nothing
    """Always empty"""
    inherited_marketplaces: Nothing
    """Always empty"""


class SettingsView(RecordView, frozen=True, kw_only=True):
    """Settings; instead of secrets they show only whether a secret is set."""

    provider_tokens_set: dict[str, str | None]
    llm_api_key_set: bool
    search_api_key_set: bool


class UserView(RecordView, frozen=True, kw_only=True):
    """A user and their settings."""

    id: str
    """Id of the user, with dashes"""
    org_id: str
    """Id of the user's organization, equal to the id of the user: each is an organization of one"""
    org_name: str
    """Name of the user"""
    role: Role
    """Role of the user"""
    permissions: list[str]
    """Permissions for the published automation service: `view_automations`, and
    `manage_automations` if the role of the user and the scope of the key permit changes"""


class SettingsStored(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that settings were stored."""

    message: str = "Settings stored"
    """Confirmation, for people"""


class Expose(msgspec.Struct, frozen=True, kw_only=True):
    """Query of /users/me."""

    expose_secrets: bool = False
    """Whether to show keys and secrets. Requires, in addition to the user's key, the session key of
    a running sandbox of the user in `X-Session-API-Key`"""


def to_change(body: SettingsBody) -> Callable[[Settings], Settings]:
    """Return a function that applies the changes; raises InvalidRequest for an invalid body.

    The returned function raises BadRequest for invalid nested values.
    """
    _refuse_whole(body)
    for name in ("agent_settings_diff", "conversation_settings_diff", "mcp_config"):
        if (given := getattr(body, name)) is not UNSET:
            refuse_many(given, loc=("body", name))
    patch, problems = patch_of(body), Problems()
    with problems.noted():
        check_patch(patch)
    with problems.noted():
        if body.mcp_config is not UNSET:
            servers = read_mcp_map(body.mcp_config, loc=("body", "mcp_config"))
            patch = msgspec.structs.replace(patch, mcp_config=servers)
    with problems.noted():
        to_secrets_patch(body.secrets_store)
    problems.refuse()

    def change(settings: Settings) -> Settings:
        settings = merge(settings, patch)
        settings = change_conversation(settings, body.conversation_settings_diff or {})
        return change_agent(settings, body.agent_settings_diff or {})

    return change


def from_settings(settings: Settings, provider_hosts: dict[str, str | None]) -> dict[str, Any]:
    """Return the response with the settings; instead of secrets, whether they are set."""
    return {
        **_record(settings, is_revealed=False),
        "provider_tokens_set": provider_hosts,
        "llm_api_key_set": bool(settings.llm_api_key),
        "search_api_key_set": bool(settings.search_api_key),
    }


def from_user(user: Principal, settings: Settings, *, is_revealed: bool) -> dict[str, Any]:
    """Return a user with their settings, and with secrets only if `is_revealed`."""
    return {
        "id": dashed(user.user_id),
        "org_id": dashed(user.user_id),
        "org_name": user.user_name,
        "role": user.role.value,
        "permissions": ["view_automations", *["manage_automations"] * user.may_run],
        **_record(settings, is_revealed=is_revealed),
    }


def _refuse_whole(body: SettingsBody) -> None:
    found = [name for name in _WHOLE if getattr(body, name) is not UNSET]
    if found:
        problems = [
            Problem(type="value_error", loc=("body", name), msg=_USE_DIFFS) for name in found
        ]
        raise InvalidRequest.of(problems, extra={"error": _USE_DIFFS, "keys": found})


def _record(settings: Settings, *, is_revealed: bool) -> dict[str, Any]:
    """Return the settings in nested and flat form."""
    flat = show_settings(settings)
    if is_revealed:
        secrets = {name: getattr(settings, name) for name in SECRET_FIELDS}
        flat |= {name: secret.reveal() if secret else None for name, secret in secrets.items()}
        servers = settings.mcp_config
        flat["mcp_config"] = show_mcp_config(servers, is_revealed=True) if servers else None
    return {
        **flat,
        "v1_enabled": settings.v1_enabled is not False,
        "secrets_store": {"provider_tokens": {}},
        "agent_settings": show_agent_settings(settings, is_revealed=is_revealed),
        "conversation_settings": show_conversation_settings(settings),
        "llm_profiles": {
            "profiles": {
                name: show_llm(llm, is_revealed=is_revealed, key_mask=MASK)
                for name, llm in settings.llm_profiles.items()
            },
            "active": active_profile(settings),
        },
        "active_agent_profile_id": None,
        "active_agent_profile_revision": None,
        "registered_marketplaces": [],
        "inherited_marketplaces": [],
    }


ROUTES: Final = Routes("/api/v1/settings")


@ROUTES.add("GET", "", SettingsView, errors=(NotFound,))
async def get_settings(request: web.Request) -> web.Response:
    """Get your settings.

    In the nested form of V1 and the flat form of V0. Not found (404) before they are saved for the
    first time. Secrets are never shown.
    """
    user_id = user_of(request)
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
    """Change your settings.

    The changes are merged with the stored settings: fields that are omitted stay unchanged. Null
    resets a field to its default, except for `llm_model`, `llm_base_url` and the three keys, which
    only an empty string clears. If a value is sent in both forms, the nested one wins. An invalid
    nested value is a 400.
    """
    change, secrets = to_change(body), to_secrets_patch(body.secrets_store)
    await request.app[SETTINGS].change(
        user_of(request), lambda old: change(old or Settings()), secrets=secrets
    )
    return SettingsStored()


@ROUTES.add("POST", "/test-model")
async def post_test_model(request: web.Request) -> Checked:
    """Test the language model of your settings with one request.

    The request costs a few tokens. The response is 200 even if the model fails: see `outcome`.
    """
    settings = await request.app[SETTINGS].find(user_of(request)) or Settings()
    config, hosts = request.app[CONFIG], request.app[MODEL_HOSTS]
    return await check_model(llm_of(settings), hosts, own=config.server.own_urls())


@ROUTES.add("GET", "/agent-schema")
async def get_agent_schema(_request: web.Request) -> Schema:
    """Get the schema of the agent settings, for user interfaces.

    Sections and fields of `agent_settings` with labels, types, defaults and choices, from which a
    settings page can be generated.
    """
    return AGENT_SCHEMA


@ROUTES.add("GET", "/conversation-schema")
async def get_conversation_schema(_request: web.Request) -> Schema:
    """Get the schema of the conversation settings, for user interfaces.

    Sections and fields of `conversation_settings` with labels, types, defaults and choices, from
    which a settings page can be generated.
    """
    return CONVERSATION_SCHEMA
