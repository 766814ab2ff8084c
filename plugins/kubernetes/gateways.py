"""The gateway pod of a sandbox that may not go everywhere.

The sandbox's network policy lets it out to nothing but its gateway, whose proxy, that of
`agentsvc.egress`, carries what the sandbox's spec allows, and what the agent reports to the server.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from agentsvc.plugin import Order, backend

from . import names, objects, plan
from .objects import PodContext

type Json = dict[str, Any]

_DIRECTORY: Final = "/opt/agentsvc-gateway"
_POLICY: Final = "policy.json"
_PACKAGE: Final = "package"
_PLACES: Final = {_POLICY: _POLICY, _PACKAGE: "agentsvc/__init__.py"}
_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"memory": "256Mi"},
}


def sources() -> dict[str, str]:
    """Return the modules of the proxy by name, from the installed package; blocks."""
    package = Path(backend.__file__).parent / "egress"
    return {file.name: file.read_text(encoding="utf-8") for file in package.glob("*.py")}


def program(order: Order, context: PodContext, owner: Json, modules: dict[str, str]) -> Json:
    """Return the files of a gateway: the proxy, and where the sandbox may go."""
    needed = [split(host) for host in order.reaches]
    if callback := plan.callback_of(order.env):
        needed.append(callback)
    policy = {
        "mode": str(order.network),
        "allow_hosts": order.allow_hosts,
        "needed": needed,
        "models": [split(host) for host in order.models],
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(order, context, owner),
        "data": {**modules, _PACKAGE: "", _POLICY: json.dumps(policy)},
    }


def service(order: Order, context: PodContext, owner: Json) -> Json:
    """Return the address of the gateway, which stays when its pod is another."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(order, context, owner),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(order, context, "gateway"),
            "ports": [{"name": "proxy", "port": plan.PROXY_PORT, "protocol": "TCP"}],
        },
    }


def policy(order: Order, context: PodContext, owner: Json) -> Json:
    """Return what may connect to the gateway: its sandbox; where it goes, its proxy decides.

    It says so, since a namespace that lets nothing out unless told would hold the proxy, too.
    """
    sandbox = {"podSelector": {"matchLabels": _selector(order, context, "sandbox")}}
    ports = [{"protocol": "TCP", "port": plan.PROXY_PORT}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(order, context, owner),
        "spec": {
            "podSelector": {"matchLabels": _selector(order, context, "gateway")},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [sandbox], "ports": ports}],
            "egress": objects.everywhere(context.config),
        },
    }


def pod(order: Order, context: PodContext, modules: Iterable[str]) -> Json:
    """Return the gateway's pod, but for its owner."""
    options, config = plan.to_options(order), context.config
    command = ["python3", "-B", "-m", "agentsvc.egress", "--policy", f"{_DIRECTORY}/{_POLICY}"]
    command += ["--host", "0.0.0.0", "--port", str(plan.PROXY_PORT)]  # noqa: S104  # a pod's
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(order, context, None),
        "spec": {
            **objects.pod_spec(options, config),
            "restartPolicy": "Always",
            "containers": [
                {
                    "name": "gateway",
                    "image": config.gateway_image or order.image,
                    "imagePullPolicy": config.image_pull_policy,
                    "command": command,
                    "workingDir": _DIRECTORY,
                    "env": [{"name": "PYTHONPATH", "value": _DIRECTORY}],
                    "ports": [{"containerPort": plan.PROXY_PORT, "protocol": "TCP"}],
                    "resources": _RESOURCES,
                    "volumeMounts": [
                        {"name": "program", "mountPath": _DIRECTORY, "readOnly": True}
                    ],
                    "securityContext": objects.hardened(read_only=True),
                }
            ],
            "volumes": [
                {
                    "name": "program",
                    "configMap": {
                        "name": names.gateway(order.sandbox_id),
                        "items": [
                            {"key": name, "path": _PLACES.get(name, f"agentsvc/egress/{name}")}
                            for name in (*modules, *_PLACES)
                        ],
                    },
                }
            ],
        },
    }


def url_of(found: Json) -> str:
    """Return the URL of the proxy, by an address: the sandbox asks nobody for names."""
    address = str((found.get("spec") or {}).get("clusterIP") or "")
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{plan.PROXY_PORT}"


def split(host: str) -> tuple[str, int]:
    """Return a host's name and its port."""
    name, _, port = host.rpartition(":")
    return name, int(port)


def _selector(order: Order, context: PodContext, role: str) -> dict[str, str]:
    return names.selector(context.instance_id, order.sandbox_id, role)


def _metadata(order: Order, context: PodContext, owner: Json | None) -> Json:
    found: Json = {
        "name": names.gateway(order.sandbox_id),
        "namespace": context.namespace,
        "labels": names.labels(context.instance_id, order.sandbox_id, "gateway"),
    }
    return found if owner is None else {**found, "ownerReferences": [objects.reference(owner)]}
