"""The `[backends.kubernetes]` table: the cluster, and settings for its sandboxes."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from agentsvc.base import StartFailed

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in a pod with its service account's token, CA certificate and namespace."""

type Json = dict[str, Any]
type Positive = Annotated[float, msgspec.Meta(gt=0)]
type Url = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s]+)?$")]
type Name = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
type Namespace = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")]
type Quantity = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$")]
type Reach = Literal["auto", "pod", "service", "port-forward"]


class Toleration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint of nodes that sandboxes tolerate, with the fields that Kubernetes uses."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.kubernetes]` table."""

    kubeconfig: str = ""
    """Kubeconfig file; empty for KUBECONFIG, otherwise the service account if this server runs in a
    pod, otherwise ~/.kube/config."""
    context: str = ""
    """Context of the kubeconfig; empty for its current one."""
    namespace: Namespace = ""
    """Namespace of the sandboxes; empty for that of the context, or of this server's pod."""
    reach: Reach = "auto"
    """How this server connects to pods: `service` by the cluster's DNS, `pod` by their addresses,
    `port-forward` through the API server; `auto` is `service` in a pod, else `port-forward`."""
    callback: Url = ""
    """URL at which sandboxes reach this server; empty for `server.internal_url`, or
    `server.public_url` if that is a loopback address."""
    server_labels: dict[str, str] = {}
    """Labels of this server's pods, for the network policies; empty if it does not run in a pod."""
    server_cidrs: tuple[str, ...] = ()
    """Address ranges from which this server connects to pods if `reach` is `pod`."""
    enforces_network_policies: bool = False
    """Whether the cluster's network enforces NetworkPolicy objects, which cannot be detected; only
    then specs may have another network than `open`."""
    closed_cidrs: tuple[str, ...] = ("169.254.0.0/16", "fe80::/10")
    """Address ranges that sandboxes with an open network may not reach, except for DNS."""
    gateway_image: str = ""
    """Image with Python 3.12 or newer for the gateways of restricted networks; empty for the
    sandbox's own."""
    service_account: Name = ""
    """Service account of sandboxes, which get no token; empty for the namespace's default."""
    image_pull_secrets: tuple[Name, ...] = ()
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: Name = ""
    """RuntimeClass of sandboxes, such as that of gVisor; empty for the cluster's default."""
    priority_class: Name = ""
    user: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*(:[1-9][0-9]*)?$")] = "1000:1000"
    """User and group of sandboxes as numbers, never root; the group owns the files in the claim."""
    storage_class: str = ""
    """StorageClass of the claims; empty for the cluster's default."""
    storage_size: Quantity = "10Gi"
    """Size of a claim if the spec has neither the limit `disk_bytes` nor its own `storage_size`."""
    snapshot_class: Name = ""
    """VolumeSnapshotClass for saving and copying files; empty for the only one with the storage
    class's driver and the deletion policy `Delete`, or the default one of several."""
    enforces_storage_size: bool = False
    """Whether the storage class enforces volume sizes; only then specs may limit `disk_bytes`."""
    cpu_request: Quantity = "100m"
    """CPU reserved on a node for a sandbox, at most the spec's limit."""
    memory_request: Quantity = "256Mi"
    node_lost_seconds: Annotated[int, msgspec.Meta(ge=0)] = 300
    """How long a node may be unreachable before the cluster evicts the sandboxes on it."""
    request_seconds: Positive = 30.0
    """Timeout of a request to the API server."""
    connect_seconds: Positive = 1.0
    """Timeout of one attempt to connect to a port."""
    stop_seconds: Annotated[int, msgspec.Meta(ge=1)] = 5
    """Grace period for a sandbox to end by itself."""
    end_seconds: Positive = 60.0
    """How long the node may take, after that, to report that the sandbox has ended."""


def check(config: KubernetesConfig, *, is_inside: bool) -> None:
    """Raise StartFailed for an invalid CIDR, or if network policies would block this server."""
    for key in ("server_cidrs", "closed_cidrs"):
        for cidr in getattr(config, key):
            try:
                ipaddress.ip_network(cidr)
            except ValueError as exc:
                raise StartFailed(f"`{key}` of a kubernetes backend: {exc}") from exc
    is_direct = way_to_pods(config, is_inside=is_inside) != "port-forward"
    if is_direct and not (config.server_cidrs or config.server_labels):
        raise StartFailed(
            "A kubernetes backend that connects to pods must be let in by their network policies",
            hint="set `server_labels` where this server runs in a pod, else `server_cidrs`",
        )


def is_in_cluster(
    config: KubernetesConfig, environment: Mapping[str, str], account: Path = ACCOUNT
) -> bool:
    """Return whether this server logs in by its pod's service account: no kubeconfig is set."""
    is_told = bool(config.kubeconfig or environment.get("KUBECONFIG"))
    return (
        not is_told and "KUBERNETES_SERVICE_HOST" in environment and (account / "token").is_file()
    )


def way_to_pods(config: KubernetesConfig, *, is_inside: bool) -> Reach:
    """Return how this server connects to pods.

    Outside of a cluster, `auto` is `port-forward`, because a pod's address may be another host's.
    """
    if config.reach != "auto":
        return config.reach
    return "service" if is_inside else "port-forward"
