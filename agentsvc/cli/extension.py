"""Public: what subcommands of plugins are made of."""

from typing import Final

from agentsvc import __version__
from agentsvc.accounts import KeyRing, Role, Users
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, Told
from agentsvc.cli.options import (
    Where,
    config_option,
    data_dir_option,
    example,
    existing_data_dir,
    json_option,
    load_config,
    where_options,
    yes_option,
)
from agentsvc.cli.secretoutput import output_option, secret_output
from agentsvc.cli.server import ServerChoice, found_options, get_api, server_options
from agentsvc.cli.stored import places_of
from agentsvc.cli.talk import Record, ask_agent, check_text, find_conversation, find_named, wake
from agentsvc.cli.text import (
    clean,
    columns,
    confirm,
    fields,
    json_text,
    moment,
    print_found,
    print_table,
    short,
)
from agentsvc.config import settings_of
from agentsvc.storage import Installation

__all__ = [
    "VERSION",
    "Api",
    "CommandFailed",
    "Installation",
    "KeyRing",
    "Record",
    "Role",
    "ServerChoice",
    "Told",
    "Users",
    "Where",
    "ask_agent",
    "check_text",
    "clean",
    "columns",
    "config_option",
    "confirm",
    "data_dir_option",
    "example",
    "existing_data_dir",
    "fields",
    "find_conversation",
    "find_named",
    "found_options",
    "get_api",
    "json_option",
    "json_text",
    "load_config",
    "moment",
    "output_option",
    "places_of",
    "print_found",
    "print_table",
    "secret_output",
    "server_options",
    "settings_of",
    "short",
    "wake",
    "where_options",
    "yes_option",
]

VERSION: Final = __version__
"""That of agentsvc."""
