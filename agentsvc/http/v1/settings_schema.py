"""The settings schema for user interfaces: sections, fields, labels, choices.

The defaults are read from the settings of a new user instead of repeated here.
"""

from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import copy_to
from agentsvc.http.v1.types_agent_settings import show_agent_settings, show_conversation_settings
from agentsvc.settings import Settings

_VARIANT: Final = "openhands"
_NAMES: Final = {"kind": "value_type", "needs": "depends_on", "is_secret": "secret"}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An allowed value of a setting."""

    value: str
    """Stored value"""
    label: str
    """Label of the value"""


class Field(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A setting; its key is a path into the settings."""

    key: str
    """Path of the setting in `agent_settings` or `conversation_settings`, with dots between its
    parts"""
    label: str
    """Label of the setting"""
    description: str | None
    """Description of the setting; null if the label is enough"""
    section: str
    """Key of the section of the setting"""
    section_label: str
    """Label of that section"""
    kind: str
    """JSON type of the value: `string`, `integer`, `number`, `boolean`, `array` or `object`"""
    default: Any
    """Default value; null if the agent server or the provider chooses it"""
    prominence: str
    """How to show the setting: `critical` first, then `major`, `minor` collapsed"""
    needs: tuple[str, ...]
    """Keys of the settings that have to be true for this one to have an effect"""
    is_secret: bool
    """Whether the value is a secret, which is never shown"""
    choices: list[Choice]
    """Allowed values; empty if any value of the type is allowed"""
    variant: str | None
    """Kind of agent that has the setting; null for every kind"""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a settings page."""

    key: str
    """Key of the section"""
    label: str
    """Label of the section"""
    fields: list[Field]
    """The settings of the section, in display order"""
    variant: str | None
    """Kind of agent that has the section; null for every kind"""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of the agent or conversation settings."""

    model_name: str
    """Name of the settings"""
    sections: list[Section]
    """The sections, in display order"""


class _Entry(msgspec.Struct, frozen=True):
    key: str
    label: str
    description: str | None = None
    kind: str = "string"
    prominence: str = "minor"
    needs: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    is_secret: bool = False


_text: Final = _Entry
_whole: Final = partial(_Entry, kind="integer")
_number: Final = partial(_Entry, kind="number")
_flag: Final = partial(_Entry, kind="boolean")
_object: Final = partial(_Entry, kind="object")

_CONDENSER_ON: Final = ("condenser.enabled",)
_CRITIC_ON: Final = ("verification.critic_enabled",)
_REFINEMENT_ON: Final = (*_CRITIC_ON, "verification.enable_iterative_refinement")

