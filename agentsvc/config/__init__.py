"""The configuration: every key with its default, read from file, environment and command line.

Begin with `schema`, which has the sections. `layers` merges the sources, `file` writes `config.toml`, and
`data_directory` says where the server keeps things. What users set for themselves is in `settings`.
Imports `base`, `domain` and `plugin`.
"""

from agentsvc.config.conversations import ConversationsConfig
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.file import render_default, to_toml
from agentsvc.config.layers import PREFIX
from agentsvc.config.sandboxes import (
    ArchivesConfig,
    MinimumIsolation,
    OnShutdown,
    RoomConfig,
    SandboxesConfig,
)
from agentsvc.config.schema import (
    BOOTSTRAP_KEY_FILE_VARIABLE,
    BOOTSTRAP_KEY_VARIABLE,
    KEY_VARIABLE,
    TRACE_PLUGINS_VARIABLE,
    URL_VARIABLE,
    Config,
    GatewayConfig,
    IdempotencyConfig,
    LimitsConfig,
    Loaded,
    ServerConfig,
    load,
    settings_of,
)

__all__ = [
    "BOOTSTRAP_KEY_FILE_VARIABLE",
    "BOOTSTRAP_KEY_VARIABLE",
    "KEY_VARIABLE",
    "PREFIX",
    "TRACE_PLUGINS_VARIABLE",
    "URL_VARIABLE",
    "ArchivesConfig",
    "Config",
    "ConversationsConfig",
    "DataDirectory",
    "GatewayConfig",
    "IdempotencyConfig",
    "LimitsConfig",
    "Loaded",
    "MinimumIsolation",
    "OnShutdown",
    "RoomConfig",
    "SandboxesConfig",
    "ServerConfig",
    "load",
    "render_default",
    "settings_of",
    "to_toml",
]
