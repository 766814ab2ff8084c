"""The objects that a sandbox is made of, as the API takes them. Pure.

They keep the restricted Pod Security Standard: no root, no rights, the runtime's own seccomp
profile, and nothing of the node. The claim owns the others, so that none outlives it.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentsvc.base import Secret
from agentsvc.plugin import Order, choose_ports, fill, working_dir

from . import names, plan
from .settings import KubernetesConfig, Toleration

type Json = dict[str, Any]

CONTAINER: Final = "sandbox"
RESTORE: Final = "restore"
"""The init container that puts the files of a checkpoint back."""
FIELD_MANAGER: Final = "agentsvc"

_PREPARE: Final = "prepare"
_DNS: Final = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
_UNREACHABLE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where and for whom a sandbox is made."""

    instance_id: str
    namespace: str
    config: KubernetesConfig
    proxy_url: str = ""
    """Of the sandbox's gateway."""


def claim(order: Order, context: PodContext, source: Json | None = None) -> Json:
    """Return the claim with the sandbox's files, which begin as a snapshot has them."""
    options, config = plan.to_options(order), context.config
    size = options.storage_size or config.storage_size
    if order.limits.disk_bytes is not None:
        size = str(order.limits.disk_bytes)
    beginning: Json = {}
    if source is not None:
        # A smaller volume would not be made. Those with which it begins may be rounded up.
        least = str((source.get("status") or {}).get("restoreSize") or "0")
        size = least if plan.amount(least) > plan.amount(size) else size
        beginning = {
            "apiGroup": names.SNAPSHOTS,
            "kind": "VolumeSnapshot",
            "name": source["metadata"]["name"],
        }
    storage_class = options.storage_class or config.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata_of(order, context),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **({"storageClassName": storage_class} if storage_class else {}),
            **({"dataSource": beginning} if beginning else {}),
        },
    }


