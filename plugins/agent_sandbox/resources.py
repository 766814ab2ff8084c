"""Manifests of agent-sandbox resources, and parsing of their status. Pure."""

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
"""The key of the secret with the start script of a pod from a pool."""

_VERSION: Final = "v1beta1"
_GROUP: Final = "agents.x-k8s.io"
_EXTENSIONS: Final = f"extensions.{_GROUP}"
_POD_NAME: Final = f"{_GROUP}/pod-name"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VOLUME: Final = "workspace"
_REFUSED: Final = ("InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError")
_ENDED: Final = ("ClaimExpired", "SandboxExpired")


class BoundSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox in the cluster that is bound to a claim."""

    name: str
    uid: str
    pod: str


def pool_of(asked: Spec | Order) -> str:
    """Return the warm pool of a spec or order, or an empty string; raises OrderRejected."""
    try:
        found: str = msgspec.convert(asked.options.get(OPTION, ""), settings.Name)
    except msgspec.ValidationError as exc:
        raise OrderRejected(f"The options are invalid: {exc} - at `$.{OPTION}`") from exc
    return found


def plain[AskedT: Spec | Order](asked: AskedT) -> AskedT:
    """Return an order without this plugin's option, for the kubernetes backend."""
    options = {name: value for name, value in asked.options.items() if name != OPTION}
    return msgspec.structs.replace(asked, options=options)


def group_of(resource: Resource) -> str:
    """Return the API group of a resource."""
    return _GROUP if resource == "sandboxes" else _EXTENSIONS


def path(resource: Resource, namespace: str, name: str = "") -> str:
    """Return the API path of a resource, or of all resources of its kind."""
    parts = ["apis", group_of(resource), _VERSION, "namespaces", namespace, resource, name]
    return "/".join(part for part in parts if part)


def sandbox(order: Order, context: objects.PodContext, known: Json | None) -> Json:
    """Return a sandbox with the kubernetes backend's pod, and a volume claim for its files.

    An existing claim is kept, because it is immutable.
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
    """Return a claim on a sandbox of a pool; annotations describe the sandbox to its pod.

    The controller permits pod labels only in configured domains, and replaces the pod if variables
    are set.
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
    """Return the secret with the sandbox's variables; for a claim, with its start script."""
    found = owned(objects.secret(order, context, owner), owner)
    return {**found, "stringData": {START: _start(order)}} if is_claimed else found


def owned(manifest: Json, owner: Json) -> Json:
    """Return a manifest that is deleted with its owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def is_owned(found: Json, uid: str) -> bool:
    """Return whether the resource with that uid controls another one."""
    owners = _map(found.get("metadata")).get("ownerReferences")
    listed = owners if isinstance(owners, list) else ()
    return any(_map(one).get("uid") == uid and _map(one).get("controller") for one in listed)


def pool_claimed(found: Json) -> str:
    """Return the pool of a claim; an empty string if the resource is no claim."""
    return _name(_map(_map(found.get("spec")).get("warmPoolRef")).get("name"))


def name_of(claimed: Json) -> str:
    """Return the name of the sandbox bound to a claim, or an empty string."""
    return _name(_map(_map(claimed.get("status")).get("sandbox")).get("name"))


def bound(found: Json) -> BoundSandbox:
    """Return name, uid and pod of a bound sandbox."""
    name = _name(_map(found.get("metadata")).get("name"))
    pod = _name(names.annotations_of(found).get(_POD_NAME)) or name
    return BoundSandbox(name=name, uid=names.uid_of(found), pod=pod)


def without_pod(found: Json) -> Report:
    """Return the report of a sandbox or claim that has no pod yet."""
    listed = _map(found.get("status")).get("conditions")
    conditions = [_map(one) for one in listed] if isinstance(listed, list) else []
    ready: Json = next((one for one in conditions if one.get("type") == "Ready"), {})
    reason, message = str(ready.get("reason") or ""), str(ready.get("message") or "")[:400]
    if reason in _REFUSED:
        why = f"the agent-sandbox controller rejects its claim: {message}"
        return Report(phase=Phase.FAILED, cause=Cause.NOT_STARTED, reason=why)
    if reason in _ENDED:
        why = "the cluster ended it at an expiry time that this server did not set"
        return Report(phase=Phase.FAILED, cause=Cause.LOST, reason=why)
    if not reason:
        why = "the agent-sandbox controller has not reported on it yet; check that it runs"
        return Report(phase=Phase.STARTING, reason=why)
    return Report(phase=Phase.STARTING, reason=f"its pod does not exist yet: {message or reason}")


def _start(order: Order) -> str:
    """Return the shell script of a pod from a pool: exports, then the command.

    It runs in the workspace.
    """
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
    # The name becomes part of API paths.
    return found if isinstance(found, str) and _NAME.fullmatch(found) else ""


def _map(found: Any) -> Json:
    return found if isinstance(found, dict) else {}
