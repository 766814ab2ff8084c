"""The steps that create, pause and remove a sandbox resource; each is idempotent."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from agentsvc.base import BackendUnavailable, Conflict, OrderRejected, monotonic
from agentsvc.plugin import Order

from . import resources
from .kube import api, inspection, making, names, objects, settings, watch
from .resources import BoundSandbox, Json, Resource

if TYPE_CHECKING:
    import aiohttp

_KEEPER: Final = "persistentvolumeclaims"
"""The object by which the kubernetes backend finds a sandbox; replaced here by the resource."""
_BESIDE: Final[tuple[names.Kind, ...]] = ("secrets", "networkpolicies")
_POD: Final = re.compile(r"(?<=/pods/)oh-agent-server-([a-z0-9]+)(?=/|$)")
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
_CONFLICT: Final = 409
_POLL_SECONDS: Final = 0.1


class PodApi(api.Api):
    """API client that redirects requests for a sandbox's pod to the pod bound from a pool."""

    def __init__(self, config: settings.KubernetesConfig) -> None:
        super().__init__(config)
        self.bound_pods: dict[str, BoundSandbox] = {}

    async def ask(self, method: str, path: str, **more: Any) -> Json | None:
        """Send a request like the parent, to the bound pod."""
        return await super().ask(method, self._bound_path(path), **more)

    @asynccontextmanager
    async def stream(
        self, path: str, query: api.Query, *, silence_seconds: float | None = None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Open a stream like the parent, to the bound pod."""
        silence = silence_seconds
        async with super().stream(self._bound_path(path), query, silence_seconds=silence) as answer:
            yield answer

    @asynccontextmanager
    async def socket(
        self, path: str, query: api.Query
    ) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
        """Open a WebSocket like the parent, to the bound pod."""
        async with super().socket(self._bound_path(path), query) as opened:
            yield opened

    def _bound_path(self, path: str) -> str:
        if (found := _POD.search(path)) and (bound := self.bound_pods.get(found.group(1))):
            return path[: found.start()] + bound.pod + path[found.end() :]
        return path


class SandboxMaker(making.Maker):
    """Creates and removes sandboxes, from a pool if one is given."""

    def __init__(
        self,
        pods: PodApi,
        known: watch.PodWatch,
        config: settings.KubernetesConfig,
        *,
        instance_id: str,
        namespace: str,
        pool: str,
    ) -> None:
        super().__init__(pods, known, config, instance_id=instance_id, namespace=namespace)
        self._pods = pods.bound_pods
        self._pool = pool
        self._resource: Resource = "sandboxclaims" if pool else "sandboxes"

    async def make(self, order: Order) -> None:
        """Apply the resource and the objects that belong to it; the controller does the rest."""
        context = objects.PodContext(
            instance_id=self._instance_id, namespace=self._namespace, config=self._config
        )
        known = await self._check_free(order.sandbox_id)
        if self._pool:
            await self._check_pool()
            manifest = resources.claim(order, context, self._pool)
        else:
            manifest = resources.sandbox(order, context, known)
        path = self._path(names.main(order.sandbox_id))
        owner = await self._apply_to(path, manifest)
        # The response may omit these fields.
        owner = {**owner, "apiVersion": manifest["apiVersion"], "kind": manifest["kind"]}
        secret = resources.secret(order, context, owner, is_claimed=bool(self._pool))
        await self._apply("secrets", secret)
        if not self._pool:
            policy = resources.owned(objects.policy(order, context, owner), owner)
            await self._apply("networkpolicies", policy)

    async def start_again(self, sandbox_id: str, claim: Json) -> None:
        """Do nothing: the controller creates the pod of a sandbox that is not suspended."""

    async def find(self, kind: names.Kind, name: str, sandbox_id: str) -> Json | None:
        """Return our object of that name, or None; the resource stands in for the volume claim."""
        if kind == _KEEPER:
            found = await self._api.get(self._path(name))
            return found if names.is_own(found, self._instance_id, sandbox_id) else None
        if kind == "pods" and self._pool:
            return await self.find_pod(sandbox_id)
        return await super().find(kind, name, sandbox_id)

    async def find_pod(self, sandbox_id: str) -> Json | None:
        """Return the pod of a sandbox; of a claim, only a pod that was really bound to it."""
        if not self._pool:
            return await super().find_pod(sandbox_id)
        pod = await self._bound_pod(sandbox_id)
        if pod is None and await self.find_bound(sandbox_id) is not None:
            pod = await self._bound_pod(sandbox_id)
        return pod

    async def has_begun(self, sandbox_id: str) -> bool:
        """Return whether a sandbox runs commands, after waiting for the controller."""
        until = monotonic() + self._config.request_seconds
        while await self.find_pod(sandbox_id) is None and monotonic() < until:
            claim = await self.find_claim(sandbox_id)
            if claim is None or names.annotations_of(claim).get(names.PAUSED):
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return await super().has_begun(sandbox_id)

    async def find_bound(self, sandbox_id: str) -> BoundSandbox | None:
        """Read which sandbox is bound to a claim, and cache it."""
        self._pods.pop(sandbox_id, None)
        claim = await self.find_claim(sandbox_id)
        name = resources.name_of(claim or {})
        found = await self._api.get(self._path(name, "sandboxes")) if name else None
        if claim is None or found is None or not resources.is_owned(found, names.uid_of(claim)):
            return None
        self._pods[sandbox_id] = resources.bound(found)
        return self._pods[sandbox_id]

    async def mark_paused(self, sandbox_id: str, *, is_paused: bool) -> None:
        """Mark the sandbox as paused or not, and suspend or resume it through the controller."""
        note: Json = {"metadata": {"annotations": {names.PAUSED: "yes" if is_paused else None}}}
        mode: Json = {"spec": {"operatingMode": "Suspended" if is_paused else "Running"}}
        own = self._path(names.main(sandbox_id))
        if not self._pool:
            steps: list[tuple[str, Json]] = [(own, {**note, **mode})]
        else:
            bound = await self.find_bound(sandbox_id)
            theirs = [(self._path(bound.name, "sandboxes"), mode)] if bound else []
            # An interrupted pause leaves the mark, so that it is repeated.
            steps = [(own, note), *theirs] if is_paused else [*theirs, (own, note)]
        for path, body in steps:
            found = await self._api.ask(
                "PATCH", path, body=body, content_type=api.MERGE, expect=(_NOT_FOUND,)
            )
            if found is None:
                raise Conflict("The sandbox is gone from the cluster")

    async def remove(self, sandbox_id: str) -> None:
        """Remove the resource and all objects that the controller made for it; wait for the end."""
        name = names.main(sandbox_id)
        until = monotonic() + self._config.stop_seconds + self._config.end_seconds
        pod = await self.find_pod(sandbox_id)
        while True:
            found = await self.find(_KEEPER, name, sandbox_id)
            if found is None and await self.find_pod(sandbox_id) is None:
                break
            if found is not None and not names.is_ending(found):
                await self._delete_resource(name, found)
                if pod is not None and inspection.is_node_lost(pod):
                    # The sandbox is being deleted, so its pod need not end cleanly on a lost node.
                    await self._delete("pods", name, pod, grace_seconds=0)
            if monotonic() > until:
                raise BackendUnavailable("The cluster does not remove the sandbox in time")
            await asyncio.sleep(_POLL_SECONDS)
        for kind in _BESIDE:
            if (found := await self.find(kind, name, sandbox_id)) is not None:
                await self._delete(kind, name, found)
        self._pods.pop(sandbox_id, None)

    # Private helpers

    def _path(self, name: str, resource: Resource | None = None) -> str:
        return resources.path(resource or self._resource, self._namespace, name)

    async def _bound_pod(self, sandbox_id: str) -> Json | None:
        if (bound := self._pods.get(sandbox_id)) is None:
            return None
        pod = await self._api.get(names.path("pods", self._namespace, bound.pod))
        return pod if pod is not None and resources.is_owned(pod, bound.uid) else None

    async def _check_free(self, sandbox_id: str) -> Json | None:
        """Return our resource; raises OrderRejected if its name belongs to a foreign object."""
        name = names.main(sandbox_id)
        known = await self._api.get(self._path(name))
        others = [await self._api.get(names.path(kind, self._namespace, name)) for kind in _BESIDE]
        for found in (known, *others):
            if found is not None and not names.is_own(found, self._instance_id, sandbox_id):
                raise OrderRejected(f"The namespace has a `{name}` that this server did not create")
        if known is not None and names.is_ending(known):
            raise BackendUnavailable("The sandbox is being removed")
        return known

    async def _check_pool(self) -> None:
        # Without permission to read pools, a missing pool shows in the claim.
        path = self._path(self._pool, "sandboxwarmpools")
        await self._api.ask("GET", path, expect=(_FORBIDDEN,))

    async def _apply_to(self, path: str, manifest: Json) -> Json:
        query = {"fieldManager": objects.FIELD_MANAGER, "force": "true"}
        found = await self._api.ask(
            "PATCH", path, query=query, body=manifest, content_type=api.APPLY
        )
        return found or {}

    async def _delete_resource(self, name: str, found: Json) -> None:
        # It exists until its pod and its files are deleted.
        body = {
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": names.uid_of(found)},
        }
        await self._api.ask("DELETE", self._path(name), body=body, expect=(_NOT_FOUND, _CONFLICT))
