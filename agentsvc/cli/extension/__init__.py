"""Public API for the subcommands of plugins."""

from typing import Final

from agentsvc import __version__
from agentsvc.accounts import KeyRing as KeyRing
from agentsvc.accounts import Role as Role
from agentsvc.accounts import Users as Users
from agentsvc.cli import CommandFailed as CommandFailed
from agentsvc.cli.client import Api as Api
from agentsvc.cli.client import StreamMessage as StreamMessage
from agentsvc.cli.download import save as save
from agentsvc.cli.options import ConfigOptions as ConfigOptions
from agentsvc.cli.options import config_option as config_option
from agentsvc.cli.options import data_dir_option as data_dir_option
from agentsvc.cli.options import example as example
from agentsvc.cli.options import existing_data_dir as existing_data_dir
from agentsvc.cli.options import json_option as json_option
from agentsvc.cli.options import load_config as load_config
from agentsvc.cli.options import read_given as read_given
from agentsvc.cli.options import where_options as where_options
from agentsvc.cli.options import yes_option as yes_option
from agentsvc.cli.secretoutput import output_option as output_option
from agentsvc.cli.secretoutput import secret_output as secret_output
from agentsvc.cli.server import ServerChoice as ServerChoice
from agentsvc.cli.server import found_options as found_options
from agentsvc.cli.server import get_api as get_api
from agentsvc.cli.server import server_options as server_options
from agentsvc.cli.talk import Record as Record
from agentsvc.cli.talk import ask_agent as ask_agent
from agentsvc.cli.talk import check_text as check_text
from agentsvc.cli.talk import find_conversation as find_conversation
from agentsvc.cli.talk import find_named as find_named
from agentsvc.cli.talk import wake as wake
from agentsvc.cli.text import clean as clean
from agentsvc.cli.text import columns as columns
from agentsvc.cli.text import confirm as confirm
from agentsvc.cli.text import fields as fields
from agentsvc.cli.text import json_text as json_text
from agentsvc.cli.text import moment as moment
from agentsvc.cli.text import print_found as print_found
from agentsvc.cli.text import print_table as print_table
from agentsvc.cli.text import short as short
from agentsvc.config import settings_of as settings_of
from agentsvc.storage import Installation as Installation

VERSION: Final = __version__
"""The version of agentsvc."""
