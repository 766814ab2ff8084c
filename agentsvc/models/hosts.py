"""At which hosts language models are reached, so that a sandbox without a network reaches its own.

Pure. Providers whose host depends on a region or an account are not known here: their users give
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
"""Where providers take chat completions as OpenAI does."""

OWN_SERVERS: Final = frozenset({"custom_openai", "hosted_vllm", "litellm_proxy"})
"""What servers of one's own are called that take requests as OpenAI does."""

_OTHER_HOSTS: Final = {
    "cohere": "api.cohere.ai",
    "cohere_chat": "api.cohere.ai",
    "dashscope": "dashscope.aliyuncs.com",
    "minimax": "api.minimax.io",
    "openhands": "llm-proxy.app.all-hands.dev",
    "perplexity": "api.perplexity.ai",
    "zai": "api.z.ai",
}
"""Where the others are."""

_LOCAL: Final = {"ollama": "localhost:11434", "ollama_chat": "localhost:11434"}
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
"""Providers of models that are called by their names alone."""


def host_of(model: str, base_url: str | None) -> str:
    """Return `host:port` of a model; empty where it is not known."""
    if base_url:
        return host_of_url(base_url)
    provider = provider_of(model)
    if provider in _LOCAL:
        return _LOCAL[provider]
    if provider in BASES:
        return host_of_url(BASES[provider])
    return f"{_OTHER_HOSTS[provider]}:443" if provider in _OTHER_HOSTS else ""


def provider_of(model: str) -> str:
    """Return the provider that a model's name begins with or stands for; empty if it is not known."""
    provider, slash, _ = model.partition("/")
    if slash:
        return provider
    family = next((name for name in _FAMILIES if model.startswith(name)), "")
    return _FAMILIES.get(family, "")


def host_of_url(url: str) -> str:
    """Return `host:port` of a URL; empty for one that has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return ""
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" if host and port else ""
