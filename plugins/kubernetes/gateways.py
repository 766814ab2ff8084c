"""The gateway pod of a sandbox with a restricted network.

The sandbox's network policy allows connections to its gateway only. The gateway runs the proxy of
`agentsvc.plugin.egress`, which forwards what the order allows, and callbacks to the server.
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
    """Return the source of the installed proxy's modules by file name; blocks."""
    package = Path(backend.__file__).parent / "egress"
    return {file.name: file.read_text(encoding="utf-8") for file in package.glob("*.py")}


def program(order: Order, context: PodContext, owner: Json, modules: dict[str, str]) -> Json:
    """Return the gateway's ConfigMap: the proxy's modules, and the hosts that it allows."""
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
    """Return the gateway's Service, whose address stays when the pod is replaced."""
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
    """Return the gateway's NetworkPolicy: only its sandbox may connect to it.

    The proxy restricts the targets. Its own connections are allowed explicitly, because a namespace
    that denies egress by default would block the proxy, too.
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
    """Return the gateway's pod without its owner reference."""
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
    """Return the URL of the proxy, with an IP address because the sandbox has no DNS."""
    address = str((found.get("spec") or {}).get("clusterIP") or "")
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{plan.PROXY_PORT}"


def split(host: str) -> tuple[str, int]:
    """Split a text `HOST:PORT` into the host's name and the port."""
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
