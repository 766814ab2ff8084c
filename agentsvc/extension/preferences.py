"""The settings and secrets of users: read as their API takes them, and stored."""

from agentsvc.domain import Llm, read_options
from agentsvc.http import LlmBody, SettingsBody, to_change, to_llm
from agentsvc.settings import (
    SecretsPatch,
    SecretStore,
    Settings,
    SettingsStore,
    check_profile_name,
    read_secrets,
    save_profile,
)

__all__ = [
    "Llm",
    "LlmBody",
    "SecretStore",
    "SecretsPatch",
    "Settings",
    "SettingsBody",
    "SettingsStore",
    "check_profile_name",
    "read_options",
    "read_secrets",
    "save_profile",
    "to_change",
    "to_llm",
]
