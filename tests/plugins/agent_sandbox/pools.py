"""The pool that the guide shows, for pods that are processes of this machine."""

from typing import Any, Final

import yaml

from tests.docs.pages import blocks_of
from tests.kube.agent_sandbox import SandboxApi

type Json = dict[str, Any]

POOL: Final = "agents"


def shown() -> list[Json]:
    """Return the template and the pool as the guide has them."""
    [block] = [block for block in blocks_of("how-to/kubernetes") if block.kind == "yaml"]
    return list(yaml.safe_load_all(block.code))


def put_pool(api: SandboxApi, *, replicas: int) -> None:
    """Make them in the namespace of the tests, for whatever program a sandbox is told to run."""
    template, pool = shown()
    for one in (template, pool):
        one["metadata"]["namespace"] = "default"
    [container] = template["spec"]["podTemplate"]["spec"]["containers"]
    container["args"] = container["args"][:2]
    pool["spec"]["replicas"] = replicas
    api.put(template)
    api.put(pool)
