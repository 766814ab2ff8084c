"""Sandboxes as resources of `kubernetes-sigs/agent-sandbox`, made by themselves or claimed of a pool.

Needs the extra `kubernetes`. It is the kubernetes backend, but that a controller in the cluster makes
the pods: `resources` has what is asked of it, `maker` the steps, `handover` what a pod of a pool is told.
"""

from collections.abc import Iterable
from typing import Any

from agentsvc.plugin import RuntimeBackend, hookimpl

from .backend import AgentSandboxBackend


@hookimpl
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:
    """Offer the backend."""
    return [AgentSandboxBackend]
