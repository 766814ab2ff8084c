"""Settings on the V1 wire, and their mapping to and from the core's one record."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.auth import Principal, Role
from agentsvc.errors import InvalidRequest
from agentsvc.http.routes import shown_as
from agentsvc.http.shapes import AgentName, AnalyzerName, BaseUrl, McpServers, Secrets
from agentsvc.http.v1.types_agent_settings import (
    AgentBody,
    Change,
    ConversationBody,
    show_agent_settings,
    show_conversation_settings,
    show_llm,
    to_agent_change,
    to_conversation_change,
)
from agentsvc.http.wire import Int64
from agentsvc.mcp import McpConfig, show_mcp_config
from agentsvc.mcpmap import read_mcp_map
from agentsvc.misfits import Problems, checked_by
from agentsvc.profiles import active_profile
from agentsvc.settings import (
    SECRET_FIELDS,
    GroupingStrategy,
    Settings,
    SettingsPatch,
    check_patch,
    merge,
    show_settings,
)
from agentsvc.usersecrets import SecretsPatch, read_secrets
from agentsvc.values import MASK, Secret, dashed

_WHOLE: Final = ("agent_settings", "conversation_settings")
_USE_DIFFS: Final = "Use *_diff nested settings payloads instead of legacy keys"


class SettingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a client stores: parts of the nested settings, and fields under flat names.

    It is merged with what is stored: what is not sent stays. Null puts a field back to its default,
    but leaves `llm_model`, `llm_base_url` and the three keys alone, since clients send back what
    they read; an empty text puts any text back, these included. Where a value is sent in both
    forms, the nested one counts. The whole nested objects are refused, and so is a new `agent`,
    `security_analyzer` or `llm_base_url` that can never work.
    """

    agent_settings_diff: Annotated[dict[str, Any], shown_as(AgentBody)] | None = None
    conversation_settings_diff: Annotated[dict[str, Any], shown_as(ConversationBody)] | None = None
    agent_settings: Any = UNSET
    conversation_settings: Any = UNSET
    language: str | UnsetType | None = UNSET
    user_version: Int64 | UnsetType | None = UNSET
    agent: AgentName | UnsetType | None = UNSET
    max_iterations: Int64 | UnsetType | None = UNSET
    security_analyzer: AnalyzerName | UnsetType | None = UNSET
    confirmation_mode: bool | UnsetType | None = UNSET
    llm_model: str | UnsetType | None = UNSET
    llm_api_key: str | UnsetType | None = UNSET
    llm_base_url: BaseUrl | UnsetType | None = UNSET
    remote_runtime_resource_factor: Int64 | UnsetType | None = UNSET
    secrets_store: Annotated[Any, shown_as(Secrets), checked_by(read_secrets)] = None
    enable_default_condenser: bool | UnsetType | None = UNSET
    condenser_max_size: Int64 | UnsetType | None = UNSET
    enable_sound_notifications: bool | UnsetType | None = UNSET
    enable_proactive_conversation_starters: bool | UnsetType | None = UNSET
    enable_solvability_analysis: bool | UnsetType | None = UNSET
    user_consents_to_analytics: bool | UnsetType | None = UNSET
    sandbox_base_container_image: str | UnsetType | None = UNSET
    sandbox_runtime_container_image: str | UnsetType | None = UNSET
    mcp_config: Annotated[Any, shown_as(McpServers), checked_by(read_mcp_map)] = UNSET
    search_api_key: str | UnsetType | None = UNSET
    sandbox_api_key: str | UnsetType | None = UNSET
    max_budget_per_task: float | UnsetType | None = UNSET
    email: str | UnsetType | None = UNSET
    email_verified: bool | UnsetType | None = UNSET
    git_user_name: str | UnsetType | None = UNSET
    git_user_email: str | UnsetType | None = UNSET
    git_full_clone: bool | UnsetType | None = UNSET
    disabled_skills: tuple[str, ...] | UnsetType | None = UNSET
    v1_enabled: bool | UnsetType | None = UNSET
    sandbox_grouping_strategy: GroupingStrategy | UnsetType | None = UNSET
    default_sandbox_spec_id: str | UnsetType | None = UNSET
    title_llm_profile: str | UnsetType | None = UNSET


type Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)]
"""A list of what there is none of here."""


class ConversationSettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations run."""

    schema_version: int
    max_iterations: int
    confirmation_mode: bool
    security_analyzer: Literal["llm", "none"] | None


class ProfilesView(msgspec.Struct, frozen=True, kw_only=True):
    """The saved language models by name, and the one in use."""

    profiles: dict[str, dict[str, Any]]
    active: str | None


class RecordView(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in both shapes; null means not set."""

    language: str | None
    user_version: int | None
    agent: str | None
    max_iterations: int | None
    security_analyzer: str | None
    confirmation_mode: bool | None
    llm_model: str | None
    llm_api_key: str | None
    llm_base_url: str | None
    remote_runtime_resource_factor: int | None
    enable_default_condenser: bool
    condenser_max_size: int | None
    enable_sound_notifications: bool
    enable_proactive_conversation_starters: bool
    enable_solvability_analysis: bool
    user_consents_to_analytics: bool | None
    sandbox_base_container_image: str | None
    sandbox_runtime_container_image: str | None
    mcp_config: dict[str, Any] | None
    search_api_key: str | None
    sandbox_api_key: str | None
    max_budget_per_task: float | None
    email: str | None
    email_verified: bool | None
    git_user_name: str | None
    git_user_email: str | None
    git_full_clone: bool
    disabled_skills: list[str] | None
    v1_enabled: bool
    sandbox_grouping_strategy: GroupingStrategy
    default_sandbox_spec_id: str | None
    title_llm_profile: str | None
    secrets_store: dict[str, Any]
    agent_settings: dict[str, Any]
    conversation_settings: ConversationSettingsView
    llm_profiles: ProfilesView
    active_agent_profile_id: str | None
    active_agent_profile_revision: int | None
    registered_marketplaces: Nothing
    inherited_marketplaces: Nothing


class SettingsView(RecordView, frozen=True, kw_only=True):
    """Settings as they are read; secrets are never shown, only whether they are set."""

    provider_tokens_set: dict[str, str | None]
    llm_api_key_set: bool
    search_api_key_set: bool


class UserView(RecordView, frozen=True, kw_only=True):
    """A user with the settings."""

    id: str
    org_id: str | None
    org_name: str | None
    role: Role
    permissions: list[str] | None


class SettingsStored(msgspec.Struct, frozen=True, kw_only=True):
    """The answer once settings are stored."""

    message: str = "Settings stored"


class Expose(msgspec.Struct, frozen=True, kw_only=True):
    """The query of /users/me."""

    expose_secrets: bool = False


SETTINGS_BODY: Final = msgspec.json.Decoder(SettingsBody)


def to_change(body: SettingsBody) -> Change:
    """Return the change a body asks for; raises InvalidRequest for what is wrong in it.

    The change, when it is made, raises BadRequest for nested values that do not fit.
    """
    _refuse_whole(body)
    patch = SettingsPatch()
    problems = Problems()
    with problems.noted():
        patch = _to_patch(body)
    with problems.noted():
        to_secrets(body)
    problems.refuse()
    nested = (
        to_conversation_change(body.conversation_settings_diff or {}),
        to_agent_change(body.agent_settings_diff or {}),
    )

    def change(settings: Settings) -> Settings:
        settings = merge(settings, patch)
        for part in nested:
            settings = part(settings)
        return settings

    return change


def to_secrets(body: SettingsBody) -> SecretsPatch:
    """Return the secrets a body stores; raises InvalidRequest for what does not fit."""
    return read_secrets(body.secrets_store)


def from_settings(settings: Settings, provider_hosts: dict[str, str | None]) -> dict[str, Any]:
    """Return the settings as they are read; instead of secrets, whether they are set."""
    return {
        **_record(settings, is_revealed=False),
        "provider_tokens_set": provider_hosts,
        "llm_api_key_set": bool(settings.llm_api_key),
        "search_api_key_set": bool(settings.search_api_key),
    }


def from_user(user: Principal, settings: Settings, *, is_revealed: bool) -> dict[str, Any]:
    """Return a user with the settings, secrets only if they are to be seen."""
    return {
        "id": dashed(user.user_id),
        "org_id": None,
        "org_name": None,
        "role": user.role.value,
        "permissions": None,
        **_record(settings, is_revealed=is_revealed),
    }


def _refuse_whole(body: SettingsBody) -> None:
    found = [name for name in _WHOLE if getattr(body, name) is not UNSET]
    if found:
        raise InvalidRequest(
            _USE_DIFFS, loc=("body", found[0]), extra={"error": _USE_DIFFS, "keys": found}
        )


def _to_patch(body: SettingsBody) -> SettingsPatch:
    # The secrets are no part of the record.
    names = set(SettingsPatch.__struct_fields__) - {"secrets_store"}
    given = {name: getattr(body, name) for name in names if hasattr(body, name)}
    for name in SECRET_FIELDS:
        if isinstance(given[name], str):
            given[name] = Secret(given[name])
    servers = given.pop("mcp_config")
    problems = Problems()
    with problems.noted():
        check_patch(SettingsPatch(**given))
    with problems.noted():
        if servers is not UNSET:
            servers = read_mcp_map(servers, loc=("body", "mcp_config"))
    problems.refuse()
    return SettingsPatch(**given, mcp_config=servers)


def _record(settings: Settings, *, is_revealed: bool) -> dict[str, Any]:
    """Return the record in both shapes."""
    flat = show_settings(settings)
    if is_revealed:
        flat |= {name: _revealed(getattr(settings, name)) for name in SECRET_FIELDS}
        flat["mcp_config"] = _revealed_servers(settings.mcp_config)
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


def _revealed(secret: Secret | None) -> str | None:
    return secret.reveal() if secret else None


def _revealed_servers(config: McpConfig | None) -> dict[str, Any] | None:
    return show_mcp_config(config, is_revealed=True) if config else None
