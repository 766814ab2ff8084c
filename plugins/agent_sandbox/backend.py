"""The agent_sandbox backend: the kubernetes backend, with a controller that creates the pods."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from agentsvc.base import Conflict, OrderRejected, now, parse_time
from agentsvc.plugin import (
    BackendContext,
    Capability,
    ExecResult,
    Fences,
    Found,
    Handle,
    Network,
    Order,
    Phase,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    check_handle,
    check_hosts,
    finish,
)

from . import handover, resources
from .kube import backend, inspection, making, names, plan, settings, tunnels, usage, watch
from .maker import PodApi, SandboxMaker
from .resources import Json, Resource

_SCANNED: tuple[Resource, ...] = ("sandboxes", "sandboxclaims")


class AgentSandboxBackend(backend.KubernetesBackend):
    """Runs each sandbox as a `Sandbox` resource, or as a `SandboxClaim` on a warm pool."""

    name: ClassVar[str] = "agent_sandbox"
    # The controller creates the volume claims from its own templates.
    capabilities = backend.KubernetesBackend.capabilities - {
        Capability.LAYERS,
        Capability.COPIES,
        Capability.CHECKPOINTS,
    }

    def __init__(self, config: settings.KubernetesConfig, context: BackendContext) -> None:
        super().__init__(config, context)
        self._api: PodApi = PodApi(config)
        self._watch = watch.PodWatch(self._api, context.instance_id)
        self._meter = usage.Meter(self._api, context.instance_id)
        self._tunnels = tunnels.Tunnels(self._api, context.state_dir, context.instance_id)
        self._configured: dict[str, str] = {}

    def fences(self, asked: Spec | Order) -> Fences:
        """Return what is enforced; for a pool its template decides, which is unknown here."""
        found = super().fences(resources.plain(asked))
        found = msgspec.structs.replace(
            found,
            networks=frozenset({Network.OPEN}),
            network_remedy="the kubernetes backend can, in the same cluster",
        )
        if not resources.pool_of(asked):
            return found
        return msgspec.structs.replace(
            found, isolation=plan.isolation_of(""), limits=frozenset(), remedy="use no `warm_pool`"
        )

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Apply the resource or claim, and the objects that belong to it."""
        self._check(order)
        handle = await self._handle(order.sandbox_id, resources.pool_of(order))
        await save(handle)
        await finish(self._maker(handle).make(resources.plain(order)))
        return handle

    async def scan(self) -> Sequence[Found]:
        """List the resources and claims that this installation has created."""
        selector = names.of_installation(self.context.instance_id)
        found = []
        for resource in _SCANNED:
            path = resources.path(resource, self._api.namespace)
            listed, _ = await self._api.list_all(path, selector=selector)
            for one in listed:
                sandbox_id = names.labels_of(one).get(names.SANDBOX, "")
                handle = await self._handle(sandbox_id, resources.pool_claimed(one))
                made = parse_time(str(one["metadata"].get("creationTimestamp"))) or now()
                found.append(Found(handle=handle, created_at=made))
        return found

    async def leftovers(self) -> Sequence[str]:
        """Return leftovers of the parent's kinds, and the resources."""
        found = list(await super().leftovers())
        for resource in _SCANNED:
            listed, _ = await self._api.list_all(resources.path(resource, self._api.namespace))
            found += [
                f"{resource} {one['metadata']['name']}"
                for one in listed
                if self.context.instance_id in str(one)
            ]
        return found

    # Unsupported operations are rejected as in any backend without the capability.
    keep_layer = RuntimeBackend.keep_layer
    checkpoint = RuntimeBackend.checkpoint
    checkpoints = RuntimeBackend.checkpoints
    roll_back = RuntimeBackend.roll_back

    async def execute(
        self,
        handle: Handle,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        time_limit: float,
        max_output: int,
    ) -> ExecResult:
        """Run a command; in a pod from a pool, with the sandbox's environment."""
        if handle.data.get("pool"):
            if await self._maker(handle).has_begun(handle.sandbox_id):
                pod = await self._maker(handle).find_pod(handle.sandbox_id)
                if why := await self._configure(handle, pod or {}):
                    raise Conflict(f"The sandbox accepts no commands now: {why}")
            argv, env = handover.wrap_command(argv, env), {}
        return await super().execute(
            handle, argv, env=env, time_limit=time_limit, max_output=max_output
        )

    # Overridden steps of the parent

    def _check(self, asked: Spec | Order) -> None:
        self.check_fences(asked)
        plan.check(resources.plain(asked))
        check_hosts(asked)

    def _maker(self, handle: Handle) -> making.Maker:
        check_handle(handle, backend.HANDLE_VERSION, f"{self.name} backend")
        return SandboxMaker(
            self._api,
            self._watch,
            self.config,
            instance_id=self.context.instance_id,
            namespace=self._namespace(handle),
            pool=str(handle.data.get("pool", "")),
        )

    async def _handle(self, sandbox_id: str, pool: str) -> Handle:
        namespace = self._api.namespace
        data = {"namespace": namespace, "place": await self._place(namespace)}
        data |= {"pool": pool} if pool else {}
        return Handle(sandbox_id=sandbox_id, version=backend.HANDLE_VERSION, data=data)

    async def _lacking(self) -> list[str]:
        lacking = []
        for resource in _SCANNED:
            path = resources.path(resource, self._api.namespace)
            try:
                await self._api.ask("GET", path, query={"limit": "1"})
            except OrderRejected as exc:
                lacking.append(f"list {resource} (is agent-sandbox installed? {exc.message})")
        return lacking

    async def _without_pod(self, maker: making.Maker, handle: Handle) -> Report:
        found = await maker.find_claim(handle.sandbox_id)
        if found is None or names.annotations_of(found).get(names.PAUSED):
            return await super()._without_pod(maker, handle)
        return resources.without_pod(found)

    async def _reached(self, report: Report, handle: Handle, pod: Json) -> Report:
        if not handle.data.get("pool"):
            return await super()._reached(report, handle, pod)
        reason = await self._configure(handle, pod)
        # A pod from a pool is ready before it is configured.
        for name in inspection.awaited_of(pod)[:1] if not reason else ():
            if not await self._answers(handle, pod, inspection.ports_of(pod)[name]):
                reason = f"its port `{name}` does not answer yet"
        if reason:
            return msgspec.structs.replace(report, phase=Phase.STARTING, reason=reason)
        return await super()._reached(report, handle, pod)

    async def _url_of(self, handle: Handle, pod: Json, number: int) -> str:
        found = await super()._url_of(handle, pod, number)
        bound = self._api.bound_pods.get(handle.sandbox_id)
        if bound is None or self._way != "service":
            return found
        return found.replace(names.main(handle.sandbox_id), bound.name)

    async def _configure(self, handle: Handle, pod: Json) -> str:
        """Configure a pod from a pool, once; return why that is not done yet, or ""."""
        sandbox_id, namespace = handle.sandbox_id, self._namespace(handle)
        if self._configured.get(sandbox_id) == names.uid_of(pod):
            return ""
        name = names.main(sandbox_id)
        secret = await self._maker(handle).find("secrets", name, sandbox_id)
        if secret is None:
            return "its secret does not exist yet"
        try:
            path = names.path("pods", namespace, name, below="exec")
            async with asyncio.timeout(self.config.request_seconds):
                await handover.send_start(self._api, path, secret)
        except (Conflict, OrderRejected) as exc:
            return exc.message
        except TimeoutError:
            return "its pod does not respond to its configuration"
        self._configured[sandbox_id] = names.uid_of(pod)
        return ""

    async def _restart(self, maker: making.Maker, order: Order) -> None:
        pod = await maker.find_pod(order.sandbox_id)
        is_to_be_made = pod is None or names.is_ending(pod) or inspection.is_over(pod)
        if is_to_be_made:
            # The controller keeps a failed pod, and creates a new one from the template of that
            # time.
            await maker.mark_paused(order.sandbox_id, is_paused=True)
            await maker.end(order.sandbox_id)
        await maker.make(resources.plain(order))
        await maker.mark_paused(order.sandbox_id, is_paused=False)

    async def _delete(self, handle: Handle) -> None:
        await super()._delete(handle)
        self._configured.pop(handle.sandbox_id, None)