_AGENT: Final = {
    ("general", "General"): (
        _Entry("tools", "Tools", "Tools of the agent; not set means the default tools",
               kind="array", prominence="major"),
        _flag("enable_sub_agents", "Sub-agents", "Let the agent delegate work to sub-agents",
              prominence="major"),
        _whole("tool_concurrency_limit", "Parallel tool calls",
               "Maximum number of parallel tool calls; they share files, so more than one may race",
               prominence="major"),
        _object("mcp_config", "MCP servers", "Tool servers of the agent, by name"),
        _text("persona", "Persona", "Text that replaces the persona in the agent's system prompt"),
    ),
    ("llm", "LLM"): (
        _text("llm.model", "Model", "Provider and name of the model", prominence="critical"),
        _text("llm.api_key", "API Key", "Key of the model", prominence="critical", is_secret=True),
        _text("llm.base_url", "Base URL", "URL of the model's API, if not the provider's default",
              prominence="major"),
        _text("llm.api_version", "API Version", "Version of the API, for Azure"),
        _text("llm.aws_access_key_id", "AWS Access Key ID", is_secret=True),
        _text("llm.aws_secret_access_key", "AWS Secret Access Key", is_secret=True),
        _text("llm.aws_session_token", "AWS Session Token", is_secret=True),
        _text("llm.aws_region_name", "AWS Region Name"),
        _text("llm.aws_profile_name", "AWS Profile Name"),
        _text("llm.aws_role_name", "AWS Role Name"),
        _text("llm.aws_session_name", "AWS Session Name"),
        _text("llm.aws_bedrock_runtime_endpoint", "AWS Bedrock Runtime Endpoint"),
        _text("llm.openrouter_site_url", "OpenRouter Site URL"),
        _text("llm.openrouter_app_name", "OpenRouter App Name"),
        _whole("llm.num_retries", "Retries", "Maximum number of retries of a failed call"),
        _number("llm.retry_multiplier", "Retry Multiplier", "Factor of the wait between retries"),
        _whole("llm.retry_min_wait", "Minimum Wait", "Seconds before the first retry"),
        _whole("llm.retry_max_wait", "Maximum Wait", "Maximum seconds between two retries"),
        _whole("llm.timeout", "Timeout", "Maximum seconds of one call"),
        _number("llm.stream_idle_timeout", "Stream Idle Timeout",
                "Maximum seconds without data in a streamed response"),
        _whole("llm.max_message_chars", "Maximum Message", "Maximum characters sent per event"),
        _number("llm.temperature", "Temperature", "0 for steady answers, more for varied ones"),
        _number("llm.top_p", "Top P", "Share of likely tokens to sample from, 0 to 1"),
        _number("llm.top_k", "Top K", "Number of likely tokens to sample from"),
        _whole("llm.max_input_tokens", "Input Tokens", "Maximum number of input tokens"),
        _whole("llm.max_output_tokens", "Output Tokens", "Maximum number of output tokens"),
        _text("llm.model_canonical_name", "Canonical Name",
              "Name of the model by which its capabilities are looked up"),
        _text("llm.api_mode", "API Mode", "Which of the model's APIs to call",
              choices=("auto", "chat", "responses")),
        _object("llm.capability_overrides", "Capabilities", "Overrides of looked-up capabilities"),
        _object("llm.extra_headers", "Extra Headers", "Additional headers of each call"),
        _number("llm.input_cost_per_token", "Input Cost", "US dollars per input token"),
        _number("llm.output_cost_per_token", "Output Cost", "US dollars per output token"),
        _text("llm.ollama_base_url", "Ollama Base URL"),
        _flag("llm.drop_params", "Drop Parameters", "Leave out unsupported parameters"),
        _flag("llm.modify_params", "Modify Parameters", "Adapt unsupported parameters"),
        _flag("llm.disable_vision", "Disable Vision", "Send no images"),
        _flag("llm.disable_stop_word", "Disable Stop Word", "Send no stop words"),
        _flag("llm.caching_prompt", "Cache Prompts", "Let the provider cache prompts"),
        _flag("llm.log_completions", "Log Completions", "Write each call to a file"),
        _text("llm.log_completions_folder", "Log Folder", "Directory of these files",
              needs=("llm.log_completions",)),
        _text("llm.custom_tokenizer", "Tokenizer", "Tokenizer for counting tokens"),
        _flag("llm.native_tool_calling", "Native Tool Calls", "Use the model's own tool calls"),
        _flag("llm.force_string_serializer", "Plain Text", "Send content as plain text"),
        _flag("llm.inline_image_urls", "Inline Images", "Send images instead of their URLs"),
        _text("llm.reasoning_effort", "Reasoning Effort", "How hard the model thinks",
              choices=("low", "medium", "high", "xhigh", "none")),
        _text("llm.reasoning_summary", "Reasoning Summary", "Detail of the reasoning summary",
              choices=("auto", "concise", "detailed")),
        _flag("llm.enable_encrypted_reasoning", "Encrypted Reasoning",
              "Request the reasoning in encrypted form"),
        _text("llm.prompt_cache_retention", "Cache Retention", "How long prompts are cached"),
        _whole("llm.extended_thinking_budget", "Thinking Budget", "Maximum tokens for thinking"),
        _whole("llm.seed", "Seed", "Random seed"),
        _object("llm.litellm_extra_body", "Extra Body", "Additional fields in the body of a call"),
    ),
    ("agent_context", "Memory"): (
        _text("agent_context.system_message_suffix", "Instructions",
              "Text appended to the system message of each conversation"),
        _text("agent_context.user_message_suffix", "Reminder", "Text appended to each message"),
        _flag("agent_context.load_user_skills", "User Skills", "Load skills of the home directory"),
        _flag("agent_context.load_project_skills", "Project Skills",
              "Load skills of the repository"),
    ),
    ("condenser", "Condenser"): (
        _flag("condenser.enabled", "Condense Long Histories",
              "Summarize old events so that the history fits the model", prominence="critical"),
        _text("condenser.condenser_kind", "Kind", "How the history is condensed",
              choices=("llm_summarizing", "no_op"), needs=_CONDENSER_ON),
        _whole("condenser.max_size", "Size", "Number of events above which it condenses",
               needs=_CONDENSER_ON),
        _whole("condenser.max_tokens", "Tokens", "Number of tokens above which it condenses",
               needs=_CONDENSER_ON),
        _whole("condenser.keep_first", "First Events", "Number of first events to keep",
               needs=_CONDENSER_ON),
        _number("condenser.minimum_progress", "Minimum Progress", "Minimum part to condense",
                needs=_CONDENSER_ON),
        _whole("condenser.hard_context_reset_max_retries", "Hard Resets",
               "Maximum retries to condense a history that does not fit", needs=_CONDENSER_ON),
        _number("condenser.hard_context_reset_context_scaling", "Hard Reset Scaling",
                "Context length factor of each of these retries", needs=_CONDENSER_ON),
    ),
    ("verification", "Verification"): (
        _flag("verification.critic_enabled", "Critic", "Let a critic rate the work",
              prominence="critical"),
        _text("verification.critic_mode", "Critic Mode", "What the critic rates",
              choices=("finish_and_message", "all_actions"), needs=_CRITIC_ON),
        _flag("verification.enable_iterative_refinement", "Refinement",
              "Retry after a low score", prominence="critical", needs=_CRITIC_ON),
        _number("verification.critic_threshold", "Threshold", "Minimum score, 0 to 1",
                needs=_REFINEMENT_ON),
        _whole("verification.max_refinement_iterations", "Refinements", "Maximum number of retries",
               needs=_REFINEMENT_ON),
        _text("verification.critic_server_url", "Critic URL", "URL of the critic",
              needs=_CRITIC_ON),
        _text("verification.critic_model_name", "Critic Model", "Model of the critic",
              needs=_CRITIC_ON),
        _text("verification.critic_api_key", "Critic API Key",
              "Key of the critic; not set means the key of the model",
              prominence="critical", needs=_CRITIC_ON, is_secret=True),
    ),
}  # fmt: skip

