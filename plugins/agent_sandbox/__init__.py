"""Sandboxes as resources of `kubernetes-sigs/agent-sandbox`, created or claimed from a pool.

Needs the extra `kubernetes`. It is the kubernetes backend, except that a controller in the cluster
creates the pods: `resources` has the manifests, `maker` the steps, `handover` the configuration of
pods from a pool.
"""

from agentsvc.plugin import offers

agentsvc_register_backends = offers(f"{__name__}.backend:AgentSandboxBackend")
