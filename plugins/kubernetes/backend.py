"""The kubernetes backend: implements `agentsvc.plugin.backend` with pods and claims."""

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    Conflict,
    HandleTooNew,
    OrderRejected,
    now,
    parse_time,
)
from agentsvc.plugin import (
    API_VERSION,
    Advice,
    BackendContext,
    Capability,
    Checkpoint,
    Endpoint,
    ExecResult,
    Fences,
    Found,
    Handle,
    Health,
    LogLine,
    Network,
    Order,
    Phase,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
    check_hosts,
    finish,
)

from . import checkpoints, commands, inspection, names, plan, settings
from .api import Api
from .logs import follow_log, read_log
from .making import Maker
from .names import Kind
from .reach import answers
from .settings import KubernetesConfig
from .snapshots import Snapshots, is_filled
from .tunnels import Tunnels
from .usage import Meter
from .watch import PodWatch

log = logging.getLogger(__name__)

type Json = dict[str, Any]

HANDLE_VERSION: Final = 1

_SCANNED: Final[tuple[Kind, ...]] = ("persistentvolumeclaims", "pods")
_LEFT: Final[tuple[Kind, ...]] = (
    "pods",
    "services",
    "networkpolicies",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
)
_STUCK_SECONDS: Final = 5.0
_SHOWN: Final = 500
_RESTING: Final = (Phase.STARTING, Phase.RUNNING)


