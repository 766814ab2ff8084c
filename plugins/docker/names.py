"""Names and labels of containers, networks and volumes. Pure."""

from collections.abc import Mapping
from typing import Any, Final

INSTALLATION: Final = "agentsvc.installation"
SANDBOX: Final = "agentsvc.sandbox"
ROLE: Final = "agentsvc.role"
LAYER: Final = "agentsvc.layer"
BASE: Final = "agentsvc.base"
"""The image below a layer."""
BYTES: Final = "agentsvc.bytes"
MADE_FOR: Final = "agentsvc.made_for"
"""The name of the image that is created from a container."""
IMAGE: Final = "agentsvc.image"

_LAYERS: Final = "localhost/agentsvc-layer"
_PASSING: Final = f"{_LAYERS}:passing-"
_PREFIX: Final = "oh-agent-server-"


def container(sandbox_id: str) -> str:
    """Return the name of a sandbox's container, by which clients and operators know it."""
    return _PREFIX + sandbox_id


def gateway(sandbox_id: str) -> str:
    """Return the name of the gateway container, the sandbox's only neighbour."""
    return f"{_PREFIX}{sandbox_id}-gateway"


def workspace(sandbox_id: str) -> str:
    """Return the name of the volume with the sandbox's files."""
    return f"{_PREFIX}{sandbox_id}-workspace"


def private(sandbox_id: str) -> str:
    """Return the name of the volume with the files that the sandbox's entry script reads."""
    return f"{_PREFIX}{sandbox_id}-private"


def paused(sandbox_id: str) -> str:
    """Return the name of the empty volume that marks a sandbox as paused on purpose."""
    return f"{_PREFIX}{sandbox_id}-paused"


def layer(layer_id: str) -> str:
    """Return the name of a layer's image."""
    return f"{_LAYERS}:{layer_id}"


def passing(layer_id: str) -> str:
    """Return the name of a removed layer's image, which is deleted with its last container."""
    return f"{_PASSING}{layer_id}"


def is_layers(image_name: str) -> bool:
    """Return whether an image name is that of a layer, removed or not."""
    return image_name.startswith(f"{_LAYERS}:")


def is_passing(image_name: str) -> bool:
    """Return whether an image name is that of a removed layer."""
    return image_name.startswith(_PASSING)


def half_made(image_name: str) -> str:
    """Return the name of the container from which a layer's image is created."""
    return f"agentsvc-layer-{image_name.rpartition(':')[2]}"


def image(image_id: str) -> str:
    """Return the name of an image that was built here; an image of that name is never pulled."""
    return f"localhost/agentsvc-environment:{image_id}"


def of_image(instance_id: str, image_id: str) -> dict[str, str]:
    """Return the labels of an image that was built here."""
    return {INSTALLATION: instance_id, IMAGE: image_id}


def inner(sandbox_id: str) -> str:
    """Return the name of the network that leads only to the gateway."""
    return f"{_PREFIX}{sandbox_id}-inner"


def outer(sandbox_id: str) -> str:
    """Return the name of the network that leads out."""
    return f"{_PREFIX}{sandbox_id}-outer"


def bridge(network_name: str) -> str:
    """Return the name of a network's interface on the engine's machine, at most 15 characters."""
    sandbox_id, _, kind = network_name.removeprefix(_PREFIX).rpartition("-")
    return f"agsv{kind[0]}{sandbox_id[:10]}"


def labels(instance_id: str, sandbox_id: str, role: str) -> dict[str, str]:
    """Return the labels of every object of a sandbox."""
    return {INSTALLATION: instance_id, SANDBOX: sandbox_id, ROLE: role}


def is_own(labels: Mapping[str, Any] | None, instance_id: str, sandbox_id: str) -> bool:
    """Return whether labels are those of a sandbox of this installation."""
    found = labels or {}
    return (found.get(INSTALLATION), found.get(SANDBOX)) == (instance_id, sandbox_id)


def of_installation(instance_id: str) -> dict[str, list[str]]:
    """Return the list filter for all objects of this installation."""
    return {"label": [f"{INSTALLATION}={instance_id}"]}


def of_sandbox(instance_id: str, sandbox_id: str) -> dict[str, list[str]]:
    """Return the list filter for all objects of one sandbox."""
    return {"label": [f"{INSTALLATION}={instance_id}", f"{SANDBOX}={sandbox_id}"]}
