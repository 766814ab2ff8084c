"""The settings schema for user interfaces: sections, fields, labels, choices.

The defaults are what a user without settings has, and are not repeated here.
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
    """One of the values a field takes."""

    value: str
    """What is stored"""
    label: str
    """What a page shows"""


class Field(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """One setting; its key is a path into the settings."""

    key: str
    """Path of the setting in `agent_settings` or `conversation_settings`, its steps joined by dots
    """
    label: str
    """What a page calls the setting"""
    description: str | None
    """What it does, in a sentence; null where the label says it"""
    section: str
    """Key of the section it is in"""
    section_label: str
    """What a page calls that section"""
    kind: str
    """JSON type of the value: `string`, `integer`, `number`, `boolean`, `array` or `object`"""
    default: Any
    """What counts while the setting is not set; null where that is the agent server's or the
    provider's choice"""
    prominence: str
    """How a page shows it: `critical` first, then `major`, `minor` folded away"""
    needs: tuple[str, ...]
    """Keys of the settings that have to be true for this one to matter"""
    is_secret: bool
    """Whether the value is a secret, which is never shown"""
    choices: list[Choice]
    """The values it takes; empty if there are more than can be listed"""
    variant: str | None
    """Kind of agent it is for; null for every kind"""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one part of a page."""

    key: str
    """Name of the section for programs"""
    label: str
    """What a page calls the section"""
    fields: list[Field]
    """The settings in it, in the order a page shows them"""
    variant: str | None
    """Kind of agent it is for; null for every kind"""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one kind."""

    model_name: str
    """What the settings are called"""
    sections: list[Section]
    """The sections in the order a page shows them"""


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
        _Entry("tools", "Tools", "Tools of the agent; not set means the usual ones",
               kind="array", prominence="major"),
        _flag("enable_sub_agents", "Sub-agents", "Let the agent hand work to agents of its own",
              prominence="major"),
        _whole("tool_concurrency_limit", "Parallel tool calls",
               "How many tools run at a time; they share files, so more than one may race",
               prominence="major"),
        _object("mcp_config", "MCP servers", "Tool servers of the agent, by name"),
        _text("persona", "Persona", "Text that replaces the agent's own idea of who it is"),
    ),
    ("llm", "LLM"): (
        _text("llm.model", "Model", "Provider and name of the model", prominence="critical"),
        _text("llm.api_key", "API Key", "Key of the model", prominence="critical", is_secret=True),
        _text("llm.base_url", "Base URL", "Where the model is, if not at its usual place",
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
        _whole("llm.num_retries", "Retries", "How often a failed call is tried again"),
        _number("llm.retry_multiplier", "Retry Multiplier", "How fast the wait grows"),
        _whole("llm.retry_min_wait", "Least Wait", "Seconds before the first retry"),
        _whole("llm.retry_max_wait", "Longest Wait", "Seconds between two retries at most"),
        _whole("llm.timeout", "Timeout", "Seconds one call may take"),
        _number("llm.stream_idle_timeout", "Stream Idle Timeout",
                "Seconds a streamed answer may pause"),
        _whole("llm.max_message_chars", "Longest Message", "Characters of an event that are sent"),
        _number("llm.temperature", "Temperature", "0 for steady answers, more for varied ones"),
        _number("llm.top_p", "Top P", "Share of likely words to choose from, 0 to 1"),
        _number("llm.top_k", "Top K", "Number of likely words to choose from"),
        _whole("llm.max_input_tokens", "Input Tokens", "Most tokens the model reads"),
        _whole("llm.max_output_tokens", "Output Tokens", "Most tokens the model writes"),
        _text("llm.model_canonical_name", "Canonical Name",
              "Name of the model by which its abilities are looked up"),
        _text("llm.api_mode", "API Mode", "Which of the model's APIs is called",
              choices=("auto", "chat", "responses")),
        _object("llm.capability_overrides", "Abilities", "Abilities that are not looked up"),
        _object("llm.extra_headers", "Extra Headers", "Headers of each call"),
        _number("llm.input_cost_per_token", "Input Cost", "US dollars for a token that is read"),
        _number("llm.output_cost_per_token", "Output Cost", "US dollars for a token written"),
        _text("llm.ollama_base_url", "Ollama Base URL"),
        _flag("llm.drop_params", "Drop Parameters", "Leave out what the model does not know"),
        _flag("llm.modify_params", "Modify Parameters", "Adapt what the model does not take"),
        _flag("llm.disable_vision", "Disable Vision", "Send no images"),
        _flag("llm.disable_stop_word", "Disable Stop Word", "Send no stop words"),
        _flag("llm.caching_prompt", "Cache Prompts", "Let the provider cache prompts"),
        _flag("llm.log_completions", "Log Completions", "Write each call to a file"),
        _text("llm.log_completions_folder", "Log Folder", "Directory of these files",
              needs=("llm.log_completions",)),
        _text("llm.custom_tokenizer", "Tokenizer", "Tokenizer that counts tokens"),
        _flag("llm.native_tool_calling", "Native Tool Calls", "Use the model's own tool calls"),
        _flag("llm.force_string_serializer", "Plain Text", "Send content as plain text"),
        _flag("llm.inline_image_urls", "Inline Images", "Send images instead of their URLs"),
        _text("llm.reasoning_effort", "Reasoning Effort", "How hard the model thinks",
              choices=("low", "medium", "high", "xhigh", "none")),
        _text("llm.reasoning_summary", "Reasoning Summary", "How much of the thinking is told",
              choices=("auto", "concise", "detailed")),
        _flag("llm.enable_encrypted_reasoning", "Encrypted Reasoning",
              "Ask for the thinking in encrypted form"),
        _text("llm.prompt_cache_retention", "Cache Retention", "How long prompts are cached"),
        _whole("llm.extended_thinking_budget", "Thinking Budget", "Tokens for thinking"),
        _whole("llm.seed", "Seed", "Start value of randomness"),
        _object("llm.litellm_extra_body", "Extra Body", "Further members of each call"),
    ),
    ("agent_context", "Memory"): (
        _text("agent_context.system_message_suffix", "Instructions",
              "Text behind the system message of each conversation"),
        _text("agent_context.user_message_suffix", "Reminder", "Text behind each message"),
        _flag("agent_context.load_user_skills", "User Skills", "Load skills of the home directory"),
        _flag("agent_context.load_project_skills", "Project Skills",
              "Load skills of the repository"),
    ),
    ("condenser", "Condenser"): (
        _flag("condenser.enabled", "Shorten Long Histories",
              "Summarize what is long past, so that it fits the model", prominence="critical"),
        _text("condenser.condenser_kind", "Kind", "How it is shortened",
              choices=("llm_summarizing", "no_op"), needs=_CONDENSER_ON),
        _whole("condenser.max_size", "Size", "Events from which on it is shortened",
               needs=_CONDENSER_ON),
        _whole("condenser.max_tokens", "Tokens", "Tokens from which on it is shortened",
               needs=_CONDENSER_ON),
        _whole("condenser.keep_first", "First Events", "Events at the beginning that stay",
               needs=_CONDENSER_ON),
        _number("condenser.minimum_progress", "Least Progress", "Part that must become shorter",
                needs=_CONDENSER_ON),
        _whole("condenser.hard_context_reset_max_retries", "Hard Resets",
               "Tries to shorten what does not fit at all", needs=_CONDENSER_ON),
        _number("condenser.hard_context_reset_context_scaling", "Hard Reset Scaling",
                "Factor by which each of them shortens more", needs=_CONDENSER_ON),
    ),
    ("verification", "Verification"): (
        _flag("verification.critic_enabled", "Critic", "Let a critic rate the work",
              prominence="critical"),
        _text("verification.critic_mode", "Critic Mode", "What the critic rates",
              choices=("finish_and_message", "all_actions"), needs=_CRITIC_ON),
        _flag("verification.enable_iterative_refinement", "Refinement",
              "Try again after a bad mark", prominence="critical", needs=_CRITIC_ON),
        _number("verification.critic_threshold", "Threshold", "Mark that is good enough, 0 to 1",
                needs=_REFINEMENT_ON),
        _whole("verification.max_refinement_iterations", "Refinements", "How often it tries again",
               needs=_REFINEMENT_ON),
        _text("verification.critic_server_url", "Critic URL", "Where the critic is",
              needs=_CRITIC_ON),
        _text("verification.critic_model_name", "Critic Model", "Model of the critic",
              needs=_CRITIC_ON),
        _text("verification.critic_api_key", "Critic API Key",
              "Key of the critic; not set means that of the model",
              prominence="critical", needs=_CRITIC_ON, is_secret=True),
    ),
}  # fmt: skip

_CONVERSATION: Final = {
    ("general", "General"): (
        _whole(
            "max_iterations", "Max iterations", "Steps after which a run stops", prominence="major"
        ),
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
            "Who rates the risk of an action; with one, only risky actions are asked about",
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
