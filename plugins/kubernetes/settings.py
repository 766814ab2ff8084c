"""The `[backends.kubernetes]` table: which cluster there is, and how it is used."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from agentsvc.base import StartFailed

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has what it speaks to its cluster with."""

type Json = dict[str, Any]
type Positive = Annotated[float, msgspec.Meta(gt=0)]
type Url = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s]+)?$")]
type Name = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
type Namespace = Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")]
type Quantity = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$")]
type Reach = Literal["auto", "pod", "service", "port-forward"]


class Toleration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint of nodes that sandboxes put up with, as Kubernetes writes it."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.kubernetes]` table."""

    kubeconfig: str = ""
    """File with the way into the cluster; empty for KUBECONFIG, in a pod for the pod's own service
    account, else for ~/.kube/config."""
    context: str = ""
    """Of the kubeconfig; empty for its current one."""
    namespace: Namespace = ""
    """Where sandboxes are made; empty for that of the context, or of this server's pod."""
    reach: Reach = "auto"
    """How this server reaches pods: `service` by the DNS of the cluster, `pod` at their addresses,
    `port-forward` through the API server; `auto` is `service` in a pod, else `port-forward`."""
    callback: Url = ""
    """URL at which sandboxes reach this server; empty for `server.internal_url`, or
    `server.public_url` where that is an address of this machine only."""
    server_labels: dict[str, str] = {}
    """Labels of this server's pods, for the network policies; empty where it runs in no pod."""
    server_cidrs: tuple[str, ...] = ()
    """Addresses from which this server comes to pods where `reach` is `pod`."""
    enforces_network_policies: bool = False
    """Whether the cluster's network holds pods to NetworkPolicy objects, which nobody can ask it:
    then specs may have another network than `open`."""
    closed_cidrs: tuple[str, ...] = ("169.254.0.0/16", "fe80::/10")
    """Addresses that sandboxes with an open network may not reach."""
    gateway_image: str = ""
    """Image with a python3 of 3.12 or newer for the gateways of `allowlist`; empty for the
    sandbox's own."""
    service_account: Name = ""
    """Of the sandboxes' pods, which get no token of it; empty for the namespace's default."""
    image_pull_secrets: tuple[Name, ...] = ()
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: Name = ""
    """RuntimeClass of sandboxes, such as that of gVisor; empty for the cluster's default."""
    priority_class: Name = ""
    user: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*(:[1-9][0-9]*)?$")] = "1000:1000"
    """User and group of sandboxes as numbers, never root; files in the claim are the group's."""
    storage_class: str = ""
    """StorageClass of the claims; empty for the cluster's default."""
    storage_size: Quantity = "10Gi"
    """Size of a claim where the spec has no limit `disk_bytes`."""
    snapshot_class: Name = ""
    """VolumeSnapshotClass by which files are kept and copied; empty for the only one that is of the
    storage class's driver and removes what is deleted, or the default one of several."""
    enforces_storage_size: bool = False
    """Whether the storage class keeps volumes to their size: then `disk_bytes` is a limit."""
    cpu_request: Quantity = "100m"
    """What is set aside of a node's processors for a sandbox; the spec's limit caps it."""
    memory_request: Quantity = "256Mi"
    node_lost_seconds: Annotated[int, msgspec.Meta(ge=0)] = 300
    """How long a node may not answer before the cluster gives up the sandboxes on it."""
    request_seconds: Positive = 30.0
    """How long the API server may take to answer."""
    connect_seconds: Positive = 1.0
    """How long one attempt to reach a port may take."""
    stop_seconds: Annotated[int, msgspec.Meta(ge=1)] = 5
    """How long a sandbox has to end by itself."""
    end_seconds: Positive = 60.0
    """How long its node may take, after that, to say that it has ended."""


def check(config: KubernetesConfig, *, is_inside: bool) -> None:
    """Raise StartFailed where the table makes no sense."""
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
    """Say whether this server runs in a pod and uses what the pod has been given."""
    is_told = bool(config.kubeconfig or environment.get("KUBECONFIG"))
    return (
        not is_told and "KUBERNETES_SERVICE_HOST" in environment and (account / "token").is_file()
    )


def way_to_pods(config: KubernetesConfig, *, is_inside: bool) -> Reach:
    """Return how pods are reached: outside of the cluster, addresses may be somebody else's."""
    if config.reach != "auto":
        return config.reach
    return "service" if is_inside else "port-forward"
