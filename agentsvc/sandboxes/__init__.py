"""Sandboxes: the wanted and the last seen state of each, and the steps between the two.

Begin with `state` (structs and the decision), then `service`, the class that others use; `table` has the
SQL, `reconciler` does the steps, `admission` decides what may run, `plugin_loader` and `registry` know the
backends. Nothing here knows conversations or HTTP. Imports `accounts`, `settings`, `models`, `storage`
and what they import.
"""

from agentsvc.sandboxes.admission.slots import Lane, StartSlots
from agentsvc.sandboxes.admission.table import Removal, UseTable
from agentsvc.sandboxes.admission.warm_pool import SPARES_SECONDS
from agentsvc.sandboxes.admission.warm_pool_table import WarmPoolTable
from agentsvc.sandboxes.checkpoints import Checkpoints
from agentsvc.sandboxes.idle_culler import IdleCuller, defaults_of, due, rules_for
from agentsvc.sandboxes.isolation import Protection, check_isolation, find_protections
from agentsvc.sandboxes.logs import MOST_LINES, read_output
from agentsvc.sandboxes.orders import CallbackRules
from agentsvc.sandboxes.owners import Owners
from agentsvc.sandboxes.plugin_loader import (
    BUILT_IN,
    Backend,
    Notifier,
    Plugin,
    PluginHost,
    installed_points,
    listed,
)
from agentsvc.sandboxes.registry import BackendRegistry, kinds_of
from agentsvc.sandboxes.runtime_clients import ClientOrder
from agentsvc.sandboxes.service import Sandboxes
from agentsvc.sandboxes.state import (
    AGENT_PORT,
    Sandbox,
    SandboxStatus,
    Target,
    failure_of,
    status_of,
)
from agentsvc.sandboxes.stores import SandboxStores
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.sandboxes.usage_meter import Measured, Meter

__all__ = [
    "AGENT_PORT",
    "BUILT_IN",
    "MOST_LINES",
    "SPARES_SECONDS",
    "Backend",
    "BackendRegistry",
    "CallbackRules",
    "Checkpoints",
    "ClientOrder",
    "IdleCuller",
    "Lane",
    "Measured",
    "Meter",
    "Notifier",
    "Owners",
    "Plugin",
    "PluginHost",
    "Protection",
    "Removal",
    "Sandbox",
    "SandboxStatus",
    "SandboxStores",
    "SandboxTable",
    "Sandboxes",
    "StartSlots",
    "Target",
    "UseTable",
    "WarmPoolTable",
    "check_isolation",
    "defaults_of",
    "due",
    "failure_of",
    "find_protections",
    "installed_points",
    "kinds_of",
    "listed",
    "read_output",
    "rules_for",
    "status_of",
]
