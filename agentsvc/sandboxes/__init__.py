"""Sandboxes: the target and the last observed state of each, and the steps between the two.

Begin with `state` (structs and the decision), then `service`, the class that other packages use.
`table` holds the SQL, `reconciler` executes the steps, `admission` decides which sandboxes may run,
`plugin_loader` and `registry` manage the backends. Nothing here depends on conversations or HTTP.
Imports `accounts`, `settings`, `models`, `storage` and their dependencies.
"""

from agentsvc.sandboxes.admission.slots import StartLane as StartLane
from agentsvc.sandboxes.admission.slots import StartSlots as StartSlots
from agentsvc.sandboxes.admission.table import Removal as Removal
from agentsvc.sandboxes.admission.table import UseTable as UseTable
from agentsvc.sandboxes.admission.warm_pool import SPARES_SECONDS as SPARES_SECONDS
from agentsvc.sandboxes.admission.warm_pool_table import WarmPoolTable as WarmPoolTable
from agentsvc.sandboxes.checkpoints import Checkpoints as Checkpoints
from agentsvc.sandboxes.idle_culler import IdleCuller as IdleCuller
from agentsvc.sandboxes.idle_culler import defaults_of as defaults_of
from agentsvc.sandboxes.idle_culler import due as due
from agentsvc.sandboxes.idle_culler import rules_for as rules_for
from agentsvc.sandboxes.isolation import Protection as Protection
from agentsvc.sandboxes.isolation import check_isolation as check_isolation
from agentsvc.sandboxes.isolation import find_protections as find_protections
from agentsvc.sandboxes.orders import CallbackRules as CallbackRules
from agentsvc.sandboxes.plugin_loader import BUILT_IN as BUILT_IN
from agentsvc.sandboxes.plugin_loader import Backend as Backend
from agentsvc.sandboxes.plugin_loader import Notifier as Notifier
from agentsvc.sandboxes.plugin_loader import Plugin as Plugin
from agentsvc.sandboxes.plugin_loader import PluginHost as PluginHost
from agentsvc.sandboxes.plugin_loader import installed_points as installed_points
from agentsvc.sandboxes.plugin_loader import listed as listed
from agentsvc.sandboxes.registry import BackendRegistry as BackendRegistry
from agentsvc.sandboxes.registry import kinds_of as kinds_of
from agentsvc.sandboxes.runtime_clients import ClientOrder as ClientOrder
from agentsvc.sandboxes.service import Sandboxes as Sandboxes
from agentsvc.sandboxes.state import AGENT_PORT as AGENT_PORT
from agentsvc.sandboxes.state import Sandbox as Sandbox
from agentsvc.sandboxes.state import SandboxStatus as SandboxStatus
from agentsvc.sandboxes.state import Target as Target
from agentsvc.sandboxes.state import failure_of as failure_of
from agentsvc.sandboxes.state import status_of as status_of
from agentsvc.sandboxes.stores import SandboxStores as SandboxStores
from agentsvc.sandboxes.table import SandboxTable as SandboxTable
from agentsvc.sandboxes.usage_meter import Meter as Meter
from agentsvc.sandboxes.usage_meter import UsageSample as UsageSample
