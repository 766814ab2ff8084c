"""The body of the request that starts a conversation at an agent server. Pure.

Every setting that matters at run time takes effect here; this is the only place where secrets are
revealed on their way to the agent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import BadRequest, Secret, dashed, now
from agentsvc.conversations.model import DEFAULT_CONDENSER_SIZE, DEFAULT_MAX_ITERATIONS
from agentsvc.conversations.other_agents import (
    acp_server_of,
    tags_of,
    to_agent_settings,
    variables_of,
)
from agentsvc.conversations.secret_lookup import SecretLookup
from agentsvc.conversations.starting.prompts import PLANNER_SUFFIX
from agentsvc.domain import (
    AgentType,
    Content,
    ContentKind,
    Llm,
    McpConfig,
    Message,
    StartOrder,
    VerificationOptions,
    llm_to_agent,
    reveal_options,
)
from agentsvc.domain import to_agent as to_agent_mcp
from agentsvc.settings import Settings, get_profile, is_reserved, llm_of

DEFAULT_CRITIC_THRESHOLD: Final = 0.6
DEFAULT_REFINEMENTS: Final = 3
SEARCH_SERVER_URL: Final = "https://mcp.tavily.com/mcp/"
SEARCH_KEY_PREFIX: Final = "tvly-"

_WORK_TOOLS: Final = ("terminal", "file_editor", "task_tracker", "browser_tool_set")
_SUB_AGENT_TOOL: Final = "task_tool_set"
_PLAN_TOOLS: Final = ("glob", "grep", "planning_file_editor")


class AgentInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of the request that starts a conversation at an agent server."""

    conversation_id: str
    order: StartOrder
    settings: Settings
    working_dir: str
    first_message: Message | None
    lookups: Mapping[str, SecretLookup]
    """The secrets that the sandbox may look up, by name."""
    usable_tools: Sequence[str] | None
    """The tools that the agent server offers; None if it does not report them."""
    has_public_skills: bool
    hook_config: Mapping[str, Any] | None
    recording: Llm | None = None
    """The stand-in for the model while a recording is replayed; None otherwise."""
    model: Llm | None = None
    """The model proxy as the sandbox calls it; None to pass on the model of order and settings."""
    title_profile: str | None = None
    """The model profile for titles, saved in the sandbox; None for the agent's own model."""


def require_model(order: StartOrder, settings: Settings) -> str:
    """Return the name of the model for a conversation; raises BadRequest if none is configured.

    Raises NotFound if the user no longer has the named model profile.
    """
    saved = get_profile(settings, order.llm_profile) if order.llm_profile else None
    model = order.llm_model or (saved or llm_of(settings)).model
    if not model:
        raise BadRequest(
            "No language model is configured. Set `llm_model` (and `llm_api_key`) in the settings,"
            " or give `llm_model` with the request"
        )
    return model


def check_secret_names(order: StartOrder) -> None:
    """Raise BadRequest for a secret with a name that is reserved for the sandbox."""
    for name in order.secrets:
        if is_reserved(name):
            raise BadRequest(
                f"A secret cannot be called `{name}`, because the sandbox uses that name."
                " Choose another one"
            )


def make_agent_body(inputs: AgentInputs) -> dict[str, Any]:
    """Return the JSON body of the agent server's request that starts a conversation."""
    order, settings = inputs.order, inputs.settings
    body: dict[str, Any] = {
        "conversation_id": dashed(inputs.conversation_id),
        "workspace": {"kind": "LocalWorkspace", "working_dir": inputs.working_dir},
        **_agent_or_settings(inputs),
        "max_iterations": len(order.replay)
        + (order.max_iterations or settings.max_iterations or DEFAULT_MAX_ITERATIONS),
        "confirmation_policy": confirmation_policy(settings),
        "security_analyzer": security_analyzer(settings),
        "stuck_detection": True,
        "secrets": _secrets(inputs),
        "autotitle": order.title is None,
        "tags": tags_of(order, settings),
    }
    if inputs.first_message is not None:
        body["initial_message"] = to_agent_message(inputs.first_message)
    if inputs.title_profile is not None:
        body["title_llm_profile"] = inputs.title_profile
    if inputs.hook_config is not None:
        body["hook_config"] = dict(inputs.hook_config)
    if order.plugins:
        body["plugins"] = [
            {"source": plugin.source, "ref": plugin.ref, "repo_path": plugin.repo_path}
            for plugin in order.plugins
        ]
    return body


