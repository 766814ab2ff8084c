"""The resources of agent-sandbox as the API takes them, and what they tell. Pure."""

import posixpath
import re
import shlex
from typing import Any, Final, Literal

import msgspec

from agentsvc.base import OrderRejected
from agentsvc.plugin import Cause, Order, Phase, Report, Spec, choose_ports, fill, working_dir

from .kube import names, objects, plan, settings

type Json = dict[str, Any]
type Resource = Literal["sandboxes", "sandboxclaims", "sandboxwarmpools"]

OPTION: Final = "warm_pool"
START: Final = "start"
"""The key of the secret that has what a pod of a pool is told."""

_VERSION: Final = "v1beta1"
_GROUP: Final = "agents.x-k8s.io"
_EXTENSIONS: Final = f"extensions.{_GROUP}"
_POD_NAME: Final = f"{_GROUP}/pod-name"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VOLUME: Final = "workspace"
_REFUSED: Final = ("InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError")
_ENDED: Final = ("ClaimExpired", "SandboxExpired")


class BoundSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox in the cluster that a claim has been given."""

    name: str
    uid: str
    pod: str


def pool_of(asked: Spec | Order) -> str:
    """Return the warm pool of which a sandbox is claimed, or an empty text; raises OrderRejected."""
    try:
        found: str = msgspec.convert(asked.options.get(OPTION, ""), settings.Name)
    except msgspec.ValidationError as exc:
        raise OrderRejected(f"The options do not fit: {exc} - at `$.{OPTION}`") from exc
    return found


def plain[AskedT: Spec | Order](asked: AskedT) -> AskedT:
    """Return an order as the kubernetes backend knows it."""
    options = {name: value for name, value in asked.options.items() if name != OPTION}
    return msgspec.structs.replace(asked, options=options)


def group_of(resource: Resource) -> str:
    """Return the group of the API that a resource is of."""
    return _GROUP if resource == "sandboxes" else _EXTENSIONS


def path(resource: Resource, namespace: str, name: str = "") -> str:
    """Return the path of a resource, or of all of its kind."""
    parts = ["apis", group_of(resource), _VERSION, "namespaces", namespace, resource, name]
    return "/".join(part for part in parts if part)


def sandbox(order: Order, context: objects.PodContext, known: Json | None) -> Json:
    """Return a sandbox with a pod as the kubernetes backend has it, and a claim of its files.

    The claim of one that is known stays as it is: it cannot be changed.
    """
    pod, labels = objects.pod(order, context), names.labels(context.instance_id, order.sandbox_id)
    volumes = [volume for volume in pod["spec"]["volumes"] if volume["name"] != _VOLUME]
    files = {
        "metadata": {"name": _VOLUME, "labels": labels},
        "spec": objects.claim(order, context)["spec"],
    }
    claims = _map(_map(known).get("spec")).get("volumeClaimTemplates") or [files]
    metadata = {"labels": labels, "annotations": pod["metadata"]["annotations"]}
    return {
        "apiVersion": f"{_GROUP}/{_VERSION}",
        "kind": "Sandbox",
        "metadata": _metadata(order, context),
        "spec": {
            "service": True,
            "podTemplate": {"metadata": metadata, "spec": {**pod["spec"], "volumes": volumes}},
            "volumeClaimTemplates": claims,
        },
    }


def claim(order: Order, context: objects.PodContext, pool: str) -> Json:
    """Return a claim on a sandbox of a pool, whose pod is told what it is for by annotations.

    Labels of a pod are only for domains that the controller was told of, and variables would have
    it made anew.
    """
    annotations = {
        **objects.pod(order, context)["metadata"]["annotations"],
        names.LIMITS: "",
        names.INSTALLATION: context.instance_id,
        names.SANDBOX: order.sandbox_id,
    }
    return {
        "apiVersion": f"{_EXTENSIONS}/{_VERSION}",
        "kind": "SandboxClaim",
        "metadata": _metadata(order, context),
        "spec": {
            "warmPoolRef": {"name": pool},
            "additionalPodMetadata": {"annotations": annotations},
        },
    }


def secret(order: Order, context: objects.PodContext, owner: Json, *, is_claimed: bool) -> Json:
    """Return the variables that are secret; for a pod of a pool, the script by which it starts."""
    found = owned(objects.secret(order, context, owner), owner)
    return {**found, "stringData": {START: _start(order)}} if is_claimed else found


def owned(manifest: Json, owner: Json) -> Json:
    """Return a manifest that goes with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def is_owned(found: Json, uid: str) -> bool:
    """Say whether a resource is controlled by the one with that uid."""
    owners = _map(found.get("metadata")).get("ownerReferences")
    listed = owners if isinstance(owners, list) else ()
    return any(_map(one).get("uid") == uid and _map(one).get("controller") for one in listed)