class KubernetesBackend(RuntimeBackend[KubernetesConfig]):
    """Runs each sandbox as a pod, with its files in a claim that outlives the pod."""

    name: ClassVar[str] = "kubernetes"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.PAUSE,
            Capability.RESTART,
            Capability.STOP,
            Capability.EXECUTE,
            Capability.LOGS,
            Capability.LAYERS,
            Capability.COPIES,
            Capability.CHECKPOINTS,
            Capability.SURVIVES_RESTART,
        }
    )
    Config = KubernetesConfig

    def __init__(self, config: KubernetesConfig, context: BackendContext) -> None:
        super().__init__(config, context)
        is_inside = settings.is_in_cluster(config, os.environ)
        settings.check(config, is_inside=is_inside)
        self._way = settings.way_to_pods(config, is_inside=is_inside)
        self._api = Api(config)
        self._watch = PodWatch(self._api, context.instance_id)
        self._meter = Meter(self._api, context.instance_id)
        self._tunnels = Tunnels(self._api, context.state_dir, context.instance_id)
        self._snapshots = Snapshots(self._api, config, context.instance_id)
        self._checkpoints = checkpoints.Checkpoints(self._api)
        self._places: dict[str, str] = {}

    async def open(self) -> None:
        """Log in, watch the pods, and detect volume snapshots; raises BackendUnavailable."""
        try:
            await self._api.open()
            await self._watch.start()
            await self._look_for_snapshots()
        except AgentsvcError as exc:
            await self.close()
            raise BackendUnavailable(exc.message, detail=exc.detail) from exc

    async def close(self) -> None:
        """Close the connections; pods keep running."""
        await self._checkpoints.close()
        await self._watch.stop()
        await self._tunnels.close()
        await self._api.close()

    async def probe(self) -> Health:
        """Query the API server's version, and check this server's permissions in the namespace."""
        try:
            version = await self._api.ask("GET", "version")
            lacking = await self._lacking()
            await self._look_for_snapshots()
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        facts = {
            "version": str((version or {}).get("gitVersion", "")),
            "namespace": self._api.namespace,
            "reach": self._way,
        }
        if self.config.runtime_class:
            facts["runtime_class"] = self.config.runtime_class
        why_not = self.why_no_copies()
        facts["kept files"] = why_not or "by volume snapshots"
        text = f"no environments can be prepared: {why_not}"
        advice = (Advice(subject="kept files", text=text),) if why_not else ()
        reason = f"it may not do this in the namespace: {', '.join(lacking)}" if lacking else ""
        return Health(ok=not lacking, reason=reason, facts=facts, advice=advice)

    def fences(self, asked: Spec | Order) -> Fences:
        """Return the isolation, networks and limits that the configuration says are enforced."""
        limits = {"cpus", "memory_bytes"}
        if self.config.enforces_storage_size:
            limits.add("disk_bytes")
        is_kept = self.config.enforces_network_policies
        return Fences(
            isolation=plan.isolation_of(plan.runtime_of(plan.to_options(asked), self.config)),
            remedy="set `runtime_class` to one of gVisor or Kata where the cluster has it",
            networks=frozenset(Network) if is_kept else frozenset({Network.OPEN}),
            limits=frozenset(limits),
        )

    def check_spec(self, spec: Spec) -> None:
        """Raise OrderRejected for a spec that this backend could never run."""
        self._check(spec)

    def why_no_copies(self) -> str:
        """Return why no volume snapshots could be taken at the last `open` or `probe`, or ""."""
        return super().why_no_copies() or self._snapshots.why_not

    def inside_url(self, url: str) -> str:
        """Return the server's URL for pods: `callback`, or the public URL instead of loopback."""
        if self.config.callback:
            return self.config.callback.rstrip("/")
        if not plan.is_loopback(urlsplit(url).hostname or ""):
            return url
        return self.context.public_url.rstrip("/") or url

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Create the claim, then the objects that it owns, then the pod.

        If cancelled, complete the current step first, so that scan lists what was created.
        """
        self._check(order)
        namespace = self._api.namespace
        data = {"namespace": namespace, "place": await self._place(namespace)}
        handle = Handle(sandbox_id=order.sandbox_id, version=HANDLE_VERSION, data=data)
        await save(handle)
        maker = self._maker(handle)
        if order.layer or order.copy_of:
            await finish(self._begin(maker, order))
        await finish(maker.make(order))
        return handle

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Create the pod again from the order, on its claim; raises Conflict without a claim."""
        self._check(order)
        maker = self._maker(handle)
        if await maker.find_claim(handle.sandbox_id) is None:
            raise Conflict("The sandbox cannot be started again: its files are gone")
        await save(handle)
        await finish(self._restart(maker, order))
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Report the state of the pod as the watch knows it, or of the claim if there is no pod."""
        maker = self._maker(handle)
        pod = await maker.find_pod(handle.sandbox_id)
        if pod is None:
            return await self._without_pod(maker, handle)
        warning = ""
        if inspection.is_stuck(pod, _STUCK_SECONDS):
            warning = await self._warning(self._namespace(handle), pod)
        report = inspection.to_report(pod, warning)
        if report.phase is not Phase.RUNNING:
            return report
        return await self._reached(report, handle, pod)

    async def scan(self) -> Sequence[Found]:
        """List the sandboxes of this installation with a claim, a pod or a snapshot to start from.

        Snapshots whose sandboxes have their files by now are removed.
        """
        namespace = self._api.namespace
        place = await self._place(namespace)
        selector = names.of_installation(self.context.instance_id)
        first: dict[str, datetime] = {}
        listed = [one for one in await self._snapshots.listed() if not names.is_layer(one)]
        await self._forget_copies(listed)
        for kind in _SCANNED:
            path = names.path(kind, namespace)
            found, _ = await self._api.list_all(path, selector=selector, names_only=True)
            listed += found
        for one in listed:
            sandbox_id = names.labels_of(one).get(names.SANDBOX, "")
            made = parse_time(str(one["metadata"].get("creationTimestamp"))) or now()
            first[sandbox_id] = min(made, first.get(sandbox_id, made))
        data = {"namespace": namespace, "place": place}
        return [
            Found(
                handle=Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION, data=data),
                created_at=made,
            )
            for sandbox_id, made in first.items()
        ]

    async def leftovers(self) -> Sequence[str]:
        """Return the objects in the namespace whose metadata contain this installation's id."""
        found: list[str] = []
        snapshots: tuple[Kind, ...] = ("volumesnapshots",) if self._snapshots.has_any else ()
        for kind in (*_LEFT, *snapshots):
            path = names.path(kind, self._api.namespace)
            listed, _ = await self._api.list_all(path, names_only=True)
            found += [
                f"{kind} {one['metadata']['name']}"
                for one in listed
                if self.context.instance_id in str(one)
            ]
        return found

    async def usage(self, handle: Handle) -> Usage | None:
        """Return the usage from the metrics API or the kubelet; None if neither reports it."""
        pod = await self._maker(handle).find_pod(handle.sandbox_id)
        if pod is None or names.is_ending(pod) or not inspection.has_begun(pod):
            return None
        return await self._meter.find(pod)

    async def delete(self, handle: Handle) -> None:
        """Cancel a checkpoint in progress; remove the sandbox's pods, other objects and claim."""
        await finish(self._delete(handle))

    async def pause(self, handle: Handle) -> None:
        """Remove the pod and keep the claim, because pods cannot be frozen."""
        maker = self._maker(handle)
        claim = await maker.find_claim(handle.sandbox_id)
        pod = await maker.find_pod(handle.sandbox_id)
        if claim is None:
            raise Conflict("The sandbox does not exist any more")
        is_paused = bool(names.annotations_of(claim).get(names.PAUSED))
        if pod is None and is_paused:
            return
        if not is_paused and (pod is None or inspection.to_report(pod).phase not in _RESTING):
            raise Conflict("The sandbox does not run, so that it cannot be paused")
        await finish(self._pause(maker, handle.sandbox_id))

    async def stop(self, handle: Handle) -> None:
        """Do the same as `pause`, which leaves nothing but the files."""
        await self.pause(handle)

    async def resume(self, handle: Handle) -> Handle:
        """Create the pod again as it was, on the same claim."""
        maker = self._maker(handle)
        claim = await maker.find_claim(handle.sandbox_id)
        if claim is None:
            raise Conflict("The sandbox does not exist any more")
        pod = await maker.find_pod(handle.sandbox_id)
        is_paused = bool(names.annotations_of(claim).get(names.PAUSED))
        if pod is not None and not names.is_ending(pod) and inspection.is_over(pod):
            raise Conflict("The sandbox has failed and cannot go on")
        if pod is None and not is_paused:
            raise Conflict("The sandbox has failed and cannot go on")
        if pod is None or names.is_ending(pod):
            await finish(self._resume(maker, handle.sandbox_id, claim))
        elif is_paused:
            await maker.mark_paused(handle.sandbox_id, is_paused=False)
        return handle

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Take a volume snapshot of the claim; return the size of a volume restored from it."""
        maker = self._maker(handle)
        claim = await maker.find_claim(handle.sandbox_id)
        pod = await maker.find_pod(handle.sandbox_id)
        if claim is None or pod is not None or not names.annotations_of(claim).get(names.PAUSED):
            raise Conflict("The sandbox is not stopped, so that its files cannot be kept")
        self._check_copies()
        plan.check_id(layer_id)
        return await finish(self._snapshots.keep_layer(claim, layer_id, max_bytes=max_bytes))

    async def layers(self) -> Sequence[str]:
        """List the ids of the layers, including those whose snapshots are incomplete."""
        return await self._snapshots.layers()

    async def remove_layer(self, layer_id: str) -> None:
        """Remove a layer's snapshot; while a claim is being filled from it, it stays listed."""
        plan.check_id(layer_id)
        if self._snapshots.has_any:
            await self._snapshots.remove_layer(layer_id)

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Copy the sandbox's changed files with the container beside the agent's."""
        maker, sandbox_id = self._maker(handle), handle.sandbox_id
        pod = await maker.find_pod(sandbox_id)
        if pod is None or not await maker.has_begun(sandbox_id):
            raise Conflict("The sandbox does not run, and its files are not copied")
        plan.check_id(checkpoint_id)
        await self._checkpoints.take(pod, sandbox_id, checkpoint_id, keep=keep, max_bytes=max_bytes)

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """Return the checkpoints recorded at the claim; without the claim there are none."""
        claim = await self._maker(handle).find_claim(handle.sandbox_id)
        return checkpoints.listed(claim) if claim else ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Record at the claim the checkpoint that its next pod restores."""
        maker = self._maker(handle)
        claim = await maker.find_claim(handle.sandbox_id)
        pod = await maker.find_pod(handle.sandbox_id)
        if claim is None:
            raise Conflict("The sandbox does not exist any more")
        if pod is not None and not names.is_ending(pod) and not inspection.is_over(pod):
            raise Conflict("The sandbox is not stopped")
        await self._checkpoints.roll_back(claim, handle.sandbox_id, checkpoint_id)

    async def execute(
        self,
        handle: Handle,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        time_limit: float,
        max_output: int,
    ) -> ExecResult:
        """Run a command as the sandbox's user, with the sandbox's environment plus `env`."""
        if not await self._maker(handle).has_begun(handle.sandbox_id):
            raise Conflict("The sandbox does not run, and runs no commands")
        return await commands.execute(
            self._api,
            self._namespace(handle),
            handle.sandbox_id,
            argv,
            env=env,
            time_limit=time_limit,
            max_output=max_output,
        )

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the output of the pod's command; the log of a removed pod is lost."""
        maker = self._maker(handle)
        namespace, sandbox_id = self._namespace(handle), handle.sandbox_id

        async def exists() -> bool:
            return await maker.find_claim(sandbox_id) is not None

        path = names.path("pods", namespace, names.main(sandbox_id), below="log")
        lines = (
            follow_log(self._api, path, tail, exists) if follow else read_log(self._api, path, tail)
        )
        async for line in lines:
            yield line

    # Shared parts

    def _check(self, asked: Spec | Order) -> None:
        self.check_fences(asked)
        plan.check(asked)
        check_hosts(asked)

    async def _look_for_snapshots(self) -> None:
        if Capability.LAYERS in self.capabilities:
            await self._snapshots.look_around()

    def _check_copies(self) -> None:
        if why_not := self.why_no_copies():
            raise OrderRejected(f"Files of sandboxes cannot be kept or copied here: {why_not}")

    def _namespace(self, handle: Handle) -> str:
        return str(handle.data.get("namespace") or self._api.namespace)

    def _maker(self, handle: Handle) -> Maker:
        if handle.version > HANDLE_VERSION:
            raise HandleTooNew(
                "The sandbox was made by a newer version of the kubernetes backend",
                detail=f"handle version {handle.version}",
            )
        return Maker(
            self._api,
            self._watch,
            self.config,
            instance_id=self.context.instance_id,
            namespace=self._namespace(handle),
            keeps_checkpoints=self.context.keeps_checkpoints,
        )

    async def _place(self, namespace: str) -> str:
        """Return the namespace's UID, which differs between clusters; empty if not readable."""
        if namespace not in self._places:
            found = await self._api.ask("GET", f"api/v1/namespaces/{namespace}", expect=(403,))
            self._places[namespace] = names.uid_of(found or {})
        return self._places[namespace]

    async def _lacking(self) -> list[str]:
        wanted = (("create", "pods"), ("patch", "persistentvolumeclaims"))
        return [
            f"{verb} {resource}"
            for verb, resource in wanted
            if not await self._api.may(verb, resource)
        ]

    async def _without_pod(self, maker: Maker, handle: Handle) -> Report:
        name = names.main(handle.sandbox_id)
        claim = await maker.find("persistentvolumeclaims", name, handle.sandbox_id)
        if claim is not None:
            return inspection.without_pod(
                is_paused=bool(names.annotations_of(claim).get(names.PAUSED))
            )
        known = handle.data.get("place")
        namespace = self._namespace(handle)
        if known:
            self._places.pop(namespace, None)
            if await self._place(namespace) not in ("", known):
                raise BackendUnavailable(
                    f"This is another cluster, or another namespace `{namespace}`, than the one"
                    " in which the sandbox was made"
                )
        return Report(phase=Phase.GONE)

    async def _warning(self, namespace: str, pod: Json) -> str:
        try:
            fields = f"involvedObject.uid={names.uid_of(pod)}"
            events, _ = await self._api.list_all(names.path("events", namespace), fields=fields)
        except AgentsvcError:
            # It may not be allowed to read them; the pod's status says something, too.
            return ""
        return inspection.warning_of(events)

    async def _reached(self, report: Report, handle: Handle, pod: Json) -> Report:
        ports = inspection.ports_of(pod)
        endpoints = tuple(
            [
                Endpoint(
                    name=name,
                    port=number,
                    url=await self._url_of(handle, pod, number),
                    is_carried=self._way == "port-forward",
                )
                for name, number in ports.items()
            ]
        )
        # The kubelet has tried the first.
        for name in inspection.awaited_of(pod)[1:]:
            if not await self._answers(handle, pod, ports[name]):
                reason = f"its port `{name}` does not answer yet"
                return msgspec.structs.replace(report, phase=Phase.STARTING, reason=reason)
        return msgspec.structs.replace(report, endpoints=endpoints)

    async def _url_of(self, handle: Handle, pod: Json, number: int) -> str:
        namespace, sandbox_id = self._namespace(handle), handle.sandbox_id
        match self._way:
            case "pod":
                return f"http://{inspection.address_of(pod)}:{number}"
            case "service":
                return f"http://{names.main(sandbox_id)}.{namespace}.svc:{number}"
            case _:
                return await self._tunnels.url_of(namespace, sandbox_id, number)

    async def _answers(self, handle: Handle, pod: Json, number: int) -> bool:
        limit = self.config.connect_seconds
        if self._way == "port-forward":
            namespace = self._namespace(handle)
            return await self._tunnels.answers(namespace, handle.sandbox_id, number, limit)
        return await answers(await self._url_of(handle, pod, number), limit)

    async def _begin(self, maker: Maker, order: Order) -> None:
        """Create the claim of a new sandbox from a snapshot of a layer or of another sandbox."""
        if await maker.find_claim(order.sandbox_id) is not None:
            return
        self._check_copies()
        if order.layer:
            plan.check_id(order.layer)
            source = await self._snapshots.find_layer(self._api.namespace, order.layer)
        else:
            source = await self._copied(maker, order)
        await maker.begin_with(order, source)

    async def _forget_copies(self, snapshots: Sequence[Json]) -> None:
        namespace = self._api.namespace
        for one in snapshots:
            sandbox_id = names.labels_of(one).get(names.SANDBOX, "")
            claim = await self._api.get(
                names.path("persistentvolumeclaims", namespace, names.main(sandbox_id))
            )
            if claim is not None and is_filled(claim) and not names.is_ending(one):
                await self._snapshots.forget_copy(namespace, sandbox_id)

    async def _copied(self, maker: Maker, order: Order) -> Json:
        plan.check_id(order.copy_of)
        claim = await maker.find_claim(order.copy_of)
        if claim is None:
            raise OrderRejected("The sandbox with whose files this one is to begin is gone")
        namespace = self._api.namespace
        if not await self._snapshots.is_copying(namespace, order.sandbox_id):
            await self._sync(maker, order.copy_of)
        return await self._snapshots.copy(claim, order.sandbox_id)

    async def _sync(self, maker: Maker, sandbox_id: str) -> None:
        """Flush a running sandbox's writes to its volume, because a snapshot lacks cached ones."""
        pod = await maker.find_pod(sandbox_id)
        if (
            pod is None
            or names.is_ending(pod)
            or inspection.to_report(pod).phase is not Phase.RUNNING
        ):
            return
        try:
            ended = await commands.execute(
                self._api,
                pod["metadata"]["namespace"],
                sandbox_id,
                ["sync"],
                env={},
                time_limit=self.config.request_seconds,
                max_output=_SHOWN,
            )
            said = "" if ended.exit_code == 0 else ended.stderr.decode(errors="replace") or "no end"
        except AgentsvcError as exc:
            said = exc.message
        if said:
            log.warning("sync failed", extra={"sandbox_id": sandbox_id, "reason": said})

    async def _restart(self, maker: Maker, order: Order) -> None:
        pod = await maker.find_pod(order.sandbox_id)
        if pod is not None and (names.is_ending(pod) or inspection.is_over(pod)):
            await maker.end(order.sandbox_id)
        await maker.make(order)
        await maker.mark_paused(order.sandbox_id, is_paused=False)

    async def _pause(self, maker: Maker, sandbox_id: str) -> None:
        if not self.why_no_copies():
            await self._sync(maker, sandbox_id)
        await maker.mark_paused(sandbox_id, is_paused=True)
        await maker.end(sandbox_id)

    async def _resume(self, maker: Maker, sandbox_id: str, claim: Json) -> None:
        await maker.start_again(sandbox_id, claim)
        await maker.mark_paused(sandbox_id, is_paused=False)

    async def _delete(self, handle: Handle) -> None:
        await self._checkpoints.abandon(handle.sandbox_id)
        await self._snapshots.forget_copy(self._namespace(handle), handle.sandbox_id)
        await self._maker(handle).remove(handle.sandbox_id)
        await self._tunnels.forget(self._namespace(handle), handle.sandbox_id)
