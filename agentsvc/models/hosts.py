"""At which hosts language models are reached, so that a sandbox without a network reaches its own.

Pure. Providers whose host depends on a region or an account are not known here: their users give
a base URL, or the operator lists the host.
"""

from typing import Final
from urllib.parse import urlsplit

_HOSTS: Final = {
    "anthropic": "api.anthropic.com",
    "cerebras": "api.cerebras.ai",
    "cohere": "api.cohere.ai",
    "cohere_chat": "api.cohere.ai",
    "dashscope": "dashscope.aliyuncs.com",
    "deepseek": "api.deepseek.com",
    "fireworks_ai": "api.fireworks.ai",
    "gemini": "generativelanguage.googleapis.com",
    "groq": "api.groq.com",
    "minimax": "api.minimax.io",
    "mistral": "api.mistral.ai",
    "moonshot": "api.moonshot.ai",
    "openai": "api.openai.com",
    "openhands": "llm-proxy.app.all-hands.dev",
    "openrouter": "openrouter.ai",
    "perplexity": "api.perplexity.ai",
    "sambanova": "api.sambanova.ai",
    "xai": "api.x.ai",
    "zai": "api.z.ai",
}
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
    return f"{_HOSTS[provider]}:443" if provider in _HOSTS else ""


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
