"""Sandboxes as local processes, each with its own directories, ports and clean environment.

If bubblewrap works, it isolates them: they see their own files, the system without its secrets and
no other processes. Otherwise they run with the rights of the server's own user, confined by
Landlock at most, and every report names the isolation. A sandbox is a directory below the state
directory, a short temporary directory and the process tree below its shim; it outlives the server,
and a later server finds it by these alone.
"""

import asyncio
import logging
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import msgspec

from agentsvc.base import BackendUnavailable, CapacityExceeded, Conflict
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
    Isolation,
    LogLine,
    Order,
    PausedAs,
    Phase,
    Report,
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
)

from . import (
    bubblewrap,
    cgroup,
    control,
    launch,
    listening,
    pausing,
    peers,
    proxy_sockets,
    reclaiming,
    sandbox_directory,
    users,
    zygote,
)
from .handles import find_all, folder_of, temp_of, to_handle, tree_of
from .host_features import HostFeatures
from .inspection import Inspection, look_at, state_of_this_boot
from .layers import Layers
from .meter import Meter
from .priority import Priorities
from .sandbox_directory import LogFile, Pause, SandboxDirectory, mark_of
from .settings import OpenNetwork, ProcessConfig
from .specs import AGENT_SERVER, ZYGOTE, agent_version, check
from .threads import finish, reach, until_none
from .tree import Tree, reap

log = logging.getLogger(__name__)

_FOLLOW_SECONDS = 0.2
_LOOKS_AT_ONCE = 2
_REMOVALS_AT_ONCE = 2  # of at least five threads: a sandbox may have millions of files


