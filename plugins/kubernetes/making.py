"""Steps that create and remove a sandbox's objects in a cluster; each may be repeated.

The claim is created first and owns the other objects. Objects are named after their sandbox and
applied as a whole, so that repeated creation yields one object. An order is rejected if another
owner has an object of the sandbox's name, and only the sandbox's own objects are removed.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentsvc.base import BackendUnavailable, Conflict, OrderRejected, monotonic
from agentsvc.plugin import Order, checkpoints_program

from . import checkpoints, gateways, inspection, names, objects, plan
from .api import APPLY, MERGE, Api
from .names import Kind
from .objects import PodContext
from .settings import KubernetesConfig
from .watch import PodWatch

type Json = dict[str, Any]

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_NO_APPLY: Final = 415
_LOOK_SECONDS: Final = 1.0
_KINDS: Final[tuple[Kind, ...]] = (
    "services",
    "networkpolicies",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
)
_BODIES: Final = msgspec.json.Decoder(dict[str, Json])


class Maker:
    """Creates and removes sandboxes of one installation in one namespace."""

    def __init__(
        self,
        api: Api,
        watch: PodWatch,
        config: KubernetesConfig,
        *,
        instance_id: str,
        namespace: str,
        keeps_checkpoints: bool = False,
    ) -> None:
        self._api = api
        self._watch = watch
        self._config = config
        self._instance_id = instance_id
        self._namespace = namespace
        self._keeps_checkpoints = keeps_checkpoints

    async def make(self, order: Order) -> None:
        """Create all objects of a sandbox, unless it has a pod that is not being removed."""
        found = await self.find_pod(order.sandbox_id)
        if found is not None and not names.is_ending(found):
            return
        await self._check_names(order.sandbox_id)
        context = PodContext(
            instance_id=self._instance_id, namespace=self._namespace, config=self._config
        )
        owner = await self._claim(order, context)
        bodies: dict[str, Json] = {}
        if plan.needs_gateway(order.network):
            context, bodies["gateway"] = await self._gateway(order, context, owner)
        bodies["pod"] = objects.pod(order, context)
        if self._keeps_checkpoints or checkpoints.is_going_back(owner):
            files = await asyncio.to_thread(checkpoints_program.programs)
            await self._apply("configmaps", checkpoints.program(order, context, owner, files))
            bodies["pod"] = checkpoints.beside(bodies["pod"], order, files)
        await self._remember(owner, bodies)
        await self._apply("secrets", objects.secret(order, context, owner))
        await self._apply("services", objects.service(order, context, owner))
        await self._apply("networkpolicies", objects.policy(order, context, owner))
        await self._start(order.sandbox_id, bodies, owner)

    async def begin_with(self, order: Order, source: Json) -> None:
        """Create a sandbox's claim from a snapshot; `make` creates the other objects."""
        await self._check_names(order.sandbox_id)
        context = PodContext(
            instance_id=self._instance_id, namespace=self._namespace, config=self._config
        )
        await self._claim(order, context, source)

    async def start_again(self, sandbox_id: str, claim: Json) -> None:
        """Create the pods again from the claim's stored manifests; raises Conflict without them."""
        try:
            bodies = _BODIES.decode(names.annotations_of(claim).get(names.POD, ""))
        except msgspec.MsgspecError as exc:
            raise Conflict("The sandbox cannot go on: its claim does not say how") from exc
        await self._start(sandbox_id, bodies, claim)

    async def find_pod(self, sandbox_id: str) -> Json | None:
        """Return a sandbox's own pod, or None; raises BackendUnavailable if that is unknown."""
        found = await self._watch.find(self._namespace, names.main(sandbox_id))
        return found if names.is_own(found, self._instance_id, sandbox_id) else None

    async def has_begun(self, sandbox_id: str) -> bool:
        """Return whether a sandbox can run commands; wait for a pod that is starting."""
        until = monotonic() + self._config.request_seconds
        async with self._watch.changes(names.main(sandbox_id)) as changed:
            while (pod := await self.find_pod(sandbox_id)) is not None:
                is_over = names.is_ending(pod) or inspection.is_over(pod)
                if inspection.has_begun(pod) or is_over or monotonic() > until:
                    return inspection.has_begun(pod) and not is_over
                await _wait(changed, _LOOK_SECONDS)
        return False

    async def find_claim(self, sandbox_id: str) -> Json | None:
        """Return a sandbox's own claim, or None if it is gone or being removed."""
        found = await self.find("persistentvolumeclaims", names.main(sandbox_id), sandbox_id)
        return None if found is None or names.is_ending(found) else found

    async def find(self, kind: Kind, name: str, sandbox_id: str) -> Json | None:
        """Return the sandbox's own object of that name, or None."""
        found = await self._api.get(names.path(kind, self._namespace, name))
        return found if names.is_own(found, self._instance_id, sandbox_id) else None

    async def mark_paused(self, sandbox_id: str, *, is_paused: bool) -> None:
        """Record at the claim whether the sandbox is paused; raises Conflict without a claim."""
        path = names.path("persistentvolumeclaims", self._namespace, names.main(sandbox_id))
        body = {"metadata": {"annotations": {names.PAUSED: "yes" if is_paused else None}}}
        found = await self._api.ask(
            "PATCH", path, body=body, content_type=MERGE, expect=(_NOT_FOUND,)
        )
        if found is None:
            raise Conflict("The sandbox's files are gone")

    async def end(self, sandbox_id: str) -> None:
        """Remove the pods of a sandbox, and wait until they are gone."""
        for name in (names.main(sandbox_id), names.gateway(sandbox_id)):
            await self._end_pod(sandbox_id, name, is_forced=False)

    async def remove(self, sandbox_id: str) -> None:
        """Remove all objects of a sandbox, and wait until its pods and claim are gone."""
        for name in (names.main(sandbox_id), names.gateway(sandbox_id)):
            await self._end_pod(sandbox_id, name, is_forced=True)
        for kind in _KINDS:
            for name in (names.main(sandbox_id), names.gateway(sandbox_id)):
                found = await self.find(kind, name, sandbox_id)
                if found is not None:
                    await self._delete(kind, name, found)
        until = monotonic() + self._config.end_seconds
        name = names.main(sandbox_id)
        while await self.find("persistentvolumeclaims", name, sandbox_id) is not None:
            if monotonic() > until:
                raise BackendUnavailable("The cluster does not let go of the sandbox's claim")
            await asyncio.sleep(_LOOK_SECONDS / 10)

    # The parts

    async def _check_names(self, sandbox_id: str) -> None:
        """Raise OrderRejected if another owner has an object of the sandbox's name."""
        name = names.main(sandbox_id)
        kinds: tuple[Kind, ...] = ("pods", *_KINDS)
        for kind in kinds:
            found = await self._api.get(names.path(kind, self._namespace, name))
            if found is not None and not names.is_own(found, self._instance_id, sandbox_id):
                raise OrderRejected(f"The namespace has {kind} `{name}` not of this server")

    async def _claim(self, order: Order, context: PodContext, source: Json | None = None) -> Json:
        found = await self.find(
            "persistentvolumeclaims", names.main(order.sandbox_id), order.sandbox_id
        )
        if found is not None and names.is_ending(found):
            raise BackendUnavailable("The sandbox's claim is being removed")
        # What a claim asks for cannot be changed.
        manifest = objects.claim(order, context, source)
        return found or await self._apply("persistentvolumeclaims", manifest)

    async def _remember(self, claim: Json, bodies: Mapping[str, Json]) -> None:
        path = names.path("persistentvolumeclaims", self._namespace, claim["metadata"]["name"])
        text = msgspec.json.encode(bodies).decode()
        body = {"metadata": {"annotations": {names.POD: text}}}
        await self._api.ask("PATCH", path, body=body, content_type=MERGE)

    async def _gateway(
        self, order: Order, context: PodContext, owner: Json
    ) -> tuple[PodContext, Json]:
        sources = await asyncio.to_thread(gateways.sources)
        await self._apply("configmaps", gateways.program(order, context, owner, sources))
        service = await self._apply("services", gateways.service(order, context, owner))
        await self._apply("networkpolicies", gateways.policy(order, context, owner))
        context = msgspec.structs.replace(context, proxy_url=gateways.url_of(service))
        return context, gateways.pod(order, context, sources)

    async def _start(self, sandbox_id: str, bodies: Mapping[str, Json], owner: Json) -> None:
        for body in bodies.values():
            name = body["metadata"]["name"]
            await self._wait_for_end(sandbox_id, name)
            manifest = objects.owned(checkpoints.going_back(body, owner), owner)
            self._watch.put(await self._apply("pods", manifest))

    async def _apply(self, kind: Kind, manifest: Json) -> Json:
        """Create an object, or update it to match its manifest; return it."""
        name = manifest["metadata"]["name"]
        query = {"fieldManager": objects.FIELD_MANAGER, "force": "true"}
        found = await self._api.ask(
            "PATCH",
            names.path(kind, self._namespace, name),
            query=query,
            body=manifest,
            content_type=APPLY,
            expect=(_NO_APPLY,),
        )
        return found or await self._create(kind, name, manifest)

    async def _create(self, kind: Kind, name: str, manifest: Json) -> Json:
        # An API server that cannot apply.
        path = names.path(kind, self._namespace)
        found = await self._api.ask("POST", path, body=manifest, expect=(_CONFLICT,))
        found = found or await self._api.get(names.path(kind, self._namespace, name))
        if found is None:
            raise BackendUnavailable(f"The cluster has {kind} `{name}` and has it not")
        return found

    async def _end_pod(self, sandbox_id: str, name: str, *, is_forced: bool) -> None:
        found = await self.find("pods", name, sandbox_id)
        if found is None:
            return
        await self._delete("pods", name, found)
        if is_forced and inspection.is_node_lost(found):
            # Nobody wants it any more, wherever it may still run: its node ends it when it is back.
            await self._delete("pods", name, found, grace_seconds=0)
        await self._wait_for_end(sandbox_id, name)

    async def _wait_for_end(self, sandbox_id: str, name: str) -> None:
        """Wait until a pod that is being removed is gone; return at once for any other pod."""
        until = monotonic() + self._config.stop_seconds + self._config.end_seconds
        async with self._watch.changes(name) as changed:
            while (found := await self.find("pods", name, sandbox_id)) is not None:
                if not names.is_ending(found):
                    return
                if monotonic() > until:
                    raise BackendUnavailable(
                        "The node of the sandbox does not say that it has ended"
                    )
                await _wait(changed, _LOOK_SECONDS)

    async def _delete(
        self, kind: Kind, name: str, found: Json, *, grace_seconds: int | None = None
    ) -> None:
        body: Json = {
            "propagationPolicy": "Background",
            # Not what has come after it under the same name.
            "preconditions": {"uid": names.uid_of(found)},
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        path = names.path(kind, self._namespace, name)
        await self._api.ask("DELETE", path, body=body, expect=(_NOT_FOUND, _CONFLICT))


async def _wait(changed: asyncio.Event, time_limit: float) -> None:
    try:
        async with asyncio.timeout(time_limit):
            await changed.wait()
    except TimeoutError:
        return
    changed.clear()
