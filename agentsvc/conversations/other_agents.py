"""Agents that the agent server runs by the Agent Client Protocol, in place of its own. Pure."""

from typing import Any, Final

from agentsvc.domain import AcpOptions, AgentType, Llm, StartOrder, reveal_options
from agentsvc.settings import Settings

SERVER_TAG: Final = "acpserver"
"""The tag of a conversation that says which agent it has."""

DEFAULT_SERVER: Final = "claude-code"

_VARIABLES: Final = dict.fromkeys(("codex", "custom"), ("OPENAI_API_KEY", "OPENAI_BASE_URL"))
"""Where those look for a model that speak as OpenAI's do, which is what this server passes on."""


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
    """Return the environment by which another agent finds its model, as far as that can be said."""
    if server not in _VARIABLES or model.api_key is None:
        return {}
    key, url = _VARIABLES[server]
    base = {url: model.base_url} if model.base_url else {}
    return {key: model.api_key.reveal(), **base}
