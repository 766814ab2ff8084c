"""Sandboxes as resources of `kubernetes-sigs/agent-sandbox`, made by themselves or claimed of a pool.

Needs the extra `kubernetes`. It is the kubernetes backend, but that a controller in the cluster makes
the pods: `resources` has what is asked of it, `maker` the steps, `handover` what a pod of a pool is told.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(f"{__name__}.backend:AgentSandboxBackend")
