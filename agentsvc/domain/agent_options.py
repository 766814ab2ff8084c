"""Options of an agent and its language model, beyond the basic settings, with their limits.

Field names are those of the agent server, to which they are sent. None means not set: the agent
server decides. Secrets leave this module only through `llm_to_agent`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agentsvc.base import Secret, convert, has_control

type Text = Annotated[str, Meta(max_length=4096)]
type LongText = Annotated[str, Meta(max_length=65536)]
type Count = Annotated[int, Meta(ge=0, le=2**53)]
type Positive = Annotated[int, Meta(ge=1, le=2**53)]
type Amount = Annotated[float, Meta(ge=0, le=1e15)]
type Fraction = Annotated[float, Meta(gt=0, lt=1)]
type Part = Annotated[float, Meta(ge=0, le=1)]
type Few = Annotated[int, Meta(ge=1, le=1000)]
type Seconds = Annotated[float, Meta(gt=0, le=1e6)]
type Words = Annotated[list[Annotated[str, Meta(max_length=65536)]], Meta(max_length=100)]
type AcpServer = Literal[
    "claude-code", "codex", "gemini-cli", "kimi-code", "pi", "opencode", "custom"
]

_SECRET_MAX: Final = 65536


class LlmOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All options of a language model except its name, its key and its URL."""

    api_version: Text | None = None
    """Version of the API, for models of Azure; null: the provider's latest"""
    aws_access_key_id: Secret | None = None
    """Access key of AWS, for models of Bedrock; null: none"""
    aws_secret_access_key: Secret | None = None
    """Secret access key of AWS, for models of Bedrock; null: none"""
    aws_session_token: Secret | None = None
    """Session token of AWS, for models of Bedrock; null: none"""
    aws_region_name: Text | None = None
    """Region of AWS, for models of Bedrock; null: the default one"""
    aws_profile_name: Text | None = None
    """Profile of AWS, for models of Bedrock; null: none"""
    aws_role_name: Text | None = None
    """Role of AWS to assume, for models of Bedrock; null: none"""
    aws_session_name: Text | None = None
    """Name of the session for the assumed role; null: none"""
    aws_bedrock_runtime_endpoint: Text | None = None
    """URL of Bedrock, if it is not the default one; null: the default one"""
    openrouter_site_url: Text | None = None
    """Site that is reported to OpenRouter as the caller; null: the one of OpenHands"""
    openrouter_app_name: Text | None = None
    """Application name that is reported to OpenRouter; null: `OpenHands`"""
    num_retries: Count | None = None
    """Number of retries of a failed call; null: 5"""
    retry_multiplier: Amount | None = None
    """Factor by which the wait grows with each retry; null: 8"""
    retry_min_wait: Count | None = None
    """Seconds before the first retry; null: 8"""
    retry_max_wait: Count | None = None
    """Maximum seconds between two retries; null: 64"""
    timeout: Count | None = None
    """Time limit of one call in seconds; null: 300"""
    stream_idle_timeout: Amount | None = None
    """Seconds that a streamed answer may pause; null: 300"""
    max_message_chars: Positive | None = None
    """Maximum characters of an event that are sent to the model; null: 30,000"""
    temperature: Amount | None = None
    """Sampling temperature: 0 for steady answers, more for varied ones; null: the model's own"""
    top_p: Part | None = None
    """Nucleus sampling: share of the likeliest tokens to choose from, 0 to 1; null: the model's own"""
    top_k: Amount | None = None
    """Number of the likeliest tokens to choose from; null: the model's own"""
    max_input_tokens: Positive | None = None
    """Maximum tokens of a prompt; null: what is known of the model"""
    max_output_tokens: Positive | None = None
    """Maximum tokens of one answer; null: what is known of the model"""
    model_canonical_name: Text | None = None
    """Name of the model for looking up its capabilities and prices; null: `model`"""
    api_mode: Literal["auto", "chat", "responses"] | None = None
    """API of the model to call: `chat` completions, `responses`, or `auto` for the better one it
    supports; null: `auto`"""
    capability_overrides: dict[str, bool | str] | None = None
    """Capabilities of the model by name, which override the known ones; null: none"""
    extra_headers: dict[str, Secret] | None = None
    """Headers of each call by name; values are secrets. Null: none"""
    input_cost_per_token: Amount | None = None
    """US dollars per input token; null: what is known of the model"""
    output_cost_per_token: Amount | None = None
    """US dollars per output token; null: what is known of the model"""
    ollama_base_url: Text | None = None
    """URL of Ollama; null: none"""
    drop_params: bool | None = None
    """Whether parameters that the model does not support are omitted; null: true"""
    modify_params: bool | None = None
    """Whether parameters are adapted to what the model supports; null: true"""
    disable_vision: bool | None = None
    """Whether images are omitted even if the model supports them; null: false"""
    disable_stop_word: bool | None = None
    """Whether stop words are omitted from calls; null: false"""
    caching_prompt: bool | None = None
    """Whether the provider is asked to cache prompts; null: true"""
    log_completions: bool | None = None
    """Whether each call is written to a file in the sandbox; null: false"""
    log_completions_folder: Text | None = None
    """Directory of these files in the sandbox; null: `logs/completions`"""
    custom_tokenizer: Text | None = None
    """Tokenizer for counting tokens; null: that of the model"""
    native_tool_calling: bool | None = None
    """Whether the model's native tool calls are used, instead of calls as text; null: true"""
    force_string_serializer: bool | None = None
    """Whether messages are sent as plain text; null: as the model needs it"""
    inline_image_urls: bool | None = None
    """Whether images are sent inline instead of as URLs; null: as the model needs it"""
    reasoning_effort: Annotated[str, Meta(max_length=40)] | None = None
    """Reasoning effort: `low`, `medium`, `high`, `xhigh` or `none`; null: `high`"""
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    """Level of detail of the reasoning summary; null: the model's own"""
    enable_encrypted_reasoning: bool | None = None
    """Whether encrypted reasoning is requested; null: true"""
    prompt_cache_retention: Text | None = None
    """How long the provider keeps cached prompts, as in `24h`; null: `24h`"""
    extended_thinking_budget: Count | None = None
    """Token budget for reasoning; null: 200,000"""
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """Seed for reproducible answers, as far as the provider supports it; null: none"""
    litellm_extra_body: dict[str, Any] | None = None
    """Further members of each call's body; null: none"""
    safety_settings: list[dict[str, str]] | None = None
    """Safety settings of the provider, in its format; null: its own"""


