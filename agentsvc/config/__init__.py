"""The configuration: every key with its default, read from file, environment and command line.

Begin with `schema`, which has the sections. `layers` merges the sources, `file` writes `config.toml`, and
`data_directory` has the paths of the server's files. Settings of users are in the package `settings`.
Imports `base`, `domain` and `plugin`.
"""

from agentsvc.config.conversations import ConversationsConfig as ConversationsConfig
from agentsvc.config.data_directory import DataDirectory as DataDirectory
from agentsvc.config.file import render_default as render_default
from agentsvc.config.file import to_key as to_key
from agentsvc.config.file import to_toml as to_toml
from agentsvc.config.layers import PREFIX as PREFIX
from agentsvc.config.sandboxes import ArchivesConfig as ArchivesConfig
from agentsvc.config.sandboxes import CapacityConfig as CapacityConfig
from agentsvc.config.sandboxes import MinimumIsolation as MinimumIsolation
from agentsvc.config.sandboxes import OnShutdown as OnShutdown
from agentsvc.config.sandboxes import SandboxesConfig as SandboxesConfig
from agentsvc.config.schema import BOOTSTRAP_KEY_FILE_VARIABLE as BOOTSTRAP_KEY_FILE_VARIABLE
from agentsvc.config.schema import BOOTSTRAP_KEY_VARIABLE as BOOTSTRAP_KEY_VARIABLE
from agentsvc.config.schema import KEY_VARIABLE as KEY_VARIABLE
from agentsvc.config.schema import TRACE_PLUGINS_VARIABLE as TRACE_PLUGINS_VARIABLE
from agentsvc.config.schema import URL_VARIABLE as URL_VARIABLE
from agentsvc.config.schema import Config as Config
from agentsvc.config.schema import GatewayConfig as GatewayConfig
from agentsvc.config.schema import IdempotencyConfig as IdempotencyConfig
from agentsvc.config.schema import LimitsConfig as LimitsConfig
from agentsvc.config.schema import Loaded as Loaded
from agentsvc.config.schema import ServerConfig as ServerConfig
from agentsvc.config.schema import load as load
from agentsvc.config.schema import settings_of as settings_of
