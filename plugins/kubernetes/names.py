"""Names and labels of objects in the cluster. Pure."""

from collections.abc import Mapping
from typing import Any, Final, Literal

INSTALLATION: Final = "agentsvc/installation"
SANDBOX: Final = "agentsvc/sandbox"
ROLE: Final = "agentsvc/role"
PAUSED: Final = "agentsvc/paused"
POD: Final = "agentsvc/pod"
PORTS: Final = "agentsvc/ports"
AWAITED: Final = "agentsvc/awaited"
WORKDIR: Final = "agentsvc/workdir"
LIMITS: Final = "agentsvc/limits"
CALLBACK: Final = "agentsvc/callback"
LAYER: Final = "agentsvc/layer"
CHECKPOINTS: Final = "agentsvc/checkpoints"
ROLLBACK: Final = "agentsvc/rollback"

SNAPSHOTS: Final = "snapshot.storage.k8s.io"
"""The API group of volume snapshots."""

_PREFIX: Final = "oh-agent-server-"

type Json = dict[str, Any]
type Kind = Literal[
    "events",
    "pods",
    "services",
    "secrets",
    "persistentvolumeclaims",
    "networkpolicies",
    "configmaps",
    "volumesnapshots",
]

_GROUPS: Final[Mapping[Kind, str]] = {
    "networkpolicies": "apis/networking.k8s.io/v1",
    "volumesnapshots": f"apis/{SNAPSHOTS}/v1",
}


def main(sandbox_id: str) -> str:
    """Return the name of a sandbox's objects, except those of its gateway."""
    return _PREFIX + sandbox_id


def gateway(sandbox_id: str) -> str:
    """Return the name of the objects of a sandbox's gateway."""
    return f"{_PREFIX}{sandbox_id}-gateway"


def layer(layer_id: str) -> str:
    """Return the name of a layer's snapshot."""
    return f"{_PREFIX}layer-{layer_id}"


def labels(instance_id: str, sandbox_id: str, role: str = "sandbox") -> dict[str, str]:
    """Return the labels of an object created for a sandbox."""
    return {
        INSTALLATION: instance_id,
        SANDBOX: sandbox_id,
        ROLE: role,
        "app.kubernetes.io/managed-by": "agentsvc",
    }


def labels_of_layer(instance_id: str, layer_id: str) -> dict[str, str]:
    """Return the labels of a layer, which belongs to no sandbox."""
    return {
        INSTALLATION: instance_id,
        LAYER: layer_id,
        "app.kubernetes.io/managed-by": "agentsvc",
    }


def is_layer(found: Mapping[str, Any]) -> bool:
    """Return whether a snapshot is a layer, which belongs to no sandbox."""
    return LAYER in labels_of(found)


def selector(instance_id: str, sandbox_id: str, role: str) -> dict[str, str]:
    """Return the labels that select a sandbox's pods of one role."""
    return {INSTALLATION: instance_id, SANDBOX: sandbox_id, ROLE: role}


def is_own(found: Mapping[str, Any] | None, instance_id: str, sandbox_id: str) -> bool:
    """Return whether an object belongs to this sandbox of this installation."""
    told = labels_of(found or {})
    return (told.get(INSTALLATION), told.get(SANDBOX)) == (instance_id, sandbox_id)


def labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's labels."""
    return (found.get("metadata") or {}).get("labels") or {}


def annotations_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations."""
    return (found.get("metadata") or {}).get("annotations") or {}


def uid_of(found: Mapping[str, Any]) -> str:
    """Return an object's UID, which differs from those of earlier and later objects of its name."""
    return str((found.get("metadata") or {}).get("uid") or "")


def is_ending(found: Mapping[str, Any]) -> bool:
    """Return whether an object is being deleted."""
    return bool((found.get("metadata") or {}).get("deletionTimestamp"))


def path(kind: Kind, namespace: str, name: str = "", *, below: str = "") -> str:
    """Return the API path of an object, of its subresource `below`, or of all objects of a kind."""
    parts = [_GROUPS.get(kind, "api/v1"), "namespaces", namespace, kind, name, below]
    return "/".join(part for part in parts if part)


def of_installation(instance_id: str) -> str:
    """Return the label selector of all objects of this installation."""
    return f"{INSTALLATION}={instance_id}"
