"""Sandboxes: what is wanted of each, what was last seen of it, and the step between the two.

`state` holds the structs and the decision, `table` the SQL, `service` the class that others use.
"""

from agentsvc.sandboxes.service import Sandboxes
from agentsvc.sandboxes.state import Sandbox, SandboxStatus, Target

__all__ = ["Sandbox", "SandboxStatus", "Sandboxes", "Target"]
