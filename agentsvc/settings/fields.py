"""The table of settings: each field, as it is kept, as clients send it, and as they read it.

What both API generations send and read stands in one struct each, which their bodies extend. A new
setting is a line in each struct here, with its description.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from agentsvc.base import (
    HTTP_URL,
    MAX_INT,
    NO_CONTROL,
    InvalidRequest,
    Secret,
    SentSecret,
    checked_by,
    copy_to,
    stated,
)
from agentsvc.domain import AgentOptions, Llm, LlmOptions, McpConfig
from agentsvc.plugin import IdleRules
from agentsvc.settings.user_secrets import SecretsPatch

SECRET_FIELDS: Final = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
"""Fields that are never shown."""

KEPT_ON_NULL: Final = SECRET_FIELDS | {"llm_model", "llm_base_url"}
"""Fields that null leaves alone: clients send back what they read, and that has no secrets."""

LEAST: Final = {
    "max_iterations": 1,
    "condenser_max_size": 20,
    "remote_runtime_resource_factor": 1,
    "user_version": 0,
}
"""The smallest value of every whole number."""

AGENTS: Final = ("CodeActAgent",)
"""The agents there are."""

SECURITY_ANALYZERS: Final = ("llm", "none")
"""Who can rate the risk of an action; `none` is nobody."""

MAX_TEXT: Final = 4096
MAX_SKILLS: Final = 1000
_BASE_URL: Final = re.compile(HTTP_URL)


def check_base_url(url: str | None, *, loc: Sequence[str | int]) -> None:
    """Raise InvalidRequest unless a language model can be at a URL; none is fine."""
    if url and not _BASE_URL.fullmatch(url):
        raise InvalidRequest(
            "Input should be a URL of http or https, such as `http://localhost:11434/v1`",
            loc=loc,
            kind="url_parsing",
        )


def _check_agent(name: str | None, *, loc: Sequence[str | int]) -> None:
    _check_choice(name, AGENTS, loc)


def _check_analyzer(name: str | None, *, loc: Sequence[str | int]) -> None:
    _check_choice(name, SECURITY_ANALYZERS, loc)


def _check_choice(name: str | None, choices: tuple[str, ...], loc: Sequence[str | int]) -> None:
    if name and name not in choices:
        known = " or ".join(f"`{one}`" for one in choices)
        raise InvalidRequest(f"Input should be {known}", loc=loc, kind="enum")


CHECKS: Final[dict[str, Callable[..., None]]] = {
    "agent": _check_agent,
    "security_analyzer": _check_analyzer,
    "llm_base_url": check_base_url,
}
"""By field, what raises InvalidRequest for a value that fits, and that nothing could be done with."""

# As clients send it

type FlatText = Annotated[str, Meta(max_length=MAX_TEXT), stated(pattern=NO_CONTROL)]
type FlatSecret = Annotated[SentSecret, Meta(max_length=MAX_TEXT), stated(pattern=NO_CONTROL)]
type BaseUrl = Annotated[
    str,
    Meta(max_length=MAX_TEXT),
    stated(pattern=rf"\A(?:{HTTP_URL})?\Z"),
    checked_by(check_base_url),
]
type AgentName = Annotated[str, stated(enum=[*AGENTS, ""]), checked_by(_check_agent)]
type AnalyzerName = Annotated[
    str, stated(enum=[*SECURITY_ANALYZERS, ""]), checked_by(_check_analyzer)
]
type Iterations = Annotated[int, Meta(ge=LEAST["max_iterations"], le=MAX_INT)]
type CondenserSize = Annotated[int, Meta(ge=LEAST["condenser_max_size"], le=MAX_INT)]
type ResourceFactor = Annotated[int, Meta(ge=LEAST["remote_runtime_resource_factor"], le=MAX_INT)]
type UserVersion = Annotated[int, Meta(ge=LEAST["user_version"], le=MAX_INT)]
type Budget = Annotated[float, Meta(gt=0)]
type Skills = Annotated[tuple[FlatText, ...], Meta(max_length=MAX_SKILLS)]


class GroupingStrategy(StrEnum):
    """Which running sandbox a new conversation joins, if any."""

    NO_GROUPING = "NO_GROUPING"
    """None: every conversation gets a sandbox of its own"""
    GROUP_BY_NEWEST = "GROUP_BY_NEWEST"
    """The one made last"""
    LEAST_RECENTLY_USED = "LEAST_RECENTLY_USED"
    """The one not used for longest"""
    FEWEST_CONVERSATIONS = "FEWEST_CONVERSATIONS"
    """The one with the fewest conversations"""
    ADD_TO_ANY = "ADD_TO_ANY"
    """The one made first"""


class Settings(Struct, frozen=True, kw_only=True):
    """What a user set, with defaults for the rest; None means not set."""

    language: str | None = None
    agent: str | None = None
    max_iterations: int | None = None
    security_analyzer: str | None = None
    confirmation_mode: bool | None = None
    llm_model: str | None = None
    llm_api_key: Secret | None = None
    llm_base_url: str | None = None
    remote_runtime_resource_factor: int | None = None
    enable_default_condenser: bool = True
    condenser_max_size: int | None = None
    enable_sound_notifications: bool = False
    enable_proactive_conversation_starters: bool = True
    enable_solvability_analysis: bool = True
    user_consents_to_analytics: bool | None = None
    sandbox_base_container_image: str | None = None
    sandbox_runtime_container_image: str | None = None
    mcp_config: McpConfig | None = None
    search_api_key: Secret | None = None
    sandbox_api_key: Secret | None = None
    max_budget_per_task: float | None = None
    email: str | None = None
    email_verified: bool | None = None
    git_user_name: str | None = None
    git_user_email: str | None = None
    git_full_clone: bool = False
    disabled_skills: tuple[str, ...] | None = None
    v1_enabled: bool | None = None
    user_version: int | None = None
    sandbox_grouping_strategy: GroupingStrategy = GroupingStrategy.NO_GROUPING
    default_sandbox_spec_id: str | None = None
    title_llm_profile: str | None = None
    llm_options: LlmOptions = LlmOptions()
    agent_options: AgentOptions = AgentOptions()
    llm_profiles: dict[str, Llm] = {}
    sandbox_idle: IdleRules = IdleRules()
    """What becomes of the user's sandboxes that are not used; wins over specs and the server."""
    activated_profile: str | None = None
    """The profile activated last; `profiles.active_profile` says whether it still is."""


