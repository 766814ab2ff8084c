"""Per-user settings, model profiles and secrets.

Read `fields`, the table of settings, and `store` first. The server's configuration is in `config`.
Imports `storage`, `domain`, `plugin` and `base`.
"""

from agentsvc.settings.fields import AGENTS as AGENTS
from agentsvc.settings.fields import SECRET_FIELDS as SECRET_FIELDS
from agentsvc.settings.fields import SECURITY_ANALYZERS as SECURITY_ANALYZERS
from agentsvc.settings.fields import AgentName as AgentName
from agentsvc.settings.fields import BaseUrl as BaseUrl
from agentsvc.settings.fields import FlatText as FlatText
from agentsvc.settings.fields import GroupingStrategy as GroupingStrategy
from agentsvc.settings.fields import SentSettings as SentSettings
from agentsvc.settings.fields import Settings as Settings
from agentsvc.settings.fields import SettingsPatch as SettingsPatch
from agentsvc.settings.fields import ShownFields as ShownFields
from agentsvc.settings.fields import Skills as Skills
from agentsvc.settings.fields import UserVersion as UserVersion
from agentsvc.settings.fields import check_base_url as check_base_url
from agentsvc.settings.fields import patch_of as patch_of
from agentsvc.settings.model_hosts import ModelHosts as ModelHosts
from agentsvc.settings.profiles import NAME_PATTERN as NAME_PATTERN
from agentsvc.settings.profiles import active_profile as active_profile
from agentsvc.settings.profiles import check_profile_name as check_profile_name
from agentsvc.settings.profiles import get_profile as get_profile
from agentsvc.settings.profiles import save_profile as save_profile
from agentsvc.settings.secret_store import SecretStore as SecretStore
from agentsvc.settings.store import SettingsStore as SettingsStore
from agentsvc.settings.store import check_patch as check_patch
from agentsvc.settings.store import llm_of as llm_of
from agentsvc.settings.store import merge as merge
from agentsvc.settings.store import show_settings as show_settings
from agentsvc.settings.user_secrets import ProviderToken as ProviderToken
from agentsvc.settings.user_secrets import ProviderTokenPatch as ProviderTokenPatch
from agentsvc.settings.user_secrets import ProviderTokens as ProviderTokens
from agentsvc.settings.user_secrets import SecretsPatch as SecretsPatch
from agentsvc.settings.user_secrets import SecretsStoreBody as SecretsStoreBody
from agentsvc.settings.user_secrets import VariableName as VariableName
from agentsvc.settings.user_secrets import VariableValue as VariableValue
from agentsvc.settings.user_secrets import check_secret_name as check_secret_name
from agentsvc.settings.user_secrets import is_reserved as is_reserved
from agentsvc.settings.user_secrets import merge_token as merge_token
from agentsvc.settings.user_secrets import read_secrets as read_secrets
from agentsvc.settings.user_secrets import to_secrets_patch as to_secrets_patch
from agentsvc.settings.user_secrets import to_token_patches as to_token_patches
