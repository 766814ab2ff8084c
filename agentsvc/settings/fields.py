"""The table of settings: each field, as it is kept, as clients send it, and as they read it.

What both API generations send and read stands in one struct each, which their bodies extend. A new
setting is a line in each struct here; what `Settings` says of it is told of it in all of them.
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

AGENTS: Final = ("CodeActAgent",)
"""The agents there are."""

SECURITY_ANALYZERS: Final = ("llm", "none")
"""Who can rate the risk of an action; `none` is nobody."""

MAX_TEXT: Final = 4096
_BASE_URL: Final = re.compile(HTTP_URL)


def check_base_url(url: str | None, *, loc: Sequence[str | int]) -> None:
    """Raise InvalidRequest unless a language model can be at a URL; none is fine."""
    if url and not _BASE_URL.fullmatch(url):
        raise InvalidRequest(
            "Input should be a URL of http or https, such as `http://localhost:11434/v1`",
            loc=loc,
            kind="url_parsing",
        )


def _one_of(choices: tuple[str, ...]) -> Callable[..., None]:
    """Return what raises InvalidRequest for a name that is none of these; none is fine."""

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
type AgentName = Annotated[str, stated(enum=[*AGENTS, ""]), checked_by(CHECKS["agent"])]
type AnalyzerName = Annotated[
    str, stated(enum=[*SECURITY_ANALYZERS, ""]), checked_by(CHECKS["security_analyzer"])
]
type Iterations = Annotated[int, Meta(ge=1, le=MAX_INT)]
type CondenserSize = Annotated[int, Meta(ge=20, le=MAX_INT)]
type ResourceFactor = Annotated[int, Meta(ge=1, le=MAX_INT)]
type UserVersion = Annotated[int, Meta(ge=0, le=MAX_INT)]
type Budget = Annotated[float, Meta(gt=0)]
type Skills = Annotated[tuple[FlatText, ...], Meta(max_length=1000)]


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


class FlatSettings(Struct, frozen=True, kw_only=True):
    """The settings that are shown as they are kept, with their defaults; None means not set."""

    language: str | None = None
    """Language of the front end, as in `en`; the server does nothing with it. Null: not set"""
    agent: str | None = None
    """Name of the agent; `CodeActAgent` is the only one there is, also for null"""
    max_iterations: int | None = None
    """Steps of the agent after which a run ends; null: not set, which is 500"""
    security_analyzer: str | None = None
    """What rates the risk of an action: `llm` the model, anything else, or null, nothing"""
    confirmation_mode: bool | None = None
    """Whether the agent asks before it acts: where the analyzer `llm` sees a risk, and always
    without it; null: not set, it does not"""
    llm_model: str | None = None
    """Provider and name of the model, as in `anthropic/claude-sonnet-4-5`; without one no
    conversation starts. An empty text clears it, null changes nothing"""
    llm_base_url: str | None = None
    """URL of the model's API, for one that is not at its provider's usual place. An empty text
    clears it, null changes nothing"""
    remote_runtime_resource_factor: int | None = None
    """How many times the limits of its spec a new sandbox gets, as far as the server allows; null:
    not set, which is once"""
    enable_default_condenser: bool = True
    """Whether a long history is shortened; null: not set, which is true"""
    condenser_max_size: int | None = None
    """Number of events from which the history is shortened; null: not set, which is 240"""
    enable_sound_notifications: bool = False
    """Whether the front end plays sounds; the server does nothing with it. Null: not set, which is
    false"""
    enable_proactive_conversation_starters: bool = True
    """Whether the front end suggests tasks; the server does nothing with it. Null: not set, which
    is true"""
    enable_solvability_analysis: bool = True
    """Kept for front ends; the server does nothing with it. Null: not set, which is true"""
    user_consents_to_analytics: bool | None = None
    """Kept for front ends; the server measures nothing about users. Null: not asked yet"""
    sandbox_base_container_image: str | None = None
    """Kept for front ends; the spec says what a sandbox is made of. Null: not set"""
    sandbox_runtime_container_image: str | None = None
    """Kept for front ends; the spec says what a sandbox is made of. Null: not set"""
    max_budget_per_task: float | None = None
    """Kept for front ends, in US dollars; the server's quotas limit what is spent. Null: not set"""
    email: str | None = None
    """E-mail address of the user; kept and shown only. Null: not set"""
    email_verified: bool | None = None
    """Kept for front ends; the server does nothing with it. Null: not known"""
    git_user_name: str | None = None
    """Author of the agent's commits; null: not set, and what the sandbox's git says"""
    git_user_email: str | None = None
    """E-mail address of the agent's commits; null: not set, and what the sandbox's git says"""


class Settings(FlatSettings, frozen=True, kw_only=True):
    """What a user set, with defaults for the rest; None means not set."""

    llm_api_key: Secret | None = None
    """Key of the model; shown as null. An empty text clears it, null and `**********` change
    nothing"""
    mcp_config: McpConfig | None = None
    search_api_key: Secret | None = None
    """Key of Tavily, with which agents search the web; shown as null. An empty text clears it, null
    and `**********` change nothing"""
    sandbox_api_key: Secret | None = None
    """Key of the user at the service that runs sandboxes, for backends that need one; shown as
    null. An empty text clears it, null and `**********` change nothing"""
    git_full_clone: bool = False
    """Whether repositories are cloned with their whole history, else the last commit only; null:
    not set, which is false"""
    disabled_skills: tuple[str, ...] | None = None
    """Names of skills that agents do not get; null: not set, which is none"""
    v1_enabled: bool | None = None
    """Kept for front ends; the server does nothing with it. Null: not set, which is true"""
    user_version: int | None = None
    """Number a front end keeps here; the server does nothing with it. Null: not set"""
    sandbox_grouping_strategy: GroupingStrategy = GroupingStrategy.NO_GROUPING
    """Which running sandbox a new conversation joins; null: not set, which is `NO_GROUPING`"""
    default_sandbox_spec_id: str | None = None
    """Spec of new sandboxes; null, or unknown: the first one"""
    title_llm_profile: str | None = None
    """Saved model that makes the titles of conversations; null: the model of the conversation"""
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


class ShownFields(FlatSettings, frozen=True, kw_only=True):
    """Settings as clients of both generations read them; null means not set."""

    mcp_config: dict[str, Any] | None
    """Tool servers as `McpConfig` describes them, secrets as stars; null: none"""
    v1_enabled: bool
    secrets_store: dict[str, Any]
    """Always `{"provider_tokens": {}}`: secrets are listed by other operations"""


FLAT_FIELDS: Final = tuple(
    name for name in Settings.__struct_fields__ if name in SettingsPatch.__struct_fields__
)
"""The fields a patch can change; the others change through `SettingsStore.change`."""
