"""Settings and secrets of users: parsing of their API's request bodies, and storage."""

from agentsvc.domain import Llm as Llm
from agentsvc.domain import read_options as read_options
from agentsvc.http import LlmBody as LlmBody
from agentsvc.http import SettingsBody as SettingsBody
from agentsvc.http import to_change as to_change
from agentsvc.http import to_llm as to_llm
from agentsvc.settings import SecretsPatch as SecretsPatch
from agentsvc.settings import SecretStore as SecretStore
from agentsvc.settings import Settings as Settings
from agentsvc.settings import SettingsStore as SettingsStore
from agentsvc.settings import check_profile_name as check_profile_name
from agentsvc.settings import read_secrets as read_secrets
from agentsvc.settings import save_profile as save_profile
