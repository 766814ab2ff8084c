"""The table of settings: each field as it is stored, as clients send it, and as they read it.

The fields that both API generations send and read are in one struct each, which their bodies
extend. A new setting is a line in each struct here; its docstring in `Settings` is used in all.
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
    copy_to,
    stated,
    with_check,
)
from agentsvc.domain import AgentOptions, Llm, LlmOptions, McpConfig
from agentsvc.plugin import IdleRules
from agentsvc.settings.user_secrets import SecretsPatch

SECRET_FIELDS: Final = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
"""Fields that are never returned to clients."""

KEPT_ON_NULL: Final = SECRET_FIELDS | {"llm_model", "llm_base_url"}
"""Fields that null does not change: clients send back what they read, which has no secrets."""

AGENTS: Final = ("CodeActAgent",)
"""The names of the available agents."""

SECURITY_ANALYZERS: Final = ("llm", "none")
"""The analyzers that can rate the risk of an action; `none` disables it."""

MAX_TEXT: Final = 4096
_BASE_URL: Final = re.compile(HTTP_URL)


def check_base_url(url: str | None, *, loc: Sequence[str | int]) -> None:
    """Raise InvalidRequest for a URL that cannot be a model's; None and an empty text are valid."""
    if url and not _BASE_URL.fullmatch(url):
        raise InvalidRequest(
            "Input should be a URL of http or https, such as `http://localhost:11434/v1`",
            loc=loc,
            kind="url_parsing",
        )


def _one_of(choices: tuple[str, ...]) -> Callable[..., None]:
    """Return a check for one of these names; it accepts None and an empty text."""

    def check(name: str | None, *, loc: Sequence[str | int]) -> None:
        if name and name not in choices:
            known = " or ".join(f"`{one}`" for one in choices)
            raise InvalidRequest(f"Input should be {known}", loc=loc, kind="enum")

    return check


CHECKS: Final[dict[str, Callable[..., None]]] = {
    "agent": _one_of(AGENTS),
    "security_analyzer": _one_of(SECURITY_ANALYZERS),
    "llm_base_url": check_base_url,
}
"""By field, the check that raises InvalidRequest for a value of the right type without use."""

# As clients send them

type FlatText = Annotated[str, Meta(max_length=MAX_TEXT), stated(pattern=NO_CONTROL)]
type FlatSecret = Annotated[SentSecret, Meta(max_length=MAX_TEXT), stated(pattern=NO_CONTROL)]
type BaseUrl = Annotated[
    str,
    Meta(max_length=MAX_TEXT),
    stated(pattern=rf"\A(?:{HTTP_URL})?\Z"),
    with_check(check_base_url),
]
type AgentName = Annotated[str, stated(enum=[*AGENTS, ""]), with_check(CHECKS["agent"])]
type AnalyzerName = Annotated[
    str, stated(enum=[*SECURITY_ANALYZERS, ""]), with_check(CHECKS["security_analyzer"])
]
type Iterations = Annotated[int, Meta(ge=1, le=MAX_INT)]
type CondenserSize = Annotated[int, Meta(ge=20, le=MAX_INT)]
type ResourceFactor = Annotated[int, Meta(ge=1, le=MAX_INT)]
type UserVersion = Annotated[int, Meta(ge=0, le=MAX_INT)]
type Budget = Annotated[float, Meta(gt=0)]
type Skills = Annotated[tuple[FlatText, ...], Meta(max_length=1000)]


class GroupingStrategy(StrEnum):
    """Choice of the running sandbox that a new conversation joins."""

    NO_GROUPING = "NO_GROUPING"
    """Every conversation gets a new sandbox"""
    GROUP_BY_NEWEST = "GROUP_BY_NEWEST"
    """The newest sandbox"""
    LEAST_RECENTLY_USED = "LEAST_RECENTLY_USED"
    """The least recently used sandbox"""
    FEWEST_CONVERSATIONS = "FEWEST_CONVERSATIONS"
    """The sandbox with the fewest conversations"""
    ADD_TO_ANY = "ADD_TO_ANY"
    """The oldest sandbox"""