def to_agent_message(message: Message) -> dict[str, Any]:
    """Return a message in the format of the agent server."""
    return {
        "role": message.role,
        "content": [_content(item) for item in message.content],
    }


def text_of(content: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts and the image URLs in a message's content, one a line."""
    parts = [text for part in content for text in (part.get("text"), *part.get("image_urls", ()))]
    return "\n".join(text for text in parts if text)


def confirmation_policy(settings: Settings) -> dict[str, Any]:
    """Return the policy on which actions of the agent need confirmation."""
    if not settings.confirmation_mode:
        return {"kind": "NeverConfirm"}
    if settings.security_analyzer == "llm":
        return {"kind": "ConfirmRisky"}
    return {"kind": "AlwaysConfirm"}


def security_analyzer(settings: Settings) -> dict[str, Any] | None:
    """Return the analyzer of the risk of actions; None unless the setting is `llm`."""
    return {"kind": "LLMSecurityAnalyzer"} if settings.security_analyzer == "llm" else None


def chosen_model(order: StartOrder, settings: Settings) -> Llm:
    """Return the language model of a conversation; raises BadRequest if none is configured.

    Another agent (ACP) needs none: its result may lack a model name.
    """
    chosen = llm_of(settings)
    if acp_server_of(order, settings) and not (order.llm_model or order.llm_profile):
        return chosen
    model = require_model(order, settings)
    if order.llm_profile:
        saved = get_profile(settings, order.llm_profile)
        # A profile without a key is used with the key of the settings.
        chosen = msgspec.structs.replace(saved, api_key=saved.api_key or chosen.api_key)
    return msgspec.structs.replace(chosen, model=model)


def _model(inputs: AgentInputs, *, usage_id: str, stream: bool) -> dict[str, Any]:
    model = inputs.model or chosen_model(inputs.order, inputs.settings)
    return llm_to_agent(model, usage_id=usage_id, stream=stream)


def _agent_or_settings(inputs: AgentInputs) -> dict[str, Any]:
    order, settings = inputs.order, inputs.settings
    if acp_server_of(order, settings) is None:
        return {"agent": _agent(inputs)}
    shared = {
        "mcp_config": _mcp(order.mcp_config or settings.mcp_config, settings),
        "agent_context": _context(inputs),
    }
    return {"agent_settings": {**to_agent_settings(settings), **shared}}


def _agent(inputs: AgentInputs) -> dict[str, Any]:
    order, settings = inputs.order, inputs.settings
    options = settings.agent_options
    agent = {
        "kind": "Agent",
        "llm": _model(inputs, usage_id="agent", stream=True)
        if inputs.recording is None
        else llm_to_agent(inputs.recording, usage_id="agent", stream=False),
        "tools": _tools(inputs),
        "mcp_config": _mcp(order.mcp_config or settings.mcp_config, settings),
        "condenser": _condenser(inputs),
        "agent_context": _context(inputs),
    }
    optional = {
        "tool_concurrency_limit": options.tool_concurrency_limit,
        "persona": options.persona,
        "critic": _critic(options.verification, None if inputs.model else settings.llm_api_key),
    }
    return agent | {name: value for name, value in optional.items() if value is not None}


def _tools(inputs: AgentInputs) -> list[dict[str, Any]]:
    """Return the configured tools that the agent server offers."""
    options = inputs.settings.agent_options
    is_planner = inputs.order.agent_type is AgentType.PLAN
    names = _PLAN_TOOLS if is_planner else _WORK_TOOLS
    wanted: dict[str, dict[str, Any]] = {name: {} for name in names}
    if options.tools is not None and not is_planner:
        wanted = {tool.name: tool.params for tool in options.tools}
    elif options.enable_sub_agents and not is_planner:
        wanted[_SUB_AGENT_TOOL] = {}
    usable = wanted if inputs.usable_tools is None else set(inputs.usable_tools)
    return [{"name": name, "params": params} for name, params in wanted.items() if name in usable]


def _condenser(inputs: AgentInputs) -> dict[str, Any] | None:
    settings = inputs.settings
    options = settings.agent_options.condenser
    if not settings.enable_default_condenser or options.condenser_kind == "no_op":
        return None
    tuned = reveal_options(options)
    tuned.pop("condenser_kind", None)
    return {
        "kind": "LLMSummarizingCondenser",
        "llm": _model(inputs, usage_id="condenser", stream=False),
        "max_size": settings.condenser_max_size or DEFAULT_CONDENSER_SIZE,
        "keep_first": 2,
        **tuned,
    }


def _critic(options: VerificationOptions, model_key: Secret | None) -> dict[str, Any] | None:
    """Return the critic that rates the agent's work; None if disabled, or without a key."""
    key = options.critic_api_key or model_key
    if not options.critic_enabled or not key:
        return None
    named = {"server_url": options.critic_server_url, "model_name": options.critic_model_name}
    refinement = {
        "success_threshold": DEFAULT_CRITIC_THRESHOLD
        if options.critic_threshold is None
        else options.critic_threshold,
        "max_iterations": options.max_refinement_iterations or DEFAULT_REFINEMENTS,
    }
    return {
        "kind": "APIBasedCritic",
        "api_key": key.reveal(),
        "mode": options.critic_mode or "finish_and_message",
        "iterative_refinement": refinement if options.enable_iterative_refinement else None,
        **{name: value for name, value in named.items() if value},
    }


def _context(inputs: AgentInputs) -> dict[str, Any]:
    order, options = inputs.order, inputs.settings.agent_options.agent_context
    is_planner = order.agent_type is AgentType.PLAN
    suffixes = [
        options.system_message_suffix or "",
        order.system_message_suffix or "",
        PLANNER_SUFFIX if is_planner else "",
    ]
    context = {
        "system_message_suffix": "\n\n".join(part for part in suffixes if part) or None,
        "load_project_skills": options.load_project_skills is not False,
        "load_user_skills": options.load_user_skills is not False,
        # Public skills need the internet, which only the operator can allow.
        "load_public_skills": inputs.has_public_skills and options.load_public_skills is not False,
        "disabled_skills": list(inputs.settings.disabled_skills or ()),
        "current_datetime": now().isoformat(),
    }
    if options.user_message_suffix:
        context["user_message_suffix"] = options.user_message_suffix
    return context


def _mcp(config: McpConfig | None, settings: Settings) -> dict[str, Any]:
    servers = to_agent_mcp(config) if config else {}
    key = settings.search_api_key
    if key and key.reveal().startswith(SEARCH_KEY_PREFIX):
        servers.setdefault(
            "tavily",
            {
                "url": SEARCH_SERVER_URL,
                "transport": "streamable-http",
                "headers": {"Authorization": f"Bearer {key.reveal()}"},
            },
        )
    return servers


def _secrets(inputs: AgentInputs) -> dict[str, Any]:
    secrets: dict[str, Any] = {
        name: {
            "kind": "LookupSecret",
            "url": lookup.url,
            "headers": {lookup.header: lookup.key.reveal()},
            "description": lookup.description,
        }
        for name, lookup in inputs.lookups.items()
    }
    server = acp_server_of(inputs.order, inputs.settings)
    if server is not None:
        model = inputs.model or chosen_model(inputs.order, inputs.settings)
        for name, text in variables_of(server, model).items():
            secrets.setdefault(name, {"kind": "StaticSecret", "value": text, "description": None})
    for name, value in inputs.order.secrets.items():
        secrets[name] = {"kind": "StaticSecret", "value": value.reveal(), "description": None}
    return secrets


def _content(item: Content) -> dict[str, Any]:
    if item.kind is ContentKind.TEXT:
        return {"type": "text", "text": item.text, "cache_prompt": item.cache_prompt}
    return {
        "type": "image",
        "image_urls": list(item.image_urls),
        "cache_prompt": item.cache_prompt,
    }
