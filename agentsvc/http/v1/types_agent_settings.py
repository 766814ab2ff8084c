"""Wire structs of the nested settings of V1: agent, conversation, and language model.

They are views of one settings record, in which the fields known to V0 are flat. A change is a diff
of such an object: it is merged deeply, null resets a field to its default, and secrets sent as null
or as stars stay unchanged, as do values that are sent back as they were shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import (
    MASK,
    MAX_INT,
    BadRequest,
    InvalidRequest,
    Loc,
    Secret,
    SentSecret,
    convert,
    copy_to,
    exceeds_value_limit,
    in_text,
)
from agentsvc.conversations import DEFAULT_CONDENSER_SIZE, DEFAULT_MAX_ITERATIONS
from agentsvc.domain import (
    SECRET_OPTIONS,
    AcpOptions,
    AgentOptions,
    CondenserOptions,
    Llm,
    LlmOptions,
    NamedServers,
    Text,
    read_mcp_map,
    read_options,
    reveal_options,
    show_mcp_map,
)
from agentsvc.http.routes import shown_as
from agentsvc.http.wire import encode
from agentsvc.settings import (
    AgentName,
    BaseUrl,
    Settings,
    SettingsPatch,
    check_base_url,
    check_patch,
    llm_of,
    merge,
)

AGENT_SCHEMA_VERSION: Final = 5
"""The schema version of nested agent settings that present clients write."""
DEFAULT_AGENT: Final = "CodeActAgent"

MAX_VALUES: Final = 20_000
"""Maximum number of values in a change: they are validated in one go on the event loop."""

_SECRETS: Final = SECRET_OPTIONS | {"api_key"}

LLM_DEFAULTS: Final[dict[str, Any]] = {
    "openrouter_site_url": "https://docs.all-hands.dev/",
    "openrouter_app_name": "OpenHands",
    "num_retries": 5,
    "retry_multiplier": 8.0,
    "retry_min_wait": 8,
    "retry_max_wait": 64,
    "timeout": 300,
    "stream_idle_timeout": 300.0,
    "max_message_chars": 30000,
    "api_mode": "auto",
    "capability_overrides": {},
    "drop_params": True,
    "modify_params": True,
    "disable_stop_word": False,
    "caching_prompt": True,
    "log_completions": False,
    "log_completions_folder": "logs/completions",
    "native_tool_calling": True,
    "reasoning_effort": "high",
    "enable_encrypted_reasoning": True,
    "prompt_cache_retention": "24h",
    "extended_thinking_budget": 200000,
    "litellm_extra_body": {},
}
"""Defaults of the agent server, for clients that show the values of unset options."""

_CONDENSER_DEFAULTS: Final = {
    "condenser_kind": "llm_summarizing",
    "keep_first": 2,
    "minimum_progress": 0.1,
    "hard_context_reset_max_retries": 5,
    "hard_context_reset_context_scaling": 0.8,
}
_VERIFICATION_DEFAULTS: Final = {
    "critic_enabled": False,
    "critic_mode": "finish_and_message",
    "enable_iterative_refinement": False,
    "critic_threshold": 0.6,
    "max_refinement_iterations": 3,
}
_CONTEXT_DEFAULTS: Final = {
    "load_user_skills": True,
    "load_project_skills": True,
    "load_public_skills": False,
}
_ACP_DEFAULTS: Final = {
    "acp_server": "claude-code",
    "acp_command": [],
    "acp_args": [],
    "acp_prompt_timeout": 1800.0,
    "acp_startup_timeout": 90.0,
}
_AGENT_DEFAULTS: Final = {
    "enable_sub_agents": False,
    "enable_switch_llm_tool": False,
    "tool_concurrency_limit": 1,
}


_OF_ACP: Final = {"agent_kind", *AcpOptions.__struct_fields__}


# Request structs


class LlmBody(LlmOptions, frozen=True, kw_only=True):
    """A language model; the fields from `auth_type` on are set by the server and not stored."""

    model: Text | None = None
    """Provider and name of the model, as in `anthropic/claude-sonnet-4-5`; at most 4096 characters.
    Null: not set; a conversation cannot start without a model"""
    api_key: Annotated[SentSecret, Meta(max_length=65536)] | None = None
    """API key for the model. Null, omitted or `**********`: unchanged; empty: cleared"""
    base_url: BaseUrl | None = None
    """URL of the model's API, if it is not the default URL of the provider; null or empty: the
    default URL"""
    auth_type: Literal["api_key"] | None = None
    """Always `api_key`; null means the same"""
    subscription_vendor: str | None = None
    """Accepted and not stored; null: not set"""
    usage_id: str | None = None
    """Accepted and not stored: the server sets it. Null: not set"""
    stream: bool | None = None
    """Accepted and not stored: the server decides whether responses are streamed. Null: not set"""
    is_subscription: bool | None = None
    """Accepted and not stored; null: not set"""
    fallback_strategy: None = None
    """Always null: there is no fallback model"""
    provider_connection_id: None = None
    """Always null"""


class StrictLlmBody(LlmBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language model; unknown fields are an error."""


