"""The manifests on a real API server: they are accepted, and their role is enough and no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import KitOptions
from agentsvc.testing.rig import open_rig
from tests.live import engines
from tests.live.kube import manifests
from tests.live.kube.api import Api, Refused
from tests.live.kube.cluster import Cluster
from tests.live.kube.manifests import SANDBOXES, SERVER

pytestmark = [pytest.mark.live, pytest.mark.timeout(300, func_only=True)]

KIND = PluginHost.load().backend_types()["kubernetes"]
CORE = "/api/v1"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"

REFUSED = (
    ("GET", f"{CORE}/nodes"),
    ("GET", f"{CORE}/persistentvolumes"),
    ("GET", f"{CORE}/namespaces"),
    ("GET", f"{CORE}/namespaces/kube-system"),
    ("GET", f"{CORE}/pods"),
    ("GET", f"{CORE}/secrets"),
    ("GET", f"{CORE}/namespaces/kube-system/secrets"),
    ("GET", f"{CORE}/namespaces/{SERVER}/secrets"),
    ("GET", f"{CORE}/namespaces/{SERVER}/secrets/agentsvc"),
    ("GET", f"{CORE}/namespaces/default/pods"),
    ("POST", f"{CORE}/namespaces/default/pods"),
    ("POST", f"{CORE}/namespaces/{SERVER}/pods"),
    ("POST", f"{CORE}/namespaces"),
    ("DELETE", f"{CORE}/namespaces/{SANDBOXES}"),
    ("GET", f"{CORE}/namespaces/{SANDBOXES}/serviceaccounts"),
    ("POST", f"{CORE}/namespaces/{SANDBOXES}/serviceaccounts"),
    ("POST", f"{CORE}/namespaces/{SERVER}/serviceaccounts/{SERVER}/token"),
    ("GET", f"{RIGHTS}/namespaces/{SANDBOXES}/roles"),
    ("POST", f"{RIGHTS}/namespaces/{SANDBOXES}/roles"),
    ("POST", f"{RIGHTS}/namespaces/{SANDBOXES}/rolebindings"),
    ("POST", f"{RIGHTS}/clusterrolebindings"),
    ("DELETE", f"{RIGHTS}/namespaces/{SANDBOXES}/roles/agentsvc"),
    ("DELETE", f"{CORE}/namespaces/{SANDBOXES}/pods"),
    ("GET", f"{CORE}/namespaces/{SANDBOXES}/resourcequotas"),
    ("GET", "/apis/apps/v1/namespaces/agentsvc/deployments"),
    ("GET", "/apis/snapshot.storage.k8s.io/v1/volumesnapshots"),
    ("POST", "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses"),
    ("POST", "/apis/storage.k8s.io/v1/storageclasses"),
)

ROLES_RIGHTS = [
    (verb, group, resource)
    for thing in manifests.read("2-access")
    if thing["kind"] == "Role"
    for rule in thing["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


@pytest.fixture
def applied(cluster: Cluster) -> Iterator[list[dict[str, Any]]]:
    """Return all objects, applied; the server itself is not left, for its image is nowhere here."""
    things = manifests.read()
    manifests.apply(cluster.admin, things)
    yield things
    for thing in reversed(manifests.read("4-server")):
        cluster.admin.delete(manifests.path_of(thing))


def test_all_of_it_is_accepted_and_may_be_applied_again(
    cluster: Cluster, applied: list[dict[str, Any]]
) -> None:
    before = [cluster.admin.get(manifests.path_of(thing)) for thing in applied]
    manifests.apply(cluster.admin, applied)
    after = [cluster.admin.get(manifests.path_of(thing)) for thing in applied]
    for one, other in zip(before, after, strict=True):
        assert one["metadata"]["uid"] == other["metadata"]["uid"]
        assert one.get("spec", {}).get("replicas", 1) == 1
    deployed = f"/apis/apps/v1/namespaces/{SERVER}/deployments/{SERVER}"

    def pods() -> list[dict[str, Any]]:
        return [
            pod
            for pod in cluster.admin.items(f"{CORE}/namespaces/{SERVER}/pods")
            if pod["spec"].get("nodeName")
        ]

    engines.wait(lambda: len(pods()) == 1, 120, "the server's one pod has a node")
    [pod] = pods()
    assert pod["spec"]["serviceAccountName"] == SERVER
    assert breaches(pod["spec"]) == []
    assert cluster.admin.get(deployed)["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(("method", "path"), REFUSED, ids=lambda text: text)
def test_the_server_may_not_do_what_it_does_not_need(
    method: str, path: str, cluster: Cluster, token: str
) -> None:
    # What is asked for is decided before it is looked at, so that an empty object will do.
    with pytest.raises(Refused) as refused:
        cluster.as_user(token).ask(method, path, {} if method == "POST" else None)
    assert refused.value.status == 403


@pytest.mark.parametrize(("verb", "group", "resource"), ROLES_RIGHTS)
def test_the_role_holds_in_the_namespace_of_the_sandboxes_only(
    verb: str, group: str, resource: str, cluster: Cluster, token: str
) -> None:
    server = cluster.as_user(token)
    kind, _, below = resource.partition("/")
    about = {"verb": verb, "group": group, "resource": kind, "subresource": below}
    for namespace in (SANDBOXES, SERVER, "default", "kube-system"):
        name = namespace if kind == "namespaces" else ""
        may = asks_whether(server, about | {"namespace": namespace, "name": name})
        assert may == (namespace == SANDBOXES), namespace


def asks_whether(user: Api, about: dict[str, str]) -> bool:
    """Return what the API server says that a user may do."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(user.create(path, {"spec": {"resourceAttributes": about}})["status"]["allowed"])


async def test_a_sandboxs_pod_keeps_the_restricted_standard(
    cluster: Cluster, kubeconfig: Path
) -> None:
    options = KitOptions(
        order_overrides={"image": engines.BASE}, beacon_host=cluster.plan.machine, time_limit=240
    )
    config = KIND.Config(
        kubeconfig=str(kubeconfig),
        namespace=SANDBOXES,
        server_cidrs=(cluster.plan.all_addresses,),
        reach="pod",
        service_account="sandbox",
        storage_size="100Mi",
    )
    async with open_rig(KIND, config, options) as rig:
        await rig.create(rig.order())
        [pod] = manifests.pods_of(cluster, rig.instance_id)
    assert breaches(pod["spec"]) == []
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not [one for one in pod["spec"]["volumes"] if "secret" in one or "projected" in one]


def breaches(spec: dict[str, Any]) -> list[str]:
    """Name what of a pod the restricted Pod Security Standard does not allow."""
    allowed = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected"}
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    found += [
        f"volume {one['name']}"
        for one in spec.get("volumes", ())
        # An older cluster gives a pod its account's token as a secret.
        if not set(one) - {"name"} <= allowed | {"secret"}
    ]
    whole = spec.get("securityContext", {})
    for one in [*spec["containers"], *spec.get("initContainers", ())]:
        its = whole | one.get("securityContext", {})
        rules = {
            "runAsNonRoot": its.get("runAsNonRoot") is True and its.get("runAsUser") != 0,
            "allowPrivilegeEscalation": its.get("allowPrivilegeEscalation") is False,
            "privileged": not its.get("privileged"),
            "capabilities": its.get("capabilities") == {"drop": ["ALL"]},
            "seccompProfile": its.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        }
        found += [f"{rule} of {one['name']}" for rule, is_kept in rules.items() if not is_kept]
    return found
