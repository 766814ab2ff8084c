"""The API server of the tests with the resources of agent-sandbox, and a controller of them.

Resources are held to the published schemas, and fields that these do not know are refused. The
controller does what that of v0.5.6 does, as its sources say, and is not it: it has no metrics, no
expiry, no network policies of templates, and gives claims what is free at once.
"""

import copy
import json
import logging
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
from aiohttp import web

from agentsvc.base.values import new_id
from tests.kube.api import KubeApi
from tests.kube.schemas import set_defaults, strict
from tests.kube.store import KINDS, Refused, merged, stamp

log = logging.getLogger(__name__)

type Json = dict[str, Any]

SYSTEM: Final = "agents.x-k8s.io"
ASSIGNED: Final = f"{SYSTEM}/sandbox-name"
LABEL_DOMAIN: Final = "sandbox.users.io"
_RESERVED: Final = ("kubernetes.io", "k8s.io", SYSTEM)
_SCHEMAS: Final = Path(__file__).parents[1] / "data" / "agent_sandbox" / "crds.json"


class SandboxApi(KubeApi):
    """An API server with agent-sandbox, whose controller runs while `controls` is true."""

    groups = (f"/apis/{SYSTEM}/v1beta1", f"/apis/extensions.{SYSTEM}/v1beta1")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        found: dict[str, Json] = json.loads(_SCHEMAS.read_text())
        self._schemas = {kind: strict(schema) for kind, schema in found.items()}
        self.controls = True

    def put(self, manifest: Json) -> None:
        """Make or replace a resource, as `kubectl apply` does."""
        kind = next(kind for kind, name in KINDS.items() if name == manifest["kind"])
        obj = copy.deepcopy(manifest)
        obj["metadata"].setdefault("namespace", "default")
        self.tell(lambda _: self._stored(kind, obj, {}))

    def all_of(self, kind: str) -> list[Json]:
        """Return all resources of a kind, whatever their namespace."""
        return [one for (found, _, _), one in sorted(self.store.objects.items()) if found == kind]

    async def _start(self) -> None:
        await super()._start()
        self._ends.append(self._loop.create_task(self._control()))

    def _stored(self, kind: str, obj: Json, known: Json) -> Json:
        if schema := self._schemas.get(kind):
            errors = [
                error.message for error in jsonschema.Draft7Validator(schema).iter_errors(obj)
            ]
            claims = "volumeClaimTemplates"
            if (
                kind == "sandboxes"
                and known
                and known["spec"].get(claims) != obj["spec"].get(claims)
            ):
                errors.append("volumeClaimTemplates is immutable")
            if errors:
                raise Refused(422, "Invalid", f"{kind} is invalid: {errors[0]}")
            set_defaults(schema, obj)
        return super()._stored(kind, obj, known)

    async def _delete(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        if kind not in self._schemas:
            return await super()._delete(request)
        # Every deletion is one in the foreground.
        found = self.store.get(kind, request.match_info["namespace"], request.match_info["name"])
        return web.json_response(self._mark(kind, found))

    async def _control(self) -> None:
        while True:
            changed = self.store.changed
            try:
                self._collect()
                if self.controls:
                    self._reconcile()
            except Exception:
                log.exception("the controller of the tests has failed")
                raise
            await changed.wait()

    # What Kubernetes does by itself

    def _mark(self, kind: str, obj: Json) -> Json:
        if "deletionTimestamp" in obj["metadata"]:
            return obj
        if kind == "services":
            self.store.remove(kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
            return obj
        metadata = {**obj["metadata"], "deletionTimestamp": stamp()}
        marked = self.store.put(kind, {**obj, "metadata": metadata})
        if kind in ("pods", "persistentvolumeclaims"):
            self._ends.append(self._loop.create_task(self._end(kind, marked, None)))
        return marked

    def _collect(self) -> None:
        for (kind, namespace, name), obj in list(self.store.objects.items()):
            if kind not in self._schemas or "deletionTimestamp" not in obj["metadata"]:
                continue
            uid = obj["metadata"]["uid"]
            held = [
                (what, one) for (what, _, _), one in self.store.objects.items() if _is_of(one, uid)
            ]
            for what, one in held:
                self._mark(what, one)
            if not held:
                self.store.remove(kind, namespace, name)

    # What the controller does

    def _reconcile(self) -> None:
        steps = (
            ("sandboxwarmpools", self._fill),
            ("sandboxclaims", self._serve),
            ("sandboxes", self._run),
        )
        for kind, step in steps:
            for obj in self.all_of(kind):
                if "deletionTimestamp" not in obj["metadata"]:
                    step(obj)

    def _find(self, kind: str, beside: Json, name: str) -> Json | None:
        return self.store.objects.get((kind, beside["metadata"]["namespace"], name))

    def _template_of(self, pool: Json) -> Json | None:
        return self._find("sandboxtemplates", pool, pool["spec"]["sandboxTemplateRef"]["name"])

    def _members(self, pool: Json) -> list[Json]:
        found = [one for one in self.all_of("sandboxes") if _is_of(one, pool["metadata"]["uid"])]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def _fill(self, pool: Json) -> None:
        template = self._template_of(pool)
        if template is None:
            return
        for _ in range(pool["spec"]["replicas"] - len(self._members(pool))):
            self._make(
                f"{pool['metadata']['name']}-{new_id()[:5]}", template, "SandboxWarmPool", pool
            )
        members = self._members(pool)
        ready = [one for one in members if _is_ready(one)]
        status = {"replicas": len(members), "readyReplicas": len(ready)}
        self.store.put("sandboxwarmpools", {**pool, "status": status})

    def _make(self, name: str, template: Json, kind: str, owner: Json) -> Json:
        blueprint = {
            key: copy.deepcopy(template["spec"][key])
            for key in ("podTemplate", "volumeClaimTemplates", "service")
            if key in template["spec"]
        }
        blueprint["podTemplate"]["spec"].setdefault("automountServiceAccountToken", False)
        metadata = {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "ownerReferences": [_reference(kind, f"extensions.{SYSTEM}/v1beta1", owner)],
        }
        made = {"apiVersion": f"{SYSTEM}/v1beta1", "kind": "Sandbox", "spec": blueprint}
        return self._stored("sandboxes", {**made, "metadata": metadata}, {})

    def _serve(self, claim: Json) -> None:
        try:
            sandbox = self._bound(claim) or self._bind(claim)
        except Refused as exc:
            self._say("sandboxclaims", claim, {}, _condition("Ready", exc.reason, str(exc)))
            return
        status = sandbox.get("status") or {}
        ready = next(
            (one for one in status.get("conditions", ()) if one["type"] == "Ready"),
            _condition("Ready", "SandboxNotReady", "Sandbox is not ready"),
        )
        about = {"name": sandbox["metadata"]["name"], "podIPs": status.get("podIPs", [])}
        claim = self.store.get(
            "sandboxclaims", claim["metadata"]["namespace"], claim["metadata"]["name"]
        )
        self._say("sandboxclaims", claim, {"sandbox": about}, ready)

    def _bound(self, claim: Json) -> Json | None:
        name = (claim["metadata"].get("annotations") or {}).get(ASSIGNED, claim["metadata"]["name"])
        found = self._find("sandboxes", claim, name)
        return found if found and _is_of(found, claim["metadata"]["uid"]) else None

    def _bind(self, claim: Json) -> Json:
        more = claim["spec"].get("additionalPodMetadata") or {}
        _check_metadata(more)
        name = claim["spec"]["warmPoolRef"]["name"]
        pool = self._find("sandboxwarmpools", claim, name)
        if pool is None:
            raise Refused(404, "WarmPoolNotFound", f'SandboxWarmPool "{name}" not found')
        template = self._template_of(pool)
        if template is None:
            raise Refused(404, "TemplateNotFound", "SandboxTemplate not found")
        free = sorted(self._members(pool), key=lambda one: not _is_ready(one))
        free = [one for one in free if (one.get("status") or {}).get("podIPs")]
        if claim["spec"].get("env") and template["spec"]["envVarsInjectionPolicy"] == "Disallowed":
            raise Refused(
                422, "EnvVarsInjectionRejected", "environment variable injection rejected"
            )
        is_cold = bool(claim["spec"].get("env")) or not free
        found = free[0] if not is_cold else self._make(
            claim["metadata"]["name"], template, "SandboxClaim", claim
        )  # fmt: skip
        name = found["metadata"]["name"]
        self.store.put(
            "sandboxclaims", merged(claim, {"metadata": {"annotations": {ASSIGNED: name}}})
        )
        adopted = copy.deepcopy(found)
        adopted["metadata"]["ownerReferences"] = [
            _reference("SandboxClaim", f"extensions.{SYSTEM}/v1beta1", claim)
        ]
        adopted["metadata"]["annotations"] = {f"{SYSTEM}/pod-name": name}
        about = merged(template["spec"]["podTemplate"].get("metadata") or {}, more)
        about["labels"] = {
            **about.get("labels", {}),
            f"{SYSTEM}/claim-uid": claim["metadata"]["uid"],
        }
        adopted["spec"]["podTemplate"]["metadata"] = about
        return self.store.put("sandboxes", adopted)

    def _run(self, sandbox: Json) -> None:
        name, uid = sandbox["metadata"]["name"], sandbox["metadata"]["uid"]
        is_suspended = sandbox["spec"]["operatingMode"] == "Suspended"
        for template in sandbox["spec"].get("volumeClaimTemplates") or ():
            self._make_claim(sandbox, template)
        pod = self._find("pods", sandbox, name)
        if pod is not None and not _is_of(pod, uid):
            why = f'Error seen: cannot adopt unowned pod "{name}"'
            self._say("sandboxes", sandbox, {}, _condition("Ready", "ReconcilerError", why))
            return
        if pod is None and not is_suspended:
            pod = self._make_pod(sandbox)
            noted = merged(sandbox, {"metadata": {"annotations": {f"{SYSTEM}/pod-name": name}}})
            sandbox = self.store.put("sandboxes", noted)
        elif pod is not None and is_suspended:
            self._mark("pods", pod)
        elif pod is not None:
            self.store.put("pods", merged(pod, {"metadata": _told(sandbox)}))
        if sandbox["spec"].get("service") and self._find("services", sandbox, name) is None:
            self._make_service(sandbox)
        ips = [one["ip"] for one in ((pod or {}).get("status") or {}).get("podIPs", ())]
        self._say(
            "sandboxes", sandbox, {"podIPs": ips}, *_conditions(pod, is_suspended=is_suspended)
        )

    def _make_claim(self, sandbox: Json, template: Json) -> None:
        name = f"{template['metadata']['name']}-{sandbox['metadata']['name']}"
        if self._find("persistentvolumeclaims", sandbox, name) is None:
            metadata = {**template["metadata"], **_below(sandbox, name)}
            spec = copy.deepcopy(template["spec"])
            self._stored("persistentvolumeclaims", {"metadata": metadata, "spec": spec}, {})

    def _make_pod(self, sandbox: Json) -> Json:
        name, spec = (
            sandbox["metadata"]["name"],
            copy.deepcopy(sandbox["spec"]["podTemplate"]["spec"]),
        )
        files = [
            one["metadata"]["name"] for one in sandbox["spec"].get("volumeClaimTemplates") or ()
        ]
        spec["volumes"] = [one for one in spec.get("volumes") or () if one["name"] not in files]
        spec["volumes"] += [
            {"name": one, "persistentVolumeClaim": {"claimName": f"{one}-{name}"}} for one in files
        ]
        metadata = {**_told(sandbox), **_below(sandbox, name)}
        return self._stored("pods", {"metadata": metadata, "spec": spec}, {})

    def _make_service(self, sandbox: Json) -> None:
        metadata = _below(sandbox, sandbox["metadata"]["name"])
        self._stored("services", {"metadata": metadata, "spec": {"clusterIP": "None"}}, {})

    def _say(self, kind: str, obj: Json, status: Json, *conditions: Json) -> None:
        known = {one["type"]: one for one in (obj.get("status") or {}).get("conditions", ())}

        def plain(one: Json) -> Json:
            return {key: value for key, value in one.items() if key != "lastTransitionTime"}

        told = [
            known[one["type"]] if plain(known.get(one["type"], {})) == plain(one) else one
            for one in conditions
        ]
        self.store.put(kind, {**obj, "status": {**status, "conditions": told}})


def _below(sandbox: Json, name: str) -> Json:
    return {
        "name": name,
        "namespace": sandbox["metadata"]["namespace"],
        "ownerReferences": [_reference("Sandbox", f"{SYSTEM}/v1beta1", sandbox)],
    }


def _told(sandbox: Json) -> Json:
    """Return the labels and annotations that a pod gets: none of the system's."""
    about = sandbox["spec"]["podTemplate"].get("metadata") or {}
    return {
        part: {key: value for key, value in (about.get(part) or {}).items() if SYSTEM not in key}
        for part in ("labels", "annotations")
    }


def _check_metadata(more: Json) -> None:
    for key in more.get("labels") or {}:
        if key.partition("/")[0] != LABEL_DOMAIN:
            raise Refused(422, "InvalidMetadata", f"label {key!r} is not in the allowlist")
    for key in more.get("annotations") or {}:
        domain = key.partition("/")[0]
        if any(domain == one or domain.endswith(f".{one}") for one in _RESERVED):
            raise Refused(422, "InvalidMetadata", f"restricted system domain: {key!r}")


def _conditions(pod: Json | None, *, is_suspended: bool) -> list[Json]:
    status = (pod or {}).get("status") or {}
    if is_suspended:
        reason = "PodTerminated" if pod is None else "PodTerminating"
        suspended = _condition("Suspended", reason, "", is_true=pod is None)
        return [suspended, _condition("Ready", "SandboxSuspended", "Sandbox is suspended")]
    if (phase := status.get("phase")) in ("Failed", "Succeeded"):
        reason = f"Pod{phase}"
        finished = _condition("Finished", reason, "", is_true=True)
        return [finished, _condition("Ready", reason, f"Pod {phase}")]
    if any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())
    ):
        return [_condition("Ready", "DependenciesReady", "Pod is Ready", is_true=True)]
    return [_condition("Ready", "DependenciesNotReady", f"Pod exists with phase: {phase}")]


def _condition(kind: str, reason: str, message: str, *, is_true: bool = False) -> Json:
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": stamp(),
    }


def _is_ready(sandbox: Json) -> bool:
    conditions = (sandbox.get("status") or {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _is_of(obj: Json, uid: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(one["uid"] == uid and one.get("controller") for one in owners)


def _reference(kind: str, version: str, owner: Json) -> Json:
    return {
        "apiVersion": version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