def pool_claimed(found: Json) -> str:
    """Return the pool that a claim names; an empty text for what is no claim."""
    return _name(_map(_map(found.get("spec")).get("warmPoolRef")).get("name"))


def name_of(claimed: Json) -> str:
    """Return the name of the sandbox that a claim has, or an empty text."""
    return _name(_map(_map(claimed.get("status")).get("sandbox")).get("name"))


def bound(found: Json) -> BoundSandbox:
    """Return what has to be known of a sandbox that was claimed."""
    name = _name(_map(found.get("metadata")).get("name"))
    pod = _name(names.annotations_of(found).get(_POD_NAME)) or name
    return BoundSandbox(name=name, uid=names.uid_of(found), pod=pod)


def without_pod(found: Json) -> Report:
    """Return a report of a sandbox, or a claim, that has no pod and shall have one."""
    listed = _map(found.get("status")).get("conditions")
    conditions = [_map(one) for one in listed] if isinstance(listed, list) else []
    ready: Json = next((one for one in conditions if one.get("type") == "Ready"), {})
    reason, message = str(ready.get("reason") or ""), str(ready.get("message") or "")[:400]
    if reason in _REFUSED:
        why = f"the agent-sandbox controller refuses its claim: {message}"
        return Report(phase=Phase.FAILED, cause=Cause.NOT_STARTED, reason=why)
    if reason in _ENDED:
        why = "the cluster ended it at a time that this server never set"
        return Report(phase=Phase.FAILED, cause=Cause.LOST, reason=why)
    if not reason:
        why = "the agent-sandbox controller has said nothing of it yet; look whether it runs"
        return Report(phase=Phase.STARTING, reason=why)
    return Report(phase=Phase.STARTING, reason=f"its pod is not there yet: {message or reason}")


def _start(order: Order) -> str:
    """Return what a shell of the pod, which is in the workspace, reads: variables, then a command."""
    options, ports = plan.to_options(order), choose_ports(order.ports)
    secrets = {name: value.reveal() for name, value in order.secret_env.items()}
    env = {**plan.environment_of(order, options, ""), **secrets}
    top = working_dir("", options.workspace)
    below = posixpath.relpath(working_dir(order.working_dir, options.workspace), top)
    command = [fill(part, ports) for part in order.command or ()]
    return "\n".join(
        [
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
            f"mkdir -p {shlex.quote(below)} && cd {shlex.quote(below)}",
            f'[ -z "$begin" ] || exec "$@" {shlex.join(command)}\n',
        ]
    )


def _metadata(order: Order, context: objects.PodContext) -> Json:
    return {
        "name": names.main(order.sandbox_id),
        "namespace": context.namespace,
        "labels": names.labels(context.instance_id, order.sandbox_id),
    }


def _name(found: Any) -> str:
    # It becomes a part of paths.
    return found if isinstance(found, str) and _NAME.fullmatch(found) else ""


def _map(found: Any) -> Json:
    return found if isinstance(found, dict) else {}
