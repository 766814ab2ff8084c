"""The finer settings of an agent and its language model: what they are and their bounds.

Field names are those of the agent server, because that is where they go. A field that is None is
not set: the agent server decides. Secrets in here leave only through `llm_to_agent`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agentsvc.misfits import convert
from agentsvc.values import Secret, has_control

type Text = Annotated[str, Meta(max_length=4096)]
type LongText = Annotated[str, Meta(max_length=65536)]
type Count = Annotated[int, Meta(ge=0, le=2**53)]
type Positive = Annotated[int, Meta(ge=1, le=2**53)]
type Amount = Annotated[float, Meta(ge=0, le=1e15)]
type Fraction = Annotated[float, Meta(gt=0, lt=1)]
type Part = Annotated[float, Meta(ge=0, le=1)]
type Few = Annotated[int, Meta(ge=1, le=1000)]

_SECRET_MAX: Final = 65536


class LlmOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a language model but its name, its key and its URL."""

    api_version: Text | None = None
    aws_access_key_id: Secret | None = None
    aws_secret_access_key: Secret | None = None
    aws_session_token: Secret | None = None
    aws_region_name: Text | None = None
    aws_profile_name: Text | None = None
    aws_role_name: Text | None = None
    aws_session_name: Text | None = None
    aws_bedrock_runtime_endpoint: Text | None = None
    openrouter_site_url: Text | None = None
    openrouter_app_name: Text | None = None
    num_retries: Count | None = None
    retry_multiplier: Amount | None = None
    retry_min_wait: Count | None = None
    retry_max_wait: Count | None = None
    timeout: Count | None = None
    stream_idle_timeout: Amount | None = None
    max_message_chars: Positive | None = None
    temperature: Amount | None = None
    top_p: Part | None = None
    top_k: Amount | None = None
    max_input_tokens: Positive | None = None
    max_output_tokens: Positive | None = None
    model_canonical_name: Text | None = None
    api_mode: Literal["auto", "chat", "responses"] | None = None
    capability_overrides: dict[str, bool | str] | None = None
    extra_headers: dict[str, Secret] | None = None
    input_cost_per_token: Amount | None = None
    output_cost_per_token: Amount | None = None
    ollama_base_url: Text | None = None
    drop_params: bool | None = None
    modify_params: bool | None = None
    disable_vision: bool | None = None
    disable_stop_word: bool | None = None
    caching_prompt: bool | None = None
    log_completions: bool | None = None
    log_completions_folder: Text | None = None
    custom_tokenizer: Text | None = None
    native_tool_calling: bool | None = None
    force_string_serializer: bool | None = None
    inline_image_urls: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=40)] | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    enable_encrypted_reasoning: bool | None = None
    prompt_cache_retention: Text | None = None
    extended_thinking_budget: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    litellm_extra_body: dict[str, Any] | None = None
    safety_settings: list[dict[str, str]] | None = None


class Llm(Struct, frozen=True, kw_only=True):
    """A language model as it can be saved under a name."""

    model: str | None = None
    api_key: Secret | None = None
    base_url: str | None = None
    options: LlmOptions = LlmOptions()


class CondenserOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a long history is shortened; whether it is, and at which size, is in the settings."""

    condenser_kind: Literal["llm_summarizing", "no_op"] | None = None
    max_tokens: Positive | None = None
    keep_first: Count | None = None
    minimum_progress: Fraction | None = None
    hard_context_reset_max_retries: Positive | None = None
    hard_context_reset_context_scaling: Fraction | None = None


class VerificationOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The critic that rates what the agent does, and what follows from a bad mark."""

    critic_enabled: bool | None = None
    critic_mode: Literal["finish_and_message", "all_actions"] | None = None
    enable_iterative_refinement: bool | None = None
    critic_threshold: Part | None = None
    max_refinement_iterations: Few | None = None
    critic_server_url: Text | None = None
    critic_model_name: Text | None = None
    critic_api_key: Secret | None = None


class ContextOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent is told beside the task, and which skills it loads."""

    system_message_suffix: LongText | None = None
    user_message_suffix: LongText | None = None
    load_user_skills: bool | None = None
    load_project_skills: bool | None = None
    load_public_skills: bool | None = None


class Tool(Struct, frozen=True, kw_only=True):
    """A tool the agent gets, with its parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    params: dict[str, Any] = {}


class AgentOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about an agent but its model."""

    tools: Annotated[list[Tool], Meta(max_length=100)] | None = None
    enable_sub_agents: bool | None = None
    enable_switch_llm_tool: bool | None = None
    tool_concurrency_limit: Few | None = None
    persona: Annotated[str, Meta(min_length=1, max_length=65536)] | None = None
    agent_context: ContextOptions = ContextOptions()
    condenser: CondenserOptions = CondenserOptions()
    verification: VerificationOptions = VerificationOptions()


SECRET_OPTIONS: Final = frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "critic_api_key"}
)
"""Options that are never shown."""


def read_options[T](raw: Any, kind: type[T], *, loc: Sequence[str | int]) -> T:
    """Return decoded JSON as options; raises InvalidRequest for what does not fit."""
    return convert(raw, kind, loc=loc, dec_hook=_to_secret)


def reveal_options(options: Struct) -> dict[str, Any]:
    """Return what is set as JSON values, secrets revealed; for merging and for the agent."""
    revealed: dict[str, Any] = msgspec.to_builtins(options, enc_hook=Secret.reveal)
    return revealed


def llm_to_agent(llm: Llm, *, usage_id: str, stream: bool) -> dict[str, Any]:
    """Return a language model as the agent server reads it, with its key revealed."""
    key = llm.api_key.reveal() if llm.api_key else None
    if not key and llm.base_url:
        # A local model needs no key, but the model library retries for minutes without one.
        key = "none"
    return {
        **reveal_options(llm.options),
        "model": llm.model,
        "api_key": key,
        "base_url": llm.base_url or None,
        "usage_id": usage_id,
        "stream": stream,
    }


def secrets_of(llm: Llm) -> list[Secret]:
    """Return everything that is secret of a language model."""
    options = [getattr(llm.options, name, None) for name in SECRET_OPTIONS]
    headers = (llm.options.extra_headers or {}).values()
    return [secret for secret in (llm.api_key, *options, *headers) if secret]


def _to_secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str):
        raise ValueError("Expected `string`")
    if len(value) > _SECRET_MAX or has_control(value):
        raise ValueError("Expected a secret without control characters")
    return Secret(value)