class SentFields(Struct, frozen=True, kw_only=True):
    """A change to the settings of both generations, as clients send it, without keys."""

    language: FlatText | UnsetType | None = UNSET
    agent: AgentName | UnsetType | None = UNSET
    max_iterations: Iterations | UnsetType | None = UNSET
    security_analyzer: AnalyzerName | UnsetType | None = UNSET
    confirmation_mode: bool | UnsetType | None = UNSET
    llm_model: FlatText | UnsetType | None = UNSET
    llm_base_url: BaseUrl | UnsetType | None = UNSET
    remote_runtime_resource_factor: ResourceFactor | UnsetType | None = UNSET
    enable_default_condenser: bool | UnsetType | None = UNSET
    condenser_max_size: CondenserSize | UnsetType | None = UNSET
    enable_sound_notifications: bool | UnsetType | None = UNSET
    enable_proactive_conversation_starters: bool | UnsetType | None = UNSET
    enable_solvability_analysis: bool | UnsetType | None = UNSET
    user_consents_to_analytics: bool | UnsetType | None = UNSET
    sandbox_base_container_image: FlatText | UnsetType | None = UNSET
    sandbox_runtime_container_image: FlatText | UnsetType | None = UNSET
    max_budget_per_task: Budget | UnsetType | None = UNSET
    email: FlatText | UnsetType | None = UNSET
    email_verified: bool | UnsetType | None = UNSET
    git_user_name: FlatText | UnsetType | None = UNSET
    git_user_email: FlatText | UnsetType | None = UNSET
    v1_enabled: bool | UnsetType | None = UNSET


class SentSettings(SentFields, frozen=True, kw_only=True):
    """What clients of both generations send, with keys."""

    llm_api_key: FlatSecret | UnsetType | None = UNSET
    search_api_key: FlatSecret | UnsetType | None = UNSET
    sandbox_api_key: FlatSecret | UnsetType | None = UNSET


class SettingsPatch(SentFields, frozen=True, kw_only=True):
    """A change to settings: UNSET leaves a field alone, None puts it back to its default.

    None also leaves the fields of KEPT_ON_NULL alone. An empty text clears any field that is a text.
    """

    llm_api_key: Secret | UnsetType | None = UNSET
    search_api_key: Secret | UnsetType | None = UNSET
    sandbox_api_key: Secret | UnsetType | None = UNSET
    mcp_config: McpConfig | UnsetType | None = UNSET
    git_full_clone: bool | UnsetType | None = UNSET
    disabled_skills: tuple[str, ...] | UnsetType | None = UNSET
    user_version: int | UnsetType | None = UNSET
    sandbox_grouping_strategy: GroupingStrategy | UnsetType | None = UNSET
    default_sandbox_spec_id: str | UnsetType | None = UNSET
    title_llm_profile: str | UnsetType | None = UNSET
    secrets_store: SecretsPatch | UnsetType = UNSET


def patch_of(body: SentSettings) -> SettingsPatch:
    """Return the change a body asks for, without its tool servers and secrets, which are read apart."""
    sent = {name: getattr(body, name) for name in SECRET_FIELDS}
    keys = {name: Secret(key) if isinstance(key, str) else key for name, key in sent.items()}
    return copy_to(SettingsPatch, body, **keys, mcp_config=UNSET, secrets_store=UNSET)


class ShownFields(Struct, frozen=True, kw_only=True):
    """Settings as clients of both generations read them; null means not set."""

    language: str | None
    agent: str | None
    max_iterations: int | None
    security_analyzer: str | None
    confirmation_mode: bool | None
    llm_model: str | None
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
    """Tool servers as `McpConfig` describes them, secrets as stars; null: none"""
    max_budget_per_task: float | None
    email: str | None
    email_verified: bool | None
    git_user_name: str | None
    git_user_email: str | None
    v1_enabled: bool
    secrets_store: dict[str, Any]
    """Always `{"provider_tokens": {}}`: secrets are listed by other operations"""


FLAT_FIELDS: Final = tuple(
    name for name in Settings.__struct_fields__ if name in SettingsPatch.__struct_fields__
)
"""The fields a patch can change; the others change through `SettingsStore.change`."""
