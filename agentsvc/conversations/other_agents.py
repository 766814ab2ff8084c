"""Agents that the agent server runs by the Agent Client Protocol, in place of its own. Pure."""

from typing import Any, Final

import msgspec

from agentsvc.domain import AcpOptions, AgentType, Llm, StartOrder, reveal_options
from agentsvc.models import Upstream, upstream_of
from agentsvc.settings import Settings

SERVER_TAG: Final = "acpserver"
"""The tag of a conversation that says which agent it has."""

DEFAULT_SERVER: Final = "claude-code"

_SPEAK_AS_OPENAI: Final = frozenset({"codex", "custom", "opencode"})
"""Which can ask a model that speaks as OpenAI's do, which is what this server passes on."""


def acp_server_of(order: StartOrder, settings: Settings) -> str | None:
    """Return which other agent a conversation gets; None for the agent server's own.

    A recording is replayed, and a plan made, by that one.
    """
    options = settings.agent_options
    is_special = order.replay or order.agent_type is AgentType.PLAN
    if options.agent_kind != "acp" or is_special:
        return None
    return options.acp_server or DEFAULT_SERVER


def tags_of(order: StartOrder, settings: Settings) -> dict[str, str]:
    """Return the tags that a conversation begins with."""
    server = acp_server_of(order, settings)
    return {} if server is None else {SERVER_TAG: server}


def to_agent_settings(settings: Settings) -> dict[str, Any]:
    """Return what an agent server starts another agent from."""
    given = reveal_options(settings.agent_options)
    chosen = {name: given[name] for name in AcpOptions.__struct_fields__ if name in given}
    # Conversations may share a sandbox, and each of these agents keeps files of its own.
    return {"agent_kind": "acp", "acp_isolate_data_dir": True, **chosen}


def variables_of(server: str, model: Llm) -> dict[str, str]:
    """Return the environment by which another agent finds its model, as far as that can be said.

    A model that speaks otherwise has none: its key is for its own provider only. The name of the
    model is no variable: an agent server hides the values of all of them in what it shows.
    """
    asked = upstream_of(model)
    if server not in _SPEAK_AS_OPENAI or asked is None or asked.api_key is None:
        return {}
    found = {"OPENAI_API_KEY": asked.api_key.reveal()}
    if model.base_url:
        found["OPENAI_BASE_URL"] = asked.base_url
    if server in _CONFIGURED:
        variable, write = _CONFIGURED[server]
        found[variable] = msgspec.json.encode(write(asked)).decode()
    return found


def _codex(asked: Upstream) -> dict[str, Any]:
    """Return a configuration by which Codex asks this model.

    As a provider of its own it is not asked over WebSockets first, which are refused here.
    """
    provider = {
        "name": "agentsvc",
        "base_url": asked.base_url,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    return {
        "model": asked.model,
        "model_provider": "agentsvc",
        "model_providers": {"agentsvc": provider},
    }


def _opencode(asked: Upstream) -> dict[str, Any]:
    """Return a configuration by which OpenCode asks this model, unless it is told another one."""
    name = f"agentsvc/{asked.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": asked.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {asked.model: {}},
    }
    return {"model": name, "small_model": name, "provider": {"agentsvc": provider}}


_CONFIGURED: Final = {
    "codex": ("CODEX_CONFIG", _codex),
    "opencode": ("OPENCODE_CONFIG_CONTENT", _opencode),
}
"""Which read from a configuration alone where their model is, and the variable that has it.

The key is where their environment says.
"""