class FlatSettings(Struct, frozen=True, kw_only=True):
    """The settings that are shown as they are stored, with their defaults; None means not set."""

    language: str | None = None
    """Language of the front end, such as `en`; ignored by the server. Null: not set"""
    agent: str | None = None
    """Name of the agent; `CodeActAgent` is the only one, and the default for null"""
    max_iterations: int | None = None
    """Steps of the agent after which a run ends; null: the default, 500"""
    security_analyzer: str | None = None
    """Analyzer of the risk of actions: `llm` for the model, any other value or null for none"""
    confirmation_mode: bool | None = None
    """Whether actions of the agent need confirmation: risky ones with the analyzer `llm`, all
    without it; null: the default, false"""
    llm_model: str | None = None
    """Provider and name of the model, such as `anthropic/claude-sonnet-4-5`; required to start
    conversations. An empty text clears it, null changes nothing"""
    llm_base_url: str | None = None
    """URL of the model's API, if not the default of its provider. An empty text clears it, null
    changes nothing"""
    remote_runtime_resource_factor: int | None = None
    """Factor by which the limits of the spec are multiplied for new sandboxes, as far as the server
    allows; null: the default, 1"""
    enable_default_condenser: bool = True
    """Whether a long history is condensed; null: the default, true"""
    condenser_max_size: int | None = None
    """Number of events above which the history is condensed; null: the default, 240"""
    enable_sound_notifications: bool = False
    """Whether the front end plays sounds; ignored by the server. Null: the default, false"""
    enable_proactive_conversation_starters: bool = True
    """Whether the front end suggests tasks; ignored by the server. Null: the default, true"""
    enable_solvability_analysis: bool = True
    """Stored for front ends, ignored by the server. Null: the default, true"""
    user_consents_to_analytics: bool | None = None
    """Stored for front ends; the server collects no analytics. Null: not asked yet"""
    sandbox_base_container_image: str | None = None
    """Stored for front ends; the image of a sandbox is that of its spec. Null: not set"""
    sandbox_runtime_container_image: str | None = None
    """Stored for front ends; the image of a sandbox is that of its spec. Null: not set"""
    max_budget_per_task: float | None = None
    """Budget of a new conversation: US dollars at which its run is interrupted; null: no limit"""
    email: str | None = None
    """E-mail address of the user; only stored. Null: not set"""
    email_verified: bool | None = None
    """Stored for front ends, ignored by the server. Null: unknown"""
    git_user_name: str | None = None
    """Author of the agent's commits; null: the default of git in the sandbox"""
    git_user_email: str | None = None
    """E-mail address of the agent's commits; null: the default of git in the sandbox"""


class Settings(FlatSettings, frozen=True, kw_only=True):
    """The settings of a user, with defaults; None means not set."""

    llm_api_key: Secret | None = None
    """API key of the model; shown as null. An empty text clears it, null and `**********` change
    nothing"""
    mcp_config: McpConfig | None = None
    search_api_key: Secret | None = None
    """API key of Tavily, for web searches of agents; shown as null. An empty text clears it, null
    and `**********` change nothing"""
    sandbox_api_key: Secret | None = None
    """API key of the user at the service that runs sandboxes, for backends that need one; shown as
    null. An empty text clears it, null and `**********` change nothing"""
    git_full_clone: bool = False
    """Whether repositories are cloned with their full history, not only the last commit; null: the
    default, false"""
    disabled_skills: tuple[str, ...] | None = None
    """Names of skills that are disabled for agents; null: none"""
    v1_enabled: bool | None = None
    """Stored for front ends, ignored by the server. Null: the default, true"""
    user_version: int | None = None
    """A number of the front end, ignored by the server. Null: not set"""
    sandbox_grouping_strategy: GroupingStrategy = GroupingStrategy.NO_GROUPING
    """Choice of the running sandbox that a new conversation joins; null: `NO_GROUPING`"""
    default_sandbox_spec_id: str | None = None
    """Spec of new sandboxes; null or unknown: the first spec"""
    title_llm_profile: str | None = None
    """Model profile that writes the titles of conversations; null: the conversation's model"""
    llm_options: LlmOptions = LlmOptions()
    agent_options: AgentOptions = AgentOptions()
    llm_profiles: dict[str, Llm] = {}
    sandbox_idle: IdleRules = IdleRules()
    """Idle rules of the user's sandboxes; they override those of specs and the server."""
    activated_profile: str | None = None
    """The profile activated last; `profiles.active_profile` checks whether it is still in use."""


class SentFields(Struct, frozen=True, kw_only=True):
    """A change of the settings, as clients of both generations send it, without API keys."""

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
    """A change of the settings, as clients of both generations send it, with API keys."""

    llm_api_key: FlatSecret | UnsetType | None = UNSET
    search_api_key: FlatSecret | UnsetType | None = UNSET
    sandbox_api_key: FlatSecret | UnsetType | None = UNSET


class SettingsPatch(SentFields, frozen=True, kw_only=True):
    """A change of settings: UNSET keeps a field, None resets it to its default.

    None does not change the fields in KEPT_ON_NULL. An empty text clears any text field.
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
    """Convert a body to a patch, without tool servers and secrets, which are parsed separately."""
    sent = {name: getattr(body, name) for name in SECRET_FIELDS}
    keys = {name: Secret(key) if isinstance(key, str) else key for name, key in sent.items()}
    return copy_to(SettingsPatch, body, **keys, mcp_config=UNSET, secrets_store=UNSET)


class ShownFields(FlatSettings, frozen=True, kw_only=True):
    """Settings as clients of both generations read them; null means not set."""

    mcp_config: dict[str, Any] | None
    """Tool servers in the format of `McpConfig`, with masked secrets; null: none"""
    v1_enabled: bool
    secrets_store: dict[str, Any]
    """Always `{"provider_tokens": {}}`, because other operations list secrets"""


FLAT_FIELDS: Final = tuple(
    name for name in Settings.__struct_fields__ if name in SettingsPatch.__struct_fields__
)
"""The fields that a patch can change; `SettingsStore.change` changes the others."""
