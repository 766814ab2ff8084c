"""Per-user settings, model profiles and secrets.

Begin with `fields`, the table of settings, and `store`. The configuration of the server is in `config`. Imports `storage`, `models` and what
they import.
"""

from agentsvc.settings.fields import (
    AGENTS,
    SECRET_FIELDS,
    SECURITY_ANALYZERS,
    AgentName,
    BaseUrl,
    FlatText,
    GroupingStrategy,
    SentSettings,
    Settings,
    SettingsPatch,
    ShownFields,
    Skills,
    UserVersion,
    check_base_url,
)
from agentsvc.settings.model_hosts import ModelHosts
from agentsvc.settings.profiles import (
    NAME_PATTERN,
    active_profile,
    check_profile_name,
    get_profile,
    save_profile,
)
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.store import SettingsStore, check_patch, llm_of, merge, show_settings
from agentsvc.settings.user_secrets import (
    ProviderToken,
    ProviderTokenPatch,
    ProviderTokens,
    SecretsPatch,
    SecretsStoreBody,
    VariableName,
    VariableValue,
    check_secret_name,
    merge_token,
    read_secrets,
    to_secrets_patch,
    to_token_patches,
)

__all__ = [
    "AGENTS",
    "NAME_PATTERN",
    "SECRET_FIELDS",
    "SECURITY_ANALYZERS",
    "AgentName",
    "BaseUrl",
    "FlatText",
    "GroupingStrategy",
    "ModelHosts",
    "ProviderToken",
    "ProviderTokenPatch",
    "ProviderTokens",
    "SecretStore",
    "SecretsPatch",
    "SecretsStoreBody",
    "SentSettings",
    "Settings",
    "SettingsPatch",
    "SettingsStore",
    "ShownFields",
    "Skills",
    "UserVersion",
    "VariableName",
    "VariableValue",
    "active_profile",
    "check_base_url",
    "check_patch",
    "check_profile_name",
    "check_secret_name",
    "get_profile",
    "llm_of",
    "merge",
    "merge_token",
    "read_secrets",
    "save_profile",
    "show_settings",
    "to_secrets_patch",
    "to_token_patches",
]