def secret(order: Order, context: PodContext, owner: Json) -> Json:
    """Return the variables that are secret, outside of the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata_of(order, context, owner=owner),
        "type": "Opaque",
        "stringData": _revealed(order.secret_env),
    }


def service(order: Order, context: PodContext, owner: Json) -> Json:
    """Return the name by which the sandbox is reached in the cluster, whichever its pod is."""
    ports = choose_ports(order.ports)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(order, context, owner=owner),
        "spec": {
            "type": "ClusterIP",
            "selector": _selector(order, context, "sandbox"),
            # Whether it is ready is for the server to say.
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": f"p{number}", "port": number, "targetPort": number, "protocol": "TCP"}
                for number in ports.values()
            ],
        },
    }


def policy(order: Order, context: PodContext, owner: Json) -> Json:
    """Return what may connect to the sandbox, and what it may connect to: else nothing."""
    numbers = choose_ports(order.ports).values()
    config = context.config
    ingress = []
    if callers := _callers(config):
        ports = [{"protocol": "TCP", "port": number} for number in numbers]
        ingress = [{"from": callers, "ports": ports}]
    if plan.needs_gateway(order.network):
        gateway = {"podSelector": {"matchLabels": _selector(order, context, "gateway")}}
        ports = [{"protocol": "TCP", "port": plan.PROXY_PORT}]
        egress = [{"to": [gateway], "ports": ports}]
    else:
        egress = everywhere(config)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(order, context, owner=owner),
        "spec": {
            "podSelector": {"matchLabels": _selector(order, context, "sandbox")},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def pod(order: Order, context: PodContext) -> Json:
    """Return the pod, but for its owner."""
    options, config = plan.to_options(order), context.config
    ports = choose_ports(order.ports)
    directory = working_dir(order.working_dir, options.workspace)
    awaited = [port.name for port in order.ports if port.awaited]
    is_calling = plan.callback_of(order.env) is not None
    annotations = {
        names.PORTS: ",".join(f"{name}={number}" for name, number in ports.items()),
        names.AWAITED: ",".join(awaited),
        names.WORKDIR: directory,
        names.LIMITS: ",".join(plan.set_limits(order)),
        names.CALLBACK: "yes" if is_calling else "no",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(order, context, annotations=annotations),
        "spec": {
            **pod_spec(options, config),
            "restartPolicy": "Never",
            "initContainers": [_prepare(order, options, config)],
            "containers": [_container(order, context, ports, directory, awaited)],
            "volumes": _volumes(order, options),
        },
    }


def owned(manifest: Json, owner: Json) -> Json:
    """Return a manifest that goes with its owner."""
    metadata = {**manifest["metadata"], "ownerReferences": [reference(owner)]}
    return {**manifest, "metadata": metadata}


def hardened(*, read_only: bool = False) -> Json:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": read_only,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_spec(options: plan.Options, config: KubernetesConfig) -> Json:
    """Return what all pods of a sandbox have in common."""
    user, group = plan.user_of(options, config)
    optional = {
        "serviceAccountName": options.service_account or config.service_account,
        "runtimeClassName": plan.runtime_of(options, config),
        "priorityClassName": options.priority_class or config.priority_class,
        "nodeSelector": {**config.node_selector, **options.node_selector},
        "imagePullSecrets": [
            {"name": name}
            for name in dict.fromkeys((*config.image_pull_secrets, *options.image_pull_secrets))
        ],
    }
    lost = [
        Toleration(
            key=key,
            operator="Exists",
            effect="NoExecute",
            toleration_seconds=config.node_lost_seconds,
        )
        for key in _UNREACHABLE
    ]
    tolerations = (*config.tolerations, *options.tolerations, *lost)
    return {
        **{name: value for name, value in optional.items() if value},
        "tolerations": [_toleration(one) for one in tolerations],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": config.stop_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": group,
            "fsGroup": group,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _container(
    order: Order, context: PodContext, ports: Mapping[str, int], directory: str, awaited: list[str]
) -> Json:
    options = plan.to_options(order)
    env = plan.environment_of(order, options, context.proxy_url)
    secrets = [
        {
            "name": name,
            "valueFrom": {"secretKeyRef": {"name": names.main(order.sandbox_id), "key": name}},
        }
        for name in order.secret_env
    ]
    container: Json = {
        "name": CONTAINER,
        "image": order.image,
        "imagePullPolicy": context.config.image_pull_policy,
        "workingDir": directory,
        "env": [
            {"name": name, "value": plan.literal(value)}
            for name, value in env.items()
            if name not in order.secret_env
        ]
        + secrets,
        "ports": [{"containerPort": number, "protocol": "TCP"} for number in ports.values()],
        "resources": plan.resources_of(order, options, context.config),
        "volumeMounts": _mounts(options),
        "securityContext": hardened(read_only=options.read_only),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if order.command is not None:
        container["args"] = [plan.literal(fill(part, ports)) for part in order.command]
    if awaited:
        container["readinessProbe"] = {
            "tcpSocket": {"port": ports[awaited[0]]},
            "timeoutSeconds": 2,
            "periodSeconds": 2,
            "failureThreshold": 5,
        }
    return container


def _prepare(order: Order, options: plan.Options, config: KubernetesConfig) -> Json:
    # Whoever makes a missing working directory is root, and the sandbox could not write to it.
    top = posixpath.normpath(options.workspace)
    directories = [working_dir(order.working_dir, options.workspace), f"{top}/.home"]
    return {
        "name": _PREPARE,
        "image": order.image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["mkdir", "-p", *directories],
        "workingDir": "/",
        "resources": plan.resources_of(order, options, config),
        "volumeMounts": [{"name": "workspace", "mountPath": top}],
        "securityContext": hardened(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _mounts(options: plan.Options) -> list[Json]:
    found = [
        {"name": "workspace", "mountPath": posixpath.normpath(options.workspace)},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # the pod's own
    ]
    if options.read_only:
        found.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108  # the pod's own
    return found


def _volumes(order: Order, options: plan.Options) -> list[Json]:
    shm = {"medium": "Memory", "sizeLimit": str(options.shm_bytes)}
    workspace = {"claimName": names.main(order.sandbox_id)}
    return [
        {"name": "workspace", "persistentVolumeClaim": workspace},
        {"name": "shm", "emptyDir": shm},
        *([{"name": "tmp", "emptyDir": {}}] if options.read_only else []),
    ]


def metadata_of(
    order: Order,
    context: PodContext,
    *,
    annotations: Mapping[str, str] | None = None,
    owner: Json | None = None,
) -> Json:
    """Return what every object of a sandbox is called, and by what it is found."""
    found: Json = {
        "name": names.main(order.sandbox_id),
        "namespace": context.namespace,
        "labels": names.labels(context.instance_id, order.sandbox_id),
    }
    if annotations:
        found["annotations"] = dict(annotations)
    if owner is not None:
        found["ownerReferences"] = [reference(owner)]
    return found


def reference(owner: Json) -> Json:
    """Return what makes something go when the claim goes."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _selector(order: Order, context: PodContext, role: str) -> dict[str, str]:
    return names.selector(context.instance_id, order.sandbox_id, role)


def _callers(config: KubernetesConfig) -> list[Json]:
    return [{"ipBlock": {"cidr": cidr}} for cidr in config.server_cidrs] + _servers(config)


def _servers(config: KubernetesConfig) -> list[Json]:
    if not config.server_labels:
        return []
    server = {"podSelector": {"matchLabels": config.server_labels}}
    return [{**server, "namespaceSelector": {}}]


def everywhere(config: KubernetesConfig) -> list[Json]:
    """Return where an open network leads: to names, to the server, to all but closed addresses."""
    anywhere = [{"ipBlock": {"cidr": cidr}} for cidr in ("0.0.0.0/0", "::/0")]
    closed: dict[bool, list[str]] = {False: [], True: []}
    for cidr in config.closed_cidrs:
        closed[":" in cidr].append(cidr)
    return [
        {"to": [{"namespaceSelector": {}}, *anywhere], "ports": _DNS},
        {
            "to": [
                # Some networks take addresses for those outside of the cluster only.
                *_servers(config),
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": closed[False]}},
                {"ipBlock": {"cidr": "::/0", "except": closed[True]}},
            ]
        },
    ]


def _toleration(one: Toleration) -> Json:
    found = {
        "key": one.key,
        "operator": one.operator,
        "value": one.value,
        "effect": one.effect,
        "tolerationSeconds": one.toleration_seconds,
    }
    return {name: value for name, value in found.items() if value not in ("", None)}


def _revealed(secrets: Mapping[str, Secret]) -> dict[str, str]:
    return {name: value.reveal() for name, value in secrets.items()}