class Llm(Struct, frozen=True, kw_only=True):
    """A language model, as users can save it as a profile."""

    model: str | None = None
    api_key: Secret | None = None
    base_url: str | None = None
    options: LlmOptions = LlmOptions()


class CondenserOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a long history is condensed; whether it is, and from which size, is in the settings."""

    condenser_kind: Literal["llm_summarizing", "no_op"] | None = None
    """`llm_summarizing` lets the model summarize old events, `no_op` condenses nothing; null:
    `llm_summarizing`"""
    max_tokens: Positive | None = None
    """Tokens of the history from which it is condensed; null: only `max_size` counts"""
    keep_first: Count | None = None
    """Number of first events that are always kept; null: 2"""
    minimum_progress: Fraction | None = None
    """Minimum part of the history that condensing has to remove, between 0 and 1; null: 0.1"""
    hard_context_reset_max_retries: Positive | None = None
    """Maximum retries of condensing a history that is too long for the model; null: 5"""
    hard_context_reset_context_scaling: Fraction | None = None
    """Factor by which the history shrinks with each of these retries, between 0 and 1; null: 0.8"""


class VerificationOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The critic that rates the agent's work, and the reaction to a low rating."""

    critic_enabled: bool | None = None
    """Whether a critic rates the agent's work; needs a key. Null: false"""
    critic_mode: Literal["finish_and_message", "all_actions"] | None = None
    """What it rates: messages and the end of the task, or all actions; null: `finish_and_message`
    """
    enable_iterative_refinement: bool | None = None
    """Whether the agent continues after a low rating; null: false"""
    critic_threshold: Part | None = None
    """Minimum rating of good work, 0 to 1; null: 0.6"""
    max_refinement_iterations: Few | None = None
    """Maximum number of continuations after a low rating; null: 3"""
    critic_server_url: Text | None = None
    """URL of the critic; null: the default one"""
    critic_model_name: Text | None = None
    """Model of the critic; null: the default one"""
    critic_api_key: Secret | None = None
    """Key of the critic; null: that of the language model"""


class ContextOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Additional instructions to the agent, and the skills it loads."""

    system_message_suffix: LongText | None = None
    """Text appended to the system prompt of every conversation, at most 65,536 characters; null: none"""
    user_message_suffix: LongText | None = None
    """Text appended to every message of the user, at most 65,536 characters; null: none"""
    load_user_skills: bool | None = None
    """Whether skills of the user are loaded; null: true"""
    load_project_skills: bool | None = None
    """Whether skills of the repository are loaded; null: true"""
    load_public_skills: bool | None = None
    """Whether published skills are loaded, if the operator allows that; null: true"""


class Tool(Struct, frozen=True, kw_only=True):
    """A tool of the agent, with its parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """Name of the tool; ignored if the agent server does not have it"""
    params: dict[str, Any] = {}
    """Parameters of the tool, by name"""


class AcpOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another agent in the sandbox, which uses the Agent Client Protocol; for `agent_kind` `acp`."""

    acp_server: AcpServer | None = None
    """Agent that the agent server can start, or `custom`; null: `claude-code`"""
    acp_command: Words | None = None
    """Command that starts it, at most 100 words; null or empty: that of the agent server"""
    acp_args: Words | None = None
    """Further arguments of the command, at most 100; null: none"""
    acp_model: Text | None = None
    """Model that it uses, by its own name for it; null: its default"""
    acp_session_mode: Text | None = None
    """Mode of its sessions; null: the one without requests for permission"""
    acp_prompt_timeout: Seconds | None = None
    """Seconds without activity after which a prompt fails; null: 1800"""
    acp_startup_timeout: Seconds | None = None
    """Time limit of its start in seconds; null: 90"""


class AgentOptions(AcpOptions, frozen=True, kw_only=True, omit_defaults=True):
    """All options of an agent except its model."""

    agent_kind: Literal["openhands", "llm", "acp"] | None = None
    """Kind of the agent: `openhands`, or `acp` for another one in the sandbox; `llm` and null mean
    `openhands`"""
    tools: Annotated[list[Tool], Meta(max_length=100)] | None = None
    """Tools of the agent, at most 100; null: the default ones"""
    enable_sub_agents: bool | None = None
    """Whether the agent may delegate work to sub-agents; null: false"""
    enable_switch_llm_tool: bool | None = None
    """Stored and returned only, for the agent server's own front end; null: false"""
    tool_concurrency_limit: Few | None = None
    """Maximum number of concurrent tool calls; they share files, so more than one may race. Null: 1"""
    persona: Annotated[str, Meta(min_length=1, max_length=65536)] | None = None
    """Text that replaces the agent's default persona; null: none"""
    agent_context: ContextOptions = ContextOptions()
    """Additional instructions to the agent, and the skills it loads"""
    condenser: CondenserOptions = CondenserOptions()
    """How a long history is condensed"""
    verification: VerificationOptions = VerificationOptions()
    """The critic of the agent"""


SECRET_OPTIONS: Final = frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "critic_api_key"}
)
"""Options that are never shown."""


def read_options[T](raw: Any, kind: type[T], *, loc: Sequence[str | int]) -> T:
    """Convert decoded JSON to options; raises InvalidRequest for invalid fields."""
    return convert(raw, kind, loc=loc, dec_hook=_to_secret)


def reveal_options(options: Struct) -> dict[str, Any]:
    """Return the options that are set as JSON, secrets revealed; for merging and for the agent."""
    revealed: dict[str, Any] = msgspec.to_builtins(options, enc_hook=Secret.reveal)
    return revealed


def llm_to_agent(llm: Llm, *, usage_id: str, stream: bool) -> dict[str, Any]:
    """Return a language model in the agent server's format, with its key revealed."""
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
    """Return all secrets of a language model."""
    options = [getattr(llm.options, name, None) for name in SECRET_OPTIONS]
    headers = (llm.options.extra_headers or {}).values()
    return [secret for secret in (llm.api_key, *options, *headers) if secret]


def without_secret_options(llm: Llm) -> Llm:
    """Return the model without its secret options."""
    hidden: dict[str, Any] = dict.fromkeys(SECRET_OPTIONS & {*LlmOptions.__struct_fields__})
    options = msgspec.structs.replace(llm.options, **hidden, extra_headers=None)
    return msgspec.structs.replace(llm, options=options)


def _to_secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str):
        raise ValueError("Expected `string`")
    if len(value) > _SECRET_MAX or has_control(value):
        raise ValueError("Expected a secret without control characters")
    return Secret(value)
