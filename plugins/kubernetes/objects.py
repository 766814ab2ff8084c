"""Manifests of the objects of a sandbox. Pure.

They meet the restricted Pod Security Standard: no root user, no capabilities, the runtime's
default seccomp profile, and no access to the node. The claim owns the other objects, so that none
outlives it.
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
"""The init container that restores the files of a checkpoint."""
FIELD_MANAGER: Final = "agentsvc"

_PREPARE: Final = "prepare"
_DNS: Final = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
_UNREACHABLE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class PodContext(msgspec.Struct, frozen=True, kw_only=True):
    """The installation, namespace and settings for which a sandbox is created."""

    instance_id: str
    namespace: str
    config: KubernetesConfig
    proxy_url: str = ""
    """URL of the proxy in the sandbox's gateway; empty without a gateway."""


def claim(order: Order, context: PodContext, source: Json | None = None) -> Json:
    """Return the claim for the sandbox's files, filled from the snapshot `source` if given."""
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
    """Return the Secret with the secret variables, whose values are not in the pod's manifest."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata_of(order, context, owner=owner),
        "type": "Opaque",
        "stringData": _revealed(order.secret_env),
    }


def service(order: Order, context: PodContext, owner: Json) -> Json:
    """Return the Service, whose DNS name stays the same when the sandbox's pod is replaced."""
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
    """Return the NetworkPolicy: only this server may connect to the sandbox's ports.

    The sandbox may connect to its gateway only, or to an open network.
    """
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
    """Return the sandbox's pod without its owner reference."""
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
    """Return a manifest with an owner reference, by which it is removed with its owner."""
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
    """Return the fields that the specs of a sandbox's pods share."""
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
    """Return the name, namespace and labels of a sandbox's object, with annotations and owner."""
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
    """Return the owner reference by which an object is removed with the claim."""
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
    """Return an open network's egress rules: DNS, this server, and all but the closed addresses."""
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
