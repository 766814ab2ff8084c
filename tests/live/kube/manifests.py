"""The manifests of the plugin, put into a cluster, and a way in as the server that they describe."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from agentsvc.base.values import new_id
from tests.live.kube.api import Api
from tests.live.kube.cluster import Cluster

MANIFESTS: Final = Path(__file__).parents[3] / "plugins/kubernetes/manifests"
SERVER: Final = "agentsvc"
"""The namespace of the server, and its service account."""
SANDBOXES: Final = "agentsvc-sandboxes"

_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Namespace": ("api/v1", "namespaces"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
}
_LABEL: Final = "agentsvc%2Finstallation"

type Json = dict[str, Any]


def read(*names: str) -> list[Json]:
    """Return the objects of these files, or of all, in the order of applying."""
    files = sorted(MANIFESTS.glob("*.yaml"))
    return [
        thing
        for file in files
        if not names or file.stem in names
        for thing in yaml.safe_load_all(file.read_text())
    ]


def path_of(thing: Json) -> str:
    """Return where an object is, or will be."""
    group, plural = _KINDS[thing["kind"]]
    about = thing["metadata"]
    place = f"namespaces/{about['namespace']}/" if "namespace" in about else ""
    return f"/{group}/{place}{plural}/{about['name']}"


def apply(api: Api, things: list[Json]) -> None:
    for thing in things:
        api.apply(path_of(thing), thing)


def token_of(cluster: Cluster) -> str:
    """Return a token of the server's service account, as its pod would have one."""
    path = f"/api/v1/namespaces/{SERVER}/serviceaccounts/{SERVER}/token"
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    answer = cluster.admin.create(path, {**wanted, "spec": {"expirationSeconds": 86_400}})
    return str(answer["status"]["token"])


def kubeconfig(cluster: Cluster, token: str, directory: Path, *, port: int = 0) -> Path:
    """Return a file with which somebody is a user of the cluster, by way of a port of loopback."""
    file = directory / f"{new_id()}.kubeconfig"
    found = cluster.plan.kubeconfig_of(token)
    if port:
        way = {"server": f"https://127.0.0.1:{port}", "tls-server-name": cluster.plan.control}
        found["clusters"][0]["cluster"] |= way
    file.write_text(json.dumps(found))
    return file


def left(cluster: Cluster, instance_id: str) -> list[str]:
    """Name all that a cluster has of an installation."""
    kinds = ("pods", "services", "secrets", "configmaps", "persistentvolumeclaims")
    paths = [f"/api/v1/{kind}" for kind in kinds]
    paths.append("/apis/networking.k8s.io/v1/networkpolicies")
    paths.append("/apis/snapshot.storage.k8s.io/v1/volumesnapshots")
    return sorted(
        f"{path.rpartition('/')[2]} {one['metadata']['name']}"
        for path in paths
        for one in cluster.admin.items(f"{path}?labelSelector={_LABEL}%3D{instance_id}")
    )


def pods_of(cluster: Cluster, instance_id: str) -> list[Json]:
    """Return the pods that there are of an installation."""
    return cluster.admin.items(f"/api/v1/pods?labelSelector={_LABEL}%3D{instance_id}")