class ProcessBackend(RuntimeBackend[ProcessConfig]):
    """Runs each sandbox as a tree of processes on this machine."""

    name: ClassVar[str] = "process"
    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.PAUSE,
            Capability.RECLAIM,
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
    Config = ProcessConfig
    default_isolation: ClassVar[Isolation] = Isolation.BUBBLEWRAP
    program: ClassVar[str] = AGENT_SERVER
    """The module that is preloaded for sandboxes whose command runs it with `python -m`."""
    preload: ClassVar[str] = f"{__package__}.preload"
    """The module that preloads it."""

    def __init__(self, config: ProcessConfig, context: BackendContext) -> None:
        super().__init__(config, context)
        self._temp_root = sandbox_directory.temp_root(config.temp_dir)
        self._features = HostFeatures(config, proxy_sockets.callback_of(context.callback_url))
        self._uids = users.parse(config.uids) if os.geteuid() == 0 else range(0)
        """The user ids that sandboxes may get."""
        self._why_no_reclaim = "the backend is not open"
        self._proxy_sockets = proxy_sockets.ProxySockets()
        self._layers = Layers(context.state_dir)
        self._meters: dict[str, Meter] = {}
        self._attempts = reclaiming.Tries()
        # An inspection during a pause, stop or resume must not take it for an interrupted one.
        self._pausing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Threads that each read many small files mostly wait for each other.
        self._measuring = asyncio.Semaphore(1)
        self._looking = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self._removing = asyncio.Semaphore(_REMOVALS_AT_ONCE)
        self._priorities = Priorities(context.state_dir / ".giving-way", self._running_state)
        env = launch.bare_environment(config.path)
        self._zygote = zygote.Zygote(config, self.program, self.preload, env)

    @property
    def runs_here(self) -> bool:
        """Return True: all sandboxes are processes of this machine."""
        return True

    async def open(self) -> None:
        """Create the state directory, detect the host's features, and reopen the proxy sockets."""
        await reach(self._open)
        await self._restore_priorities()
        self._zygote.confine(self._features.confinement())
        if agent_version():
            self._zygote.begin()
        for folder, record in await reach(self._records):
            await self._proxy_sockets.open_again(folder, record)

    async def close(self) -> None:
        """Close the proxy sockets; sandboxes keep running, and the next server reopens them."""
        await self._restore_priorities()
        await self._layers.close()
        await self._zygote.close()
        await self._proxy_sockets.close_all()

    async def probe(self) -> Health:
        """Report which isolation, limits and programs sandboxes get on this machine."""
        return await reach(self._probe)

    @property
    def least_isolation(self) -> Isolation:
        """Return bubblewrap for root: nothing else takes root's rights from a sandbox."""
        return Isolation.BUBBLEWRAP if os.geteuid() == 0 else Isolation.NONE

    def fences(self, asked: Spec | Order) -> Fences:
        """Report whether bubblewrap or Landlock isolates sandboxes here, and which limits apply."""
        del asked
        return self._features.fences()

    def why_no_pool(self, spec: Spec) -> str:
        """Return a reason if a model or allowed host is here: its relay is created at the start."""
        if self.config.network is OpenNetwork.HOST:
            return ""
        near = filter(proxy_sockets.is_loopback, (*spec.reaches, *spec.models))
        return f"{found} is on this machine" if (found := next(near, "")) else ""

    def why_no_hibernate(self) -> str:
        """Return why processes cannot be saved to a file."""
        return "CRIU, which could write their memory to disk, is not used with bubblewrap"

    def why_no_reclaim(self) -> str:
        """Return a reason if the host has no swap, or the server may not push memory out."""
        return self._why_no_reclaim

    def check_spec(self, spec: Spec) -> None:
        """Raise OrderRejected for unsupported images, options, hosts and directories."""
        check(spec)

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Create the directories, start the shim, and return when it has started the command.

        The record is on disk before anything runs. If cancelled, finish the launch first, so that
        scan lists what was started.
        """
        self._check(order)
        return await self._start(order, save)

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start the command again on the same files; raises Conflict if they are gone."""
        self._check(order)
        folder = self._folder(handle)
        inspection = await self._inspect(folder, handle)
        if not inspection.exists:
            raise Conflict("The sandbox cannot be started again: its files are gone")
        if inspection.phase is not Phase.FAILED and not inspection.is_ended:
            return handle
        await self._end(self._tree(inspection, handle), grace_seconds=0)
        await finish(lambda: folder.forget_run(was_stopped=inspection.is_ended))
        return await self._start(order, save)

    async def inspect(self, handle: Handle) -> Report:
        """Check the record, the processes and, unless paused, the awaited ports."""
        folder = self._folder(handle)
        async with self._looking:
            inspection = await reach(lambda: look_at(folder, self._mark(handle), self._uids))
        inspection = await self._complete(inspection, handle)
        phase = inspection.phase
        if phase is Phase.GONE:
            return Report(phase=phase)
        if phase is Phase.RUNNING:
            tree = self._tree(inspection, handle)
            answers = await listening.answers(inspection, tree, self.config.connect_seconds)
            phase = Phase.RUNNING if answers else Phase.STARTING
        shut = await self._proxy_sockets.retry_failed(folder, inspection.record)
        sockets = inspection.sockets()
        return Report(
            phase=phase,
            reason="; ".join(filter(None, (inspection.reason, shut))),
            endpoints=tuple(
                Endpoint(name=name, port=port, url=listening.url_of(port, sockets.get(name)))
                for name, port in inspection.ports().items()
            ),
            exit_code=inspection.exit_code,
            working_dir=inspection.working_dir(),
            isolation=inspection.state.isolation if inspection.state else None,
            paused_as=inspection.paused_as,
            cause=inspection.cause,
            enforced=inspection.enforced(),
            facts=inspection.facts(),
        )

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Return whether a process of the sandbox owns the other end, in the machine's network."""
        folder = self._folder(handle)

        def seen() -> bool:
            state = state_of_this_boot(folder)
            if state is None or state.ports.get(endpoint.name) != endpoint.port:
                return False
            tree = Tree(mark=self._mark(handle), root=state.shim)
            return peers.is_peer(tree, endpoint.port, source_port)

        return await reach(seen)

    async def scan(self) -> Sequence[Found]:
        """List all sandboxes of this instance with a directory, temporary directory or process."""
        return await reach(self._scan)

    async def delete(self, handle: Handle) -> None:
        """End every process, then remove every file; `ProcessConfig` sets the timeouts."""
        folder = self._folder(handle)
        inspection = await self._inspect(folder, handle)
        tree = self._tree(inspection, handle)
        await self._end(
            tree, grace_seconds=0 if inspection.phase is Phase.PAUSED else self.config.stop_seconds
        )
        await self._proxy_sockets.close(handle.sandbox_id)
        await self._layers.abandon(handle.sandbox_id)
        async with self._removing:
            await finish(lambda: self._remove(folder, inspection, handle))
        self._meters.pop(handle.sandbox_id, None)
        self._attempts.forget(handle.sandbox_id)
        self._pausing.pop(handle.sandbox_id, None)

    async def pause(self, handle: Handle) -> None:
        """Freeze or stop every process; inspect completes it if the server is interrupted."""
        inspection = await self._require_alive(handle)
        tree = self._tree(inspection, handle)
        if not inspection.is_ended:
            seconds = self.config.pause_seconds
            async with self._pausing[handle.sandbox_id]:
                await finish(lambda: pausing.pause(inspection.folder, tree, seconds))

    async def reclaim(self, handle: Handle) -> None:
        """Push the memory of every process out to swap; pages shared with the zygote stay.

        If most of it stays, for example for lack of swap, later calls retry at intervals.
        """
        inspection = await self._require_alive(handle)
        if inspection.phase is not Phase.PAUSED:
            raise Conflict("The sandbox is not paused")
        if inspection.is_ended or self._why_no_reclaim:
            return
        # Attempts of an earlier server do not count: swap may be free again.
        memory = inspection.memory
        if memory is not None and (memory.is_out or not self._attempts.is_due(handle.sandbox_id)):
            return
        self._attempts.count(handle.sandbox_id)
        now_at = await pausing.push_out(self._tree(inspection, handle))
        await finish(lambda: pausing.record_memory(inspection.folder, now_at))
        # The cached measurement is from before the memory was pushed out.
        self._meters.pop(handle.sandbox_id, None)

    async def stop(self, handle: Handle) -> None:
        """End every process; inspect completes it if the server is interrupted."""
        inspection = await self._require_alive(handle)
        if inspection.is_ended and not inspection.is_half_paused:
            return
        tree, note = self._tree(inspection, handle), inspection.folder.write_pause
        grace_seconds = 0 if inspection.phase is Phase.PAUSED else self.config.stop_seconds
        async with self._pausing[handle.sandbox_id]:
            await finish(lambda: note(Pause(is_done=False, ends=True)))
            await self._end(tree, grace_seconds=grace_seconds)
            await finish(lambda: note(Pause(is_done=True, ends=True)))

    async def resume(self, handle: Handle) -> Handle:
        """Resume every process; raises Conflict if the command has ended."""
        inspection = await self._require_alive(handle)
        if inspection.is_ended and inspection.is_half_paused:
            raise BackendUnavailable(
                "Processes of the sandbox do not end", detail=handle.sandbox_id
            )
        if inspection.is_ended:
            raise Conflict("The sandbox was stopped, and has to be started again")
        tree = self._tree(inspection, handle)
        async with self._pausing[handle.sandbox_id]:
            await finish(lambda: pausing.resume(inspection.folder, tree))
        self._attempts.forget(handle.sandbox_id)
        return handle

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Copy the home and the workspace of a stopped sandbox to a layer."""
        return await self._layers.keep(await self._require_stopped(handle), layer_id, max_bytes)

    async def layers(self) -> Sequence[str]:
        """List the layers in the state directory."""
        return await self._layers.ids()

    async def remove_layer(self, layer_id: str) -> None:
        """Remove the directory of a layer."""
        await self._layers.remove(layer_id)

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Copy the changed files of the home and the workspace into the sandbox's directory."""
        inspection = await self._require_alive(handle)
        await self._layers.keep_checkpoint(
            inspection.folder, checkpoint_id, keep=keep, max_bytes=max_bytes
        )

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """List the checkpoints in the directory of a sandbox."""
        found = await self._layers.checkpoints(self._folder(handle))
        return [
            Checkpoint(id=name, created_at=datetime.fromtimestamp(begun / 1e9, UTC))
            for name, begun in found
        ]

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Record the checkpoint that a stopped sandbox restores at its next start."""
        await self._layers.roll_back(await self._require_stopped(handle), checkpoint_id)

    async def execute(
        self,
        handle: Handle,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        time_limit: float,
        max_output: int,
    ) -> ExecResult:
        """Run a command as a child of the shim, with the sandbox's environment plus `env`."""
        inspection = await self._require_alive(handle)
        if inspection.phase is Phase.PAUSED or inspection.record is None:
            raise Conflict("The sandbox is paused and accepts no commands")
        request = control.Request(
            token=await reach(inspection.folder.read_control_token),
            argv=tuple(argv),
            env=dict(env),
            time_limit=time_limit,
            max_output=max_output,
        )
        try:
            async with asyncio.timeout(time_limit + self.config.launch_seconds):
                return await control.execute(launch.control_path(inspection.record.temp), request)
        except TimeoutError as exc:
            raise BackendUnavailable(
                "The sandbox did not respond in time", detail=handle.sandbox_id
            ) from exc
        except (OSError, control.BadAnswer) as exc:
            raise Conflict("The sandbox has ended", detail=str(exc)) from exc

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the command's output, with the values of its secrets masked."""
        folder = self._folder(handle)
        file = LogFile(folder.log)
        for line in await reach(lambda: file.tail(tail)):
            yield line
        while follow and await reach(folder.exists):
            for line in await reach(file.more):
                yield line
            await asyncio.sleep(_FOLLOW_SECONDS)

    async def usage(self, handle: Handle) -> Usage | None:
        """Measure usage from the control groups, or from the processes."""
        folder = self._folder(handle)

        def measure() -> Usage | None:
            state = state_of_this_boot(folder)
            meter = self._meters.setdefault(handle.sandbox_id, Meter())
            found = meter.measure(state) if state is not None else None
            if found is None:
                self._meters.pop(handle.sandbox_id, None)
            return found

        async with self._measuring:
            return await reach(measure)

    async def give_way(self, handles: Sequence[Handle]) -> None:
        """Lower the priority of these sandboxes' agent servers and restore that of all others."""
        named = frozenset(handle.sandbox_id for handle in handles)
        await reach(lambda: self._priorities.settle(named))

    # Blocking functions, which run in threads

    def _open(self) -> None:
        self.context.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        bubblewrap.forget_trials(self.context.state_dir)
        self._layers.sweep()
        there = {folder.sandbox_id: record.user for folder, record in self._records()}
        self._features.find(self.context.state_dir, there)
        user = self._features.users.any()
        self._layers.overlays.find(user, is_wanted=self.config.use_overlayfs)
        self._why_no_reclaim = self._features.why_no_reclaim()

    async def _restore_priorities(self) -> None:
        """Restore all priorities; a failure is only logged, not a reason to fail open or close."""
        try:
            await self.give_way(())
        except (BackendUnavailable, CapacityExceeded) as exc:
            log.warning("sandbox priorities not restored", extra={"reason": exc.detail})

    def _running_state(self, sandbox_id: str) -> sandbox_directory.State | None:
        folder = sandbox_directory.find_folder(self.context.state_dir, sandbox_id)
        return state_of_this_boot(folder) if folder is not None else None

    def _records(self) -> list[tuple[SandboxDirectory, sandbox_directory.Record]]:
        found = sandbox_directory.list_folders(self.context.state_dir, self.context.instance_id)
        return [(folder, record) for folder, _ in found if (record := folder.read_record())]

    def _probe(self) -> Health:
        free = shutil.disk_usage(self.context.state_dir).free
        agent = agent_version()
        self._why_no_reclaim = self._features.why_no_reclaim()
        facts = {
            "python": sys.executable,
            "agent server": agent or "not installed",
            "tmux": shutil.which("tmux", path=launch.search_path(self.config.path)) or "not found",
            "free disk bytes": str(free),
            **self._features.facts(),
            "zygote": self._zygote.describe(),
            "layers": self._layers.overlays.describe(),
            "paused memory": self._why_no_reclaim or "can be pushed out to swap",
        }
        hint = (
            "" if agent else "the agent server is not installed: run `pip install agentsvc[agent]`"
        )
        advice = (
            *self._features.advice(),
            *self._layers.overlays.advice(),
            *self._zygote.advice(),
        )
        return Health(ok=True, reason=hint, facts=facts, advice=advice)

    async def _start(self, order: Order, save: SaveHandle) -> Handle:
        folder = sandbox_directory.require_folder(self.context.state_dir, order.sandbox_id)
        plan = launch.Plan(
            instance_id=self.context.instance_id,
            folder=folder,
            order=order,
            config=self.config,
            features=self._features,
            temp_root=self._temp_root,
            way_out=await reach(self._features.way_out),
        )
        await self._layers.attach(folder)
        record = await finish(plan.prepare)
        if order.layer:
            await self._layers.begin(folder, order.layer, record.user)
        elif order.copy_of:
            other = sandbox_directory.require_folder(self.context.state_dir, order.copy_of)
            await self._layers.begin_as(folder, other, record.user)
        await self._layers.finish_rollback(folder, record.user)
        await self._proxy_sockets.open(folder, record)
        # A sandbox that runs, or has run, is not started again.
        is_there = await reach(folder.read_state) is not None
        loan = zygote.ForkHandle() if is_there else await self._lend_zygote(order)
        try:
            lent = msgspec.structs.replace(plan, loan=loan)
            handle = await finish(lambda: to_handle(folder, lent.carry_out()))
        finally:
            loan.close()
        await save(handle)
        state = await reach(folder.read_state) if loan.zygote else None
        if state is not None:
            self._zygote.note_start(loan.zygote, state.started_by)
        return handle

    async def _lend_zygote(self, order: Order) -> zygote.ForkHandle:
        if (order.command or ())[:3] != ("{python}", "-m", self.program):
            return zygote.ForkHandle()
        if not order.options.get(ZYGOTE, True):
            return zygote.ForkHandle(reason="the spec has no zygote")
        return await self._zygote.lend()

    def _scan(self) -> list[Found]:
        # Scans are periodic, and swap may be added or removed in between.
        self._why_no_reclaim = self._features.why_no_reclaim()
        instance_id = self.context.instance_id
        return find_all(self.context.state_dir, self._temp_root, instance_id, self._uids)

    def _remove(self, folder: SandboxDirectory, inspection: Inspection, handle: Handle) -> None:
        mark = self._mark(handle)
        known = inspection.record.temp if inspection.record else temp_of(handle)
        sandbox_directory.remove_temps(mark, self._temp_root, known)
        held = self._features.groups.legacy_paths(launch.group_name(mark))
        held += [Path(path) for path in (inspection.state.joined if inspection.state else ())]
        if (group := self._tree(inspection, handle).group) is not None:
            held.append(group)
        for group in held:
            cgroup.remove(group)
        self._layers.forget(folder)
        folder.remove()
        self._features.users.release(handle.sandbox_id)

    # Shared helpers

    def _check(self, order: Order) -> None:
        check(order)
        self.check_fences(order)

    def _folder(self, handle: Handle) -> SandboxDirectory:
        return folder_of(handle, self.context.state_dir)

    def _mark(self, handle: Handle) -> str:
        return mark_of(self.context.instance_id, handle.sandbox_id)

    def _tree(self, inspection: Inspection, handle: Handle) -> Tree:
        groups = self._features.groups.unified
        return tree_of(inspection, handle, self._mark(handle), groups, self._uids)

    async def _inspect(self, folder: SandboxDirectory, handle: Handle) -> Inspection:
        inspection = await reach(lambda: look_at(folder, self._mark(handle), self._uids))
        return await self._complete(inspection, handle)

    async def _complete(self, inspection: Inspection, handle: Handle) -> Inspection:
        """Complete an interrupted pause or stop, and kill orphaned processes.

        Do nothing if that has been completed or undone meanwhile; return the new inspection.
        """

        def catch_up() -> Inspection:
            tree = self._tree(inspection, handle)
            pause = inspection.folder.read_pause()
            if inspection.is_orphaned:
                tree.kill()
            elif pause is not None and not pause.is_done:
                if pause.ends:
                    pausing.finish_stop(inspection.folder, tree)
                else:
                    pausing.finish_pause(inspection.folder, tree, self.config.pause_seconds)
            if not inspection.is_half_paused:
                return inspection
            return look_at(inspection.folder, self._mark(handle), self._uids)

        if inspection.is_orphaned or inspection.is_half_paused:
            async with self._pausing[handle.sandbox_id]:
                return await finish(catch_up)
        return inspection

    async def _require_alive(self, handle: Handle) -> Inspection:
        inspection = await self._inspect(self._folder(handle), handle)
        if inspection.phase is Phase.GONE:
            raise Conflict("The sandbox does not exist any more")
        if inspection.phase is Phase.FAILED:
            raise Conflict(f"The sandbox has failed: {inspection.reason}")
        if inspection.state is None and not inspection.is_ended:
            raise Conflict("The sandbox is still starting")
        return inspection

    async def _require_stopped(self, handle: Handle) -> SandboxDirectory:
        """Return the directory of a stopped sandbox; raises Conflict unless it is stopped."""
        inspection = await self._require_alive(handle)
        if inspection.paused_as is not PausedAs.STOPPED:
            raise Conflict("The sandbox is not stopped; its files may change")
        return inspection.folder

    async def _end(self, tree: Tree, *, grace_seconds: float) -> None:
        if grace_seconds > 0 and await reach(tree.terminate):
            await until_none(lambda: bool(tree.others()), grace_seconds)
        if not await until_none(tree.kill, self.config.kill_seconds):
            raise BackendUnavailable("Processes of the sandbox do not end", detail=tree.mark)
        if (root := tree.root) is not None:
            await reach(lambda: reap(root))
