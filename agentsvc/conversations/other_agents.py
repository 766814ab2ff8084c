"""Agents that the agent server runs by the Agent Client Protocol (ACP), not its own. Pure."""

from typing import Any, Final

import msgspec

from agentsvc.domain import AcpOptions, AgentType, Llm, StartOrder, reveal_options
from agentsvc.models import Upstream, upstream_of
from agentsvc.settings import Settings

SERVER_TAG: Final = "acpserver"
"""The tag of a conversation with the name of its ACP agent."""

DEFAULT_SERVER: Final = "claude-code"

_OPENAI_COMPATIBLE: Final = frozenset({"codex", "custom", "opencode"})
"""The ACP agents that can call OpenAI-compatible models, as the model proxy offers them."""


def acp_server_of(order: StartOrder, settings: Settings) -> str | None:
    """Return the name of the ACP agent of a conversation; None for the agent server's own agent.

    Replays and planners always use the agent server's own agent.
    """
    options = settings.agent_options
    is_special = order.replay or order.agent_type is AgentType.PLAN
    if options.agent_kind != "acp" or is_special:
        return None
    return options.acp_server or DEFAULT_SERVER


def tags_of(order: StartOrder, settings: Settings) -> dict[str, str]:
    """Return the initial tags of a conversation."""
    server = acp_server_of(order, settings)
    return {} if server is None else {SERVER_TAG: server}


def to_agent_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings with which an agent server starts an ACP agent."""
    given = reveal_options(settings.agent_options)
    chosen = {name: given[name] for name in AcpOptions.__struct_fields__ if name in given}
    # Conversations may share a sandbox, and an ACP agent stores files in its data directory.
    return {"agent_kind": "acp", "acp_isolate_data_dir": True, **chosen}


def variables_of(server: str, model: Llm) -> dict[str, str]:
    """Return the environment variables that tell an ACP agent its model; empty if not supported.

    The model must be OpenAI-compatible: any other key is for its own provider only. The name of the
    model is not a variable, because agent servers mask the values of all variables in their output.
    """
    upstream = upstream_of(model)
    if server not in _OPENAI_COMPATIBLE or upstream is None or upstream.api_key is None:
        return {}
    found = {"OPENAI_API_KEY": upstream.api_key.reveal()}
    if model.base_url:
        found["OPENAI_BASE_URL"] = upstream.base_url
    if server in _CONFIGURED:
        variable, write = _CONFIGURED[server]
        found[variable] = msgspec.json.encode(write(upstream)).decode()
    return found


def _codex(upstream: Upstream) -> dict[str, Any]:
    """Return a Codex configuration for a model.

    With a provider of its own, Codex does not try WebSockets first, which the proxy refuses.
    """
    provider = {
        "name": "agentsvc",
        "base_url": upstream.base_url,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    return {
        "model": upstream.model,
        "model_provider": "agentsvc",
        "model_providers": {"agentsvc": provider},
    }


def _opencode(upstream: Upstream) -> dict[str, Any]:
    """Return an OpenCode configuration with a model as the default."""
    name = f"agentsvc/{upstream.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": upstream.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {upstream.model: {}},
    }
    return {"model": name, "small_model": name, "provider": {"agentsvc": provider}}


_CONFIGURED: Final = {
    "codex": ("CODEX_CONFIG", _codex),
    "opencode": ("OPENCODE_CONFIG_CONTENT", _opencode),
}
"""The ACP agents that read their model only from a configuration: its variable and its content.

The key is in the environment variable that the configuration names.
"""