_CONVERSATION: Final = {
    ("general", "General"): (
        _whole("max_iterations", "Max iterations", "Maximum steps of a run", prominence="major"),
    ),
    ("verification", "Verification"): (
        _flag(
            "confirmation_mode",
            "Confirmation mode",
            "Ask before the agent acts",
            prominence="critical",
        ),
        _text(
            "security_analyzer",
            "Security analyzer",
            "Rates the risk of actions; with `llm` the agent asks only before risky actions",
            prominence="major",
            needs=("confirmation_mode",),
            choices=("llm", "none"),
        ),
    ),
}


def _schema(
    name: str,
    sections: dict[tuple[str, str], tuple[_Entry, ...]],
    defaults: dict[str, Any],
    variant: str | None,
) -> Schema:
    return Schema(
        model_name=name,
        sections=[
            Section(
                key=key,
                label=label,
                fields=[_field(entry, key, label, defaults, variant) for entry in entries],
                variant=None if key == "general" else variant,
            )
            for (key, label), entries in sections.items()
        ],
    )


def _field(
    entry: _Entry, section: str, label: str, defaults: dict[str, Any], variant: str | None
) -> Field:
    default: Any = defaults
    for step in entry.key.split("."):
        default = default[step]
    return copy_to(
        Field,
        entry,
        section=section,
        section_label=label,
        default=default,
        choices=[Choice(value=value, label=value) for value in entry.choices],
        variant=variant,
    )


AGENT_SCHEMA: Final = _schema("AgentSettings", _AGENT, show_agent_settings(Settings()), _VARIANT)
CONVERSATION_SCHEMA: Final = _schema(
    "ConversationSettings", _CONVERSATION, show_conversation_settings(Settings()), None
)