class CondenserBody(CondenserOptions, frozen=True, kw_only=True):
    """Settings of the condenser, which shortens a long history."""

    enabled: bool | None = None
    """Whether the condenser is enabled; null: true"""
    max_size: Annotated[int, Meta(ge=20, le=MAX_INT)] | None = None
    """Number of events above which the history is condensed; null: 240"""


class AgentBody(AgentOptions, frozen=True, kw_only=True):
    """Settings of the agent."""

    agent: AgentName | None = None
    """Name of the agent; null: `CodeActAgent`, the only agent"""
    llm: LlmBody = LlmBody()
    """The language model of the agent"""
    condenser: CondenserBody = CondenserBody()
    """Settings of the condenser"""
    mcp_config: Annotated[Any, shown_as(NamedServers)] = None
    """Tool servers by name. They replace all stored ones; null: none"""


class ConversationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of conversations."""

    max_iterations: Annotated[int, Meta(ge=1, le=MAX_INT)] | UnsetType | None = UNSET
    """Maximum number of agent steps in a run; null: 500"""
    confirmation_mode: bool | UnsetType | None = UNSET
    """Whether the agent asks before it acts: with the analyzer `llm` only before risky actions,
    without it always; null: false"""
    security_analyzer: Literal["llm", "none"] | UnsetType | None = UNSET
    """Security analyzer, which rates the risk of actions: `llm` is the model, `none` disables it;
    null: the default"""


type Diff = dict[str, Any]


def to_llm(body: LlmBody, stored: Llm, *, keeps_secrets: bool) -> Llm:
    """Convert a language model; masked secrets (with `keeps_secrets` also null ones) are kept.

    A masked secret without a stored value is dropped. Raises InvalidRequest for an invalid URL.
    """
    check_base_url(body.base_url, loc=("body", "llm", "base_url"))
    given = {name: getattr(body, name) for name in LlmOptions.__struct_fields__}
    for name in SECRET_OPTIONS & given.keys():
        given[name] = _secret(given[name], getattr(stored.options, name), is_kept=keeps_secrets)
    if given["extra_headers"]:
        old = stored.options.extra_headers or {}
        headers = {
            name: _secret(value, old.get(name), is_kept=False)
            for name, value in given["extra_headers"].items()
        }
        given["extra_headers"] = {name: value for name, value in headers.items() if value}
    key = Secret(body.api_key) if body.api_key else None
    return Llm(
        model=body.model,
        api_key=_secret(key, stored.api_key, is_kept=keeps_secrets),
        base_url=body.base_url or None,
        options=LlmOptions(**given),
    )


def _secret(given: Secret | None, stored: Secret | None, *, is_kept: bool) -> Secret | None:
    if given is None:
        return stored if is_kept else None
    return stored if given.reveal() == MASK else given


def read_llm(raw: Any, *, loc: Sequence[str | int] = ("body", "llm")) -> LlmBody:
    """Validate a decoded language model; raises InvalidRequest, also for an unknown field."""
    refuse_many(raw, loc=loc)
    return read_options(raw, StrictLlmBody, loc=loc)


def refuse_many(raw: Any, *, loc: Sequence[str | int]) -> None:
    """Raise InvalidRequest for decoded JSON with more than MAX_VALUES values."""
    if exceeds_value_limit(encode(raw), MAX_VALUES):
        raise InvalidRequest(f"More than {MAX_VALUES} values", loc=loc, kind="too_many_values")


# Responses


def show_agent_settings(settings: Settings, *, is_revealed: bool = False) -> dict[str, Any]:
    """Return the nested agent settings with all fields; secrets only if `is_revealed`."""
    options = settings.agent_options
    shared = {
        "mcp_config": show_mcp_map(settings.mcp_config, is_revealed=is_revealed),
        "agent_context": _shown(options.agent_context, _CONTEXT_DEFAULTS, is_revealed=is_revealed),
    }
    if options.agent_kind == "acp":
        # Clients treat model settings of an ACP agent as an error.
        acp = _shown(copy_to(AcpOptions, options), _ACP_DEFAULTS, is_revealed=is_revealed)
        kind = {"schema_version": AGENT_SCHEMA_VERSION, "agent_kind": "acp"}
        return {**kind, **acp, **shared}
    own = _shown(options, _AGENT_DEFAULTS, is_revealed=is_revealed)
    return {
        "schema_version": AGENT_SCHEMA_VERSION,
        "agent_kind": "openhands",
        "agent": settings.agent or DEFAULT_AGENT,
        "llm": show_llm(llm_of(settings), is_revealed=is_revealed),
        **{name: value for name, value in own.items() if name not in _OF_ACP},
        **shared,
        "condenser": {
            "enabled": settings.enable_default_condenser,
            "max_size": settings.condenser_max_size or DEFAULT_CONDENSER_SIZE,
            **_shown(options.condenser, _CONDENSER_DEFAULTS, is_revealed=is_revealed),
        },
        "verification": _shown(
            options.verification, _VERIFICATION_DEFAULTS, is_revealed=is_revealed
        ),
    }


def show_conversation_settings(settings: Settings) -> dict[str, Any]:
    """Return the nested conversation settings; an unknown security analyzer is shown as null."""
    analyzer = settings.security_analyzer
    return {
        "schema_version": 1,
        "max_iterations": settings.max_iterations or DEFAULT_MAX_ITERATIONS,
        "confirmation_mode": bool(settings.confirmation_mode),
        "security_analyzer": analyzer if analyzer in ("llm", "none") else None,
    }


def show_llm(llm: Llm, *, is_revealed: bool = False, key_mask: str | None = None) -> dict[str, Any]:
    """Return a language model with all fields; a key that is set is shown as `key_mask`."""
    key = llm.api_key.reveal() if llm.api_key else None
    return {
        "model": llm.model,
        "api_key": key if is_revealed or not key else key_mask,
        "base_url": llm.base_url,
        **_shown(llm.options, LLM_DEFAULTS, is_revealed=is_revealed),
        "auth_type": "api_key",
        "subscription_vendor": None,
        "usage_id": "agent",
        "stream": True,
        "is_subscription": False,
    }


def _shown(
    options: msgspec.Struct, defaults: dict[str, Any], *, is_revealed: bool
) -> dict[str, Any]:
    """Return all options, unset ones with their defaults, without nested structs."""
    shown: dict[str, Any] = {}
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if isinstance(value, msgspec.Struct):
            continue
        if name in SECRET_OPTIONS and not is_revealed:
            value = None
        shown[name] = defaults.get(name) if value is None else value
    to_text = Secret.reveal if is_revealed else str
    built: dict[str, Any] = msgspec.to_builtins(shown, enc_hook=to_text)
    return built


# Changes


@contextmanager
def _refused_as_bad() -> Iterator[None]:
    """Convert InvalidRequest to BadRequest, the error of V1 for invalid nested settings."""
    try:
        yield
    except InvalidRequest as exc:
        problems = [msgspec.structs.replace(one, loc=_nested(one.loc)) for one in exc.problems]
        text = in_text(InvalidRequest.of(problems, is_all=exc.is_all))
        raise BadRequest(text, extra={"error": text}) from exc


def _nested(loc: Loc) -> Loc:
    return tuple(_NESTED.get(step, step) for step in loc)


_NESTED: Final[dict[str | int, str]] = {
    "llm_model": "llm.model",
    "llm_api_key": "llm.api_key",
    "llm_base_url": "llm.base_url",
    "condenser_max_size": "condenser.max_size",
}
"""Paths in the nested settings of fields that have other names in the flat settings."""


@_refused_as_bad()
def change_conversation(settings: Settings, diff: Diff) -> Settings:
    """Apply a diff of the conversation settings; raises BadRequest."""
    body = convert(_changes(diff, show_conversation_settings(settings)), ConversationBody, loc=())
    return merge(settings, copy_to(SettingsPatch, body))


@_refused_as_bad()
def change_agent(settings: Settings, whole: Diff) -> Settings:
    """Apply a diff of the agent settings; raises BadRequest."""
    diff = _changes(whole, show_agent_settings(settings))
    servers = diff.pop("mcp_config", UNSET)
    given = _without_masked_secrets(_expand_null_objects(diff))
    base = reveal_options(settings.agent_options)
    base["llm"] = reveal_options(settings.llm_options)
    body = read_options(_merged(base, given), AgentBody, loc=())
    patch = _flat_patch(given, servers)
    check_patch(patch, loc=())
    options = {name: getattr(body, name) for name in AgentOptions.__struct_fields__}
    options["condenser"] = copy_to(CondenserOptions, body.condenser)
    options["agent_kind"] = "acp" if body.agent_kind == "acp" else None
    if body.agent_kind == "acp" and body.acp_server == "custom" and not body.acp_command:
        raise InvalidRequest("`custom` needs a command", loc=("acp_command",))
    return msgspec.structs.replace(
        merge(settings, patch),
        llm_options=copy_to(LlmOptions, body.llm),
        agent_options=AgentOptions(**options),
    )


def _flat_patch(diff: Diff, servers: Any) -> SettingsPatch:
    """Convert the part of a validated diff that the record stores in flat fields."""
    llm, condenser = diff.get("llm") or {}, diff.get("condenser") or {}
    key = llm.get("api_key", UNSET)
    given: dict[str, Any] = {
        "agent": diff.get("agent", UNSET),
        "llm_model": llm.get("model", UNSET),
        "llm_api_key": Secret(key) if isinstance(key, str) else UNSET,
        # Unlike in the flat form, null resets this field.
        "llm_base_url": "" if llm.get("base_url", "-") is None else llm.get("base_url", UNSET),
        "enable_default_condenser": condenser.get("enabled", UNSET),
        "condenser_max_size": condenser.get("max_size", UNSET),
    }
    if servers is not UNSET:
        given["mcp_config"] = read_mcp_map(servers, loc=("body", "mcp_config"))
    return SettingsPatch(**given)


def _changes(diff: Diff, shown: Diff) -> Diff:
    """Drop values equal to the shown ones, so that a default that is sent back is not stored."""
    return {
        name: _changes(value, shown[name])
        if isinstance(value, dict) and isinstance(shown.get(name), dict) and name != "mcp_config"
        else value
        for name, value in diff.items()
        if name not in shown or not _is_same(value, shown[name])
    }


def _is_same(value: Any, shown: Any) -> bool:
    # 8 equals 8.0, as in JavaScript, but 1 does not equal true.
    return bool(value == shown) and isinstance(value, bool) == isinstance(shown, bool)


def _expand_null_objects(diff: Diff) -> Diff:
    """Replace null for an object by an object with null for each of its fields."""
    return {
        name: dict.fromkeys(_OBJECTS[name]) if value is None and name in _OBJECTS else value
        for name, value in diff.items()
    }


_OBJECTS: Final = {
    name: value.__struct_fields__
    for name, value in msgspec.structs.asdict(AgentBody()).items()
    if isinstance(value, msgspec.Struct)
}


def _without_masked_secrets(diff: Diff) -> Diff:
    """Drop masked and null secrets, which stay unchanged."""
    return {
        name: _without_masked_secrets(value) if isinstance(value, dict) else value
        for name, value in diff.items()
        if value != MASK and not (value is None and name in _SECRETS)
    }


def _merged(base: Diff, diff: Diff) -> Diff:
    """Apply a JSON Merge Patch (RFC 7386): objects are merged deeply, null removes."""
    merged = dict(base)
    for name, value in diff.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            old = merged.get(name)
            merged[name] = _merged(old if isinstance(old, dict) else {}, value)
        else:
            merged[name] = value
    return merged
