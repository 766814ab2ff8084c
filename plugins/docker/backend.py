"""The docker backend: implements the contract of `agentsvc.plugin.backend` with containers."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final
from urllib.parse import urlsplit, urlunsplit

from agentsvc.base import AgentsvcError, BackendUnavailable, Conflict, OrderRejected
from agentsvc.plugin import (
    API_VERSION,
    BackendContext,
    Capability,
    Checkpoint,
    Endpoint,
    ExecResult,
    Fences,
    Found,
    Handle,
    Health,
    ImageBuild,
    Isolation,
    LogLine,
    LongTasks,
    Network,
    Order,
    PartlyScanned,
    Phase,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
    check_handle,
    check_hosts,
)

from . import checkpoints, commands, hibernation, inspection, names, plan
from .builds import Builds
from .engine import Engine, Json
from .failures import CONFLICT
from .firewall import FirewallGuard
from .fleet import EnginePool
from .images import ImagePulls
from .inventory import left_on, sandboxes_on
from .layers import Layers
from .making import Maker
from .reach import answers
from .settings import DockerConfig, address_of, engines
from .streams import follow_log
from .watch import EngineWatch, has_observed_end

log = logging.getLogger(__name__)

HANDLE_VERSION: Final = 1

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104  # recognised only


class DockerBackend(RuntimeBackend[DockerConfig]):
    """Runs each sandbox as a container of Docker or Podman, on one engine or on several."""

    name: ClassVar[str] = "docker"
    default_isolation: ClassVar[Isolation] = Isolation.CONTAINER
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.PAUSE,
            Capability.HIBERNATE,
            Capability.RESTART,
            Capability.STOP,
            Capability.EXECUTE,
            Capability.LOGS,
            Capability.LAYERS,
            Capability.COPIES,
            Capability.CHECKPOINTS,
            Capability.IMAGES,
            Capability.SURVIVES_RESTART,
        }
    )
    Config = DockerConfig

    def __init__(self, config: DockerConfig, context: BackendContext) -> None:
        super().__init__(config, context)
        limit = config.request_seconds
        found = [Engine(host, time_limit=limit) for host in engines(config)]
        self._fleet = EnginePool(found, context.instance_id, context.state_dir)
        self._images = ImagePulls(config)
        self._layers = Layers(context.instance_id)
        self._copying = LongTasks()
        self._builds = Builds(context.instance_id, config.pull_wait_seconds)
        self._guard = FirewallGuard()
        self._watches = {one.name: EngineWatch(one, context.instance_id) for one in found}

    @property
    def runs_here(self) -> bool:
        """Return whether one of the engines is on this machine."""
        return any(not address_of(engine.url) for engine in self._fleet.engines.values())

    async def open(self) -> None:
        """Connect to every engine; raises BackendUnavailable if none responds."""
        away = await self._fleet.probe()
        if len(away) == len(self._fleet.engines):
            await self.close()
            raise BackendUnavailable(
                "The container engine cannot be reached", detail="; ".join(away.values())
            )
        for watch in self._watches.values():
            watch.start()

    async def close(self) -> None:
        """Close the connections; containers keep running."""
        for watch in self._watches.values():
            await watch.stop()
        await self._images.close()
        await self._layers.close()
        await self._copying.close()
        await self._builds.close()
        for engine in self._fleet.engines.values():
            await engine.close()

    async def probe(self) -> Health:
        """Query each engine's version and features."""
        away = await self._fleet.probe()
        facts: dict[str, str] = {}
        is_one = len(self._fleet.engines) == 1
        for name, found in self._fleet.facts.items():
            prefix = "" if is_one else f"{name} "
            shown = {"away": "yes"} if name in away else found.shown()
            facts |= {f"{prefix}{key}": value for key, value in shown.items()}
        if self.config.runtime:
            facts["runtime"] = self.config.runtime
        reasons = [*away.values(), *self._fleet.lacking_runtime(self.config.runtime, away)]
        is_ok = len(away) < len(self._fleet.engines) and len(reasons) == len(away)
        return Health(ok=is_ok, reason="; ".join(reasons), facts=facts)

    def fences(self, asked: Spec | Order) -> Fences:
        """Return the limits and networks that all engines enforce."""
        options = plan.to_options(asked)
        known = list(self._fleet.facts.values())
        default = known[0].default_runtime if known else ""
        isolation = plan.isolation_of(options.runtime or self.config.runtime or default)
        enforced = {
            "cpus": all(facts.has_cpus for facts in known),
            "memory_bytes": all(facts.has_memory for facts in known),
            # gVisor's own threads would count, and it crashes at a limit meant for the command.
            "pids": all(facts.has_pids for facts in known) and isolation != Isolation.GVISOR,
            "open_files": True,
        }
        return Fences(
            isolation=isolation,
            remedy="set `runtime` to runsc if the engine has gVisor",
            networks=self._networks(),
            limits=frozenset(name for name, is_so in enforced.items() if is_so),
        )

    def why_no_hibernate(self) -> str:
        """Return why no engine can save a sandbox's processes to disk."""
        reasons = [
            hibernation.why_not(facts, self.config.runtime) for facts in self._fleet.facts.values()
        ]
        return min(reasons, key=bool, default="no engine has responded yet")

    def check_spec(self, spec: Spec | Order) -> None:
        """Raise OrderRejected for orders that no engine could create."""
        self.check_fences(spec)
        plan.check(spec, self.config)
        check_hosts(spec)

    def inside_url(self, url: str) -> str:
        """Return the server's URL as containers reach it, which is not their own loopback."""
        if self.config.callback:
            return self.config.callback.rstrip("/")
        parts = urlsplit(url)
        if parts.hostname not in _LOOPBACK:
            return url
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit(parts._replace(netloc=f"{plan.CALLBACK_NAME}{port}"))

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Create networks, volumes and containers, and start them.

        If cancelled, finish the request in progress first, so that scan lists what was created.
        While an image is being pulled, raise BackendUnavailable with the progress.
        """
        self.check_spec(order)
        labels = plan.to_options(order).host_labels
        engine = await self._fleet.place(order.sandbox_id, labels, self._has_files_for(order))
        data = {"engine": engine.name}
        handle = Handle(sandbox_id=order.sandbox_id, version=HANDLE_VERSION, data=data)
        await save(handle)
        await self._make(self._maker(engine), order)
        return handle

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start the container again, or create a new one on the same volume."""
        self.check_spec(order)
        engine, maker, found = await self._find_container(handle)
        if found is None or inspection.status_of(found) == "created":
            if not (found and order.layer) and not await maker.has_files(handle.sandbox_id):
                raise Conflict("The sandbox cannot be started again: its files are gone")
            await save(handle)
            await self._make(maker, order)
            await maker.unmark_paused(handle.sandbox_id)
        elif inspection.status_of(found) not in ("running", "paused"):
            if await hibernation.has(engine, found):
                return handle
            await self._start_again(engine, maker, order, found)
            await maker.unmark_paused(handle.sandbox_id)
        return handle

    async def inspect(self, handle: Handle) -> Report:
        """Check the container and, if it runs, connect to its awaited ports.

        A sandbox whose container was removed is not gone as long as its files exist.
        """
        seen = await self._observe(handle)
        if seen is None:
            return await self._without_container(handle)
        report = inspection.to_report(seen)
        if report.phase is not Phase.RUNNING:
            return report
        report = await self._restore_guard(report, handle, seen.container)
        is_relayed = bool(seen.publish) or seen.front is not seen.container
        urls = inspection.awaited(report, seen.container)
        limit = self.config.connect_seconds
        if urls is None or not await answers(urls, limit, is_relayed=is_relayed):
            return inspection.still_starting(report)
        return report

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Check with the engine that the sandbox's own container has that address or port now."""
        del source_port
        seen = await self._observe(handle)
        if seen is None or seen.front is None or not inspection.is_running(seen.front):
            return False
        return any(found.url == endpoint.url for found in inspection.endpoints(seen))

    async def scan(self) -> Sequence[Found]:
        """List the sandboxes of this installation with a container, network or volume.

        Raises PartlyScanned if some engines are unreachable, and BackendUnavailable if all are.
        """
        found: dict[str, Found] = {}
        instance_id = self.context.instance_id
        listed, away = await self._fleet.ask_all(lambda one: sandboxes_on(one, instance_id))
        for name, first in listed.items():
            for sandbox_id, made in first.items():
                handle = Handle(
                    sandbox_id=sandbox_id, version=HANDLE_VERSION, data={"engine": name}
                )
                found.setdefault(sandbox_id, Found(handle=handle, created_at=made))
        if away and not listed:
            raise next(iter(away.values()))
        if away:
            message = "; ".join(one.message for one in away.values())
            detail = "; ".join(one.detail for one in away.values())
            raise PartlyScanned(message, detail=detail, found=list(found.values()))
        return list(found.values())

    async def leftovers(self) -> Sequence[str]:
        """Return all objects of all engines that contain this installation's id."""
        found: list[str] = []
        for engine in self._fleet.engines.values():
            found += await left_on(engine, self.context.instance_id)
        return found

    async def usage(self, handle: Handle) -> Usage | None:
        """Query the engine's statistics; a container that does not run has none."""
        engine, _, found = await self._find_container(handle)
        if found is None or inspection.status_of(found) not in ("running", "paused"):
            return None
        # One sample is enough: the engine would take a second one to compute the CPU load.
        query = {"stream": False, "one-shot": True}
        seen = await engine.get(f"containers/{found['Id']}/stats", **query)
        return inspection.usage_of(seen) if isinstance(seen, dict) else None

    async def delete(self, handle: Handle) -> None:
        """Remove the containers, then their networks and volumes."""
        engine, maker = self._engine_of(handle)
        for name in (handle.sandbox_id, f"{handle.sandbox_id} checkpoint"):
            await self._copying.abandon(name)
        await maker.remove(handle.sandbox_id)
        await self._layers.sweep(engine)
        await self._fleet.forget(handle.sandbox_id)

    async def pause(self, handle: Handle) -> None:
        """Freeze the container; stop it if the engine cannot freeze."""
        engine, maker, found = await self._require_container(handle)
        status = inspection.status_of(found)
        if status == "paused" or await hibernation.has(engine, found):
            return
        if status != "running":
            if await maker.is_marked_paused(handle.sandbox_id):
                return
            raise Conflict("The sandbox does not run and cannot be paused")
        await maker.mark_paused(handle.sandbox_id)
        if (await engine.facts()).can_freeze:
            await engine.ask("POST", f"containers/{found['Id']}/pause", expect=(CONFLICT,))
        else:
            await self._stop(engine, found)

    async def hibernate(self, handle: Handle) -> None:
        """Save a frozen container to the engine's disk, if the engine supports that."""
        engine, maker, found = await self._require_container(handle)
        if await hibernation.has(engine, found):
            await hibernation.until_written(engine, found)
            return
        if not await maker.is_marked_paused(handle.sandbox_id):
            raise Conflict("The sandbox is not paused and cannot be saved to disk")
        runtime = inspection.labels_of(found).get("agentsvc.runtime", "")
        is_up = inspection.status_of(found) in ("paused", "running")
        if is_up and not hibernation.why_not(await engine.facts(), runtime):
            await hibernation.write(engine, found)

    async def stop(self, handle: Handle) -> None:
        """Stop the container, which keeps its volume and its own files."""
        engine, maker, found = await self._require_written(handle)
        status = inspection.status_of(found)
        if status not in ("running", "paused"):
            if await hibernation.has(engine, found):
                await maker.mark_paused(handle.sandbox_id)
                await hibernation.drop(engine, found)
            if await maker.is_marked_paused(handle.sandbox_id):
                return
            raise Conflict("The sandbox does not run and cannot be stopped")
        await maker.mark_paused(handle.sandbox_id)
        if status == "paused":
            # Frozen processes receive no signals, and not every engine kills them.
            await engine.ask("POST", f"containers/{found['Id']}/unpause", expect=(CONFLICT,))
        await self._stop(engine, found)

    async def resume(self, handle: Handle) -> Handle:
        """Unfreeze the container, or restore or restart it if it was stopped meanwhile."""
        engine, maker, found = await self._require_written(handle)
        status = inspection.status_of(found)
        if status == "paused":
            await engine.ask("POST", f"containers/{found['Id']}/unpause", expect=(CONFLICT,))
        elif status == "running":
            # The checkpoint of this run may still be being written.
            await hibernation.drop(engine, found, keep=hibernation.name_of(found))
        elif await hibernation.has(engine, found):
            await maker.prepare_start(handle.sandbox_id, found)
            if not await hibernation.bring_back(engine, found):
                return handle
        elif await maker.is_marked_paused(handle.sandbox_id):
            await maker.start_again(handle.sandbox_id, found)
        else:
            raise Conflict("The sandbox has failed and cannot be resumed")
        await maker.unmark_paused(handle.sandbox_id)
        return handle

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Create an image from the sandbox's home and working directory."""
        engine, _ = self._engine_of(handle)

        async def find_source() -> Json:
            _, maker, found = await self._require_container(handle)
            is_over = inspection.status_of(found) not in ("running", "paused", "created")
            if not is_over or not await maker.is_marked_paused(handle.sandbox_id):
                raise Conflict("The sandbox is not stopped, and its files may change")
            facts = await engine.facts()
            if facts.is_podman and inspection.is_in_volume(found, facts.default_runtime):
                # Podman copies an image's files only into an empty volume, and this one is not
                # empty.
                raise OrderRejected(
                    "With Podman, files of sandboxes with `read_only` or in gVisor cannot be kept"
                )
            return found

        return await self._layers.keep(engine, layer_id, find_source, max_bytes=max_bytes)

    async def layers(self) -> Sequence[str]:
        """List the layers on all engines; raises BackendUnavailable if one is unreachable."""
        return await self._ids(self._layers.ids)

    async def remove_layer(self, layer_id: str) -> None:
        """Remove a layer's image; if containers use it, it is deleted with the last of them."""
        for engine in self._fleet.engines.values():
            await self._layers.remove(engine, layer_id)

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Run the program that copies the changed files of the home and the working directory."""
        engine, _, found = await self._require_container(handle)
        if inspection.status_of(found) != "running":
            raise Conflict("The sandbox does not run, and its files cannot be copied")
        await self._copying.go_on(
            f"{handle.sandbox_id} checkpoint",
            lambda: checkpoints.take(engine, found, checkpoint_id, keep=keep, max_bytes=max_bytes),
        )

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """Read the index in the sandbox's volume; without a container there are no checkpoints."""
        engine, _, found = await self._find_container(handle)
        return await checkpoints.listed(engine, found) if found else ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Record in the sandbox the checkpoint that its next start restores."""
        engine, _, found = await self._require_container(handle)
        if inspection.status_of(found) in ("running", "paused"):
            raise Conflict("The sandbox is not stopped")
        await checkpoints.roll_back(engine, found, checkpoint_id)

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
        engine, _, found = await self._require_container(handle)
        if inspection.status_of(found) != "running":
            raise Conflict("The sandbox does not run and accepts no commands")
        return await commands.execute(
            engine,
            found["Id"],
            argv,
            env=env,
            time_limit=time_limit,
            max_output=max_output,
        )

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the command's output, including that of earlier runs."""
        engine, maker = self._engine_of(handle)
        name = names.container(handle.sandbox_id)
        find = partial(maker.find, name, handle.sandbox_id)
        async for line in follow_log(engine, find, tail=tail, follow=follow):
            yield line

    async def build_image(self, image_id: str, build: ImageBuild) -> str:
        """Build an image on every engine, since a sandbox may be placed on any."""
        for engine in self._fleet.engines.values():
            await self._builds.build(engine, image_id, build)
        return names.image(image_id)

    async def images(self) -> Sequence[str]:
        """List the images built on any engine; raises BackendUnavailable if one is unreachable."""
        return await self._ids(self._builds.listed)

    async def remove_image(self, image_id: str) -> None:
        """Remove an image from every engine, unless a container uses it."""
        for engine in self._fleet.engines.values():
            await self._builds.remove(engine, image_id)

    # Shared helpers

    async def _stop(self, engine: Engine, container: Json) -> None:
        await engine.ask(
            "POST",
            f"containers/{container['Id']}/stop",
            params={"t": self.config.stop_seconds},
            time_limit=self.config.stop_seconds + self.config.request_seconds,
        )

    async def _ids(self, ask: Callable[[Engine], Awaitable[Iterable[str]]]) -> list[str]:
        listed, away = await self._fleet.ask_all(ask)
        if away:
            raise next(iter(away.values()))
        return sorted(set().union(*listed.values()))

    def _engine_of(self, handle: Handle) -> tuple[Engine, Maker]:
        check_handle(handle, HANDLE_VERSION, "docker backend")
        engine = self._fleet.get(str(handle.data.get("engine", "default")))
        return engine, self._maker(engine)

    def _maker(self, engine: Engine) -> Maker:
        known = (self._images, self._layers, self.context.instance_id)
        return Maker(engine, self.config, *known, copies=self._copying)

    async def _make(self, maker: Maker, order: Order) -> None:
        await maker.make(order, partial(self._find_source, order.copy_of))

    async def _find_source(self, sandbox_id: str) -> tuple[Engine, Json]:
        name, away = names.container(sandbox_id), None
        for engine in self._fleet.engines.values():
            try:
                found = await self._maker(engine).find(name, sandbox_id)
            except BackendUnavailable as exc:
                away = exc
            else:
                if found is not None:
                    return engine, found
        raise away or OrderRejected("The sandbox whose files are to be copied is gone")

    def _has_files_for(self, order: Order) -> Callable[[Engine], Awaitable[bool]] | None:
        """Return a check whether an engine has the order's layer, or None without a layer."""

        async def has_layer(engine: Engine) -> bool:
            return await self._layers.find(engine, order.layer) is not None

        return has_layer if order.layer else None

    async def _find_container(self, handle: Handle) -> tuple[Engine, Maker, Json | None]:
        engine, maker = self._engine_of(handle)
        name = names.container(handle.sandbox_id)
        return engine, maker, await maker.find(name, handle.sandbox_id)

    async def _require_container(self, handle: Handle) -> tuple[Engine, Maker, Json]:
        engine, maker, found = await self._find_container(handle)
        if found is None:
            raise Conflict("The sandbox does not exist any more")
        return engine, maker, found

    async def _observe(self, handle: Handle) -> inspection.ContainerStates | None:
        engine, maker, found = await self._find_container(handle)
        sandbox_id = handle.sandbox_id
        if found is None:
            return None
        front: Json | None = found
        if inspection.labels_of(found).get("agentsvc.network") != Network.OPEN:
            front = await maker.find(names.gateway(sandbox_id), sandbox_id)
        facts = await engine.facts()
        is_over = inspection.status_of(found) not in ("running", "paused", "created")
        is_paused = is_over and await maker.is_marked_paused(sandbox_id)
        return inspection.ContainerStates(
            container=found,
            front=front,
            is_paused=is_paused,
            is_on_disk=(is_paused or inspection.is_running(found))
            and await hibernation.has(engine, found),
            had_oom=self._watches[engine.name].had_oom(found),
            was_told=is_over and await has_observed_end(engine, found, self.config.request_seconds),
            publish="" if facts.is_beside else engine.publish_address,
            default_runtime=facts.default_runtime,
        )

    async def _require_written(self, handle: Handle) -> tuple[Engine, Maker, Json]:
        """Return a container, after a checkpoint in progress is written."""
        engine, maker, found = await self._require_container(handle)
        # It has a checkpoint of its present run and still runs: the checkpoint is being written.
        if inspection.is_running(found) and await hibernation.has(engine, found):
            await hibernation.until_written(engine, found)
            return await self._require_container(handle)
        return engine, maker, found

    async def _start_again(
        self, engine: Engine, maker: Maker, order: Order, container: Json
    ) -> None:
        try:
            await maker.start_again(order.sandbox_id, container)
        except AgentsvcError as exc:
            if not hibernation.is_stuck(exc):
                raise
            await engine.remove(f"containers/{container['Id']}", force=True)
            await self._make(maker, order)

    async def _without_container(self, handle: Handle) -> Report:
        _, maker = self._engine_of(handle)
        if not await maker.has_files(handle.sandbox_id):
            return Report(phase=Phase.GONE)
        return inspection.without_container(
            is_paused=await maker.is_marked_paused(handle.sandbox_id)
        )

    def _networks(self) -> frozenset[Network]:
        """Return the networks that all engines enforce; Podman needs the firewall for fences."""
        for name, facts in self._fleet.facts.items():
            engine = self._fleet.engines.get(name)
            if engine and facts.is_podman and not self._maker(engine).may_guard(facts):
                return frozenset({Network.OPEN})
        return frozenset(Network)

    async def _restore_guard(self, report: Report, handle: Handle, container: Json) -> Report:
        """Restore missing firewall rules of a sandbox; report it in the facts if that fails."""
        _, maker = self._engine_of(handle)
        try:
            if closed := await maker.closed_bridge(handle.sandbox_id, container):
                await self._guard.keep(*closed)
        except BackendUnavailable as exc:
            log.warning("ports not closed", extra={"sandbox_id": handle.sandbox_id, "reason": exc})
            return inspection.unguarded(report)
        return report
