"""The public interface for plugins: runtime backends, hooks, and the values both sides exchange.

Begin with `backend` (the contract) and `hookspecs` (the hooks). `egress` holds network policies and the
proxy that enforces them; `files` finds plugins on disk; `copying`, `checkpointing`, `file_checkpoints`,
`checkpoints_program` and `removal` are for backends that keep files of sandboxes. How plugins are loaded is in
`sandboxes.plugin_loader`; additions to the server itself are in `extension`. Imports `base` only.
"""

from agentsvc.plugin import checkpoints_program as checkpoints_program
from agentsvc.plugin.backend import API_VERSION as API_VERSION
from agentsvc.plugin.backend import HANDLE_BYTES_MAX as HANDLE_BYTES_MAX
from agentsvc.plugin.backend import NOT_CALLING as NOT_CALLING
from agentsvc.plugin.backend import BackendContext as BackendContext
from agentsvc.plugin.backend import FindKey as FindKey
from agentsvc.plugin.backend import PartlyScanned as PartlyScanned
from agentsvc.plugin.backend import RuntimeBackend as RuntimeBackend
from agentsvc.plugin.backend import SaveHandle as SaveHandle
from agentsvc.plugin.backend import StillFetching as StillFetching
from agentsvc.plugin.backend import check_hosts as check_hosts
from agentsvc.plugin.backend import fill as fill
from agentsvc.plugin.backend import no_key as no_key
from agentsvc.plugin.checkpointing import CHECKPOINT_OUTPUT_BYTES as CHECKPOINT_OUTPUT_BYTES
from agentsvc.plugin.checkpointing import CHECKPOINT_SECONDS as CHECKPOINT_SECONDS
from agentsvc.plugin.checkpointing import check_copied as check_copied
from agentsvc.plugin.checkpointing import kept_directories as kept_directories
from agentsvc.plugin.checkpointing import read_checkpoints as read_checkpoints
from agentsvc.plugin.copying import Copy as Copy
from agentsvc.plugin.copying import FilesRefused as FilesRefused
from agentsvc.plugin.copying import copy_running as copy_running
from agentsvc.plugin.file_checkpoints import checkpoint_id_of as checkpoint_id_of
from agentsvc.plugin.file_checkpoints import kept_checkpoints as kept_checkpoints
from agentsvc.plugin.file_checkpoints import take_checkpoint as take_checkpoint
from agentsvc.plugin.files import PACKAGE as PACKAGE
from agentsvc.plugin.files import PluginFile as PluginFile
from agentsvc.plugin.files import bundled as bundled
from agentsvc.plugin.files import default_kinds as default_kinds
from agentsvc.plugin.files import import_file as import_file
from agentsvc.plugin.files import is_needed as is_needed
from agentsvc.plugin.files import keep_old_names as keep_old_names
from agentsvc.plugin.files import plugins_in as plugins_in
from agentsvc.plugin.files import sections as sections
from agentsvc.plugin.helpers import AGENT_OUTPUT as AGENT_OUTPUT
from agentsvc.plugin.helpers import PACKAGE_DIR as PACKAGE_DIR
from agentsvc.plugin.helpers import LongTasks as LongTasks
from agentsvc.plugin.helpers import check_handle as check_handle
from agentsvc.plugin.helpers import choose_ports as choose_ports
from agentsvc.plugin.helpers import finish as finish
from agentsvc.plugin.helpers import is_below as is_below
from agentsvc.plugin.helpers import working_dir as working_dir
from agentsvc.plugin.hookspecs import EVENT_KINDS as EVENT_KINDS
from agentsvc.plugin.hookspecs import NAME as NAME
from agentsvc.plugin.hookspecs import Event as Event
from agentsvc.plugin.hookspecs import hookimpl as hookimpl
from agentsvc.plugin.hookspecs import offers as offers
from agentsvc.plugin.removal import remove_directory as remove_directory
from agentsvc.plugin.values import Advice as Advice
from agentsvc.plugin.values import Capability as Capability
from agentsvc.plugin.values import Cause as Cause
from agentsvc.plugin.values import Checkpoint as Checkpoint
from agentsvc.plugin.values import Endpoint as Endpoint
from agentsvc.plugin.values import ExecResult as ExecResult
from agentsvc.plugin.values import Fences as Fences
from agentsvc.plugin.values import Found as Found
from agentsvc.plugin.values import Handle as Handle
from agentsvc.plugin.values import Health as Health
from agentsvc.plugin.values import IdleRules as IdleRules
from agentsvc.plugin.values import ImageBuild as ImageBuild
from agentsvc.plugin.values import Isolation as Isolation
from agentsvc.plugin.values import Limits as Limits
from agentsvc.plugin.values import LogLine as LogLine
from agentsvc.plugin.values import Network as Network
from agentsvc.plugin.values import Order as Order
from agentsvc.plugin.values import PausedAs as PausedAs
from agentsvc.plugin.values import Phase as Phase
from agentsvc.plugin.values import Port as Port
from agentsvc.plugin.values import Report as Report
from agentsvc.plugin.values import Spec as Spec
from agentsvc.plugin.values import Usage as Usage
