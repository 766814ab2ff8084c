"""The settings and secrets of users: read as their API takes them, and stored."""

from agentsvc.domain.agent_options import Llm, read_options
from agentsvc.http.v1.types_agent_settings import LlmBody, to_llm
from agentsvc.http.v1.types_settings import SettingsBody, to_change
from agentsvc.settings.profiles import check_profile_name, save_profile
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.store import Settings, SettingsStore
from agentsvc.settings.user_secrets import SecretsPatch, read_secrets

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
