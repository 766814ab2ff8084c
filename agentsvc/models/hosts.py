"""Hosts of language model providers, so that a sandbox with a restricted network reaches its model.

Pure. Providers whose host depends on a region or an account are omitted: their users configure
a base URL, or the operator lists the host.
"""

from typing import Final
from urllib.parse import urlsplit

BASES: Final = {
    "anthropic": "https://api.anthropic.com/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "sambanova": "https://api.sambanova.ai/v1",
    "xai": "https://api.x.ai/v1",
}
"""The base URLs of providers with OpenAI-compatible chat completions."""

OWN_SERVERS: Final = frozenset({"custom_openai", "hosted_vllm", "litellm_proxy"})
"""Provider names for self-hosted servers with an OpenAI-compatible API."""

_FAMILIES: Final = {
    "claude": "anthropic",
    "deepseek": "deepseek",
    "gemini": "gemini",
    "gpt": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
}
"""Providers by the prefixes of model names without a provider."""


def host_of(model: str, base_url: str | None) -> str:
    """Return `host:port` of a model; empty if unknown."""
    return host_of_url(base_url) if base_url else _HOSTS.get(provider_of(model), "")


def provider_of(model: str) -> str:
    """Return the provider of a model by its name; empty if unknown."""
    provider, slash, _ = model.partition("/")
    if slash:
        return provider
    return next((known for name, known in _FAMILIES.items() if model.startswith(name)), "")


def host_of_url(url: str) -> str:
    """Return `host:port` of a URL; empty if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return ""
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" if host and port else ""


_HOSTS: Final = {
    **{provider: host_of_url(base) for provider, base in BASES.items()},
    "cohere": "api.cohere.ai:443",
    "cohere_chat": "api.cohere.ai:443",
    "dashscope": "dashscope.aliyuncs.com:443",
    "minimax": "api.minimax.io:443",
    "ollama": "localhost:11434",
    "ollama_chat": "localhost:11434",
    "openhands": "llm-proxy.app.all-hands.dev:443",
    "perplexity": "api.perplexity.ai:443",
    "zai": "api.z.ai:443",
}
"""The host and port of each provider."""
