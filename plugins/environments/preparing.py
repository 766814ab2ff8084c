"""Prepares environments: runs the set-up in a dedicated sandbox, and stores its files as a layer.

A preparation that was interrupted by a stop or a crash starts again from the beginning. The new layer
replaces the old one in one transaction at the end.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    BackendUnavailable,
    StartRefused,
    StorageFailed,
    new_id,
    now,
)
from agentsvc.extension.conversations import WhenFull, locate
from agentsvc.extension.environments import AgentServer, Spec, Workspace
from agentsvc.extension.server import Sandbox, SandboxStatus, Server
from agentsvc.extension.storage import Transaction

from .config import EnvironmentsConfig
from .failure import explain_end, explain_error, explain_exit
from .images import ImageMaker
from .model import Container, Environment, Status
from .scripts import after_setup, hidden, setup_of
from .source import Source
from .table import EnvironmentTable

log = logging.getLogger(__name__)

_AGENT_SECONDS: Final = 60.0
_LOG_CHARACTERS: Final = 20_000
_CHECKS: Final = 5
_POLL_SECONDS: Final = 0.5


class _Superseded(Exception):
    """The environment was deleted, or a new preparation has replaced this one."""


class Preparer:
    """Prepares environments in the background, one at a time per user."""

    def __init__(self, server: Server, config: EnvironmentsConfig) -> None:
        self._server = server
        self._db = server.database
        self._sandboxes = server.sandboxes
        self._config = config
        self._maker = ImageMaker(server.sandboxes, config)
        self._slots = asyncio.Semaphore(config.max_at_once)
        self._user_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Each user occupies at most one slot, so that many environments of one do not delay others."""
        self._in_progress: set[str] = set()
        """Ids of the layers and images in the making, which no row refers to yet."""
        self._reserved: dict[str, int] = {}
        """Disk space reserved for environments in preparation, in bytes by their ids."""

    async def prepare_due(self) -> None:
        """Remove unused layers and images, and start the waiting preparations."""
        try:
            await self._remove_unused()
        finally:
            await self.begin_waiting()

    async def begin_waiting(self) -> None:
        """Start the waiting preparations."""
        for environment_id in await EnvironmentTable.unfinished(self._db):
            name = f"environment {environment_id}"
            if not self._server.supervisor.is_running(name):
                self._server.supervisor.spawn(name, partial(self._run, environment_id))

    async def _remove_unused(self) -> None:
        used = await EnvironmentTable.layers(self._db)
        for backend in {*used, *self._backends(self._sandboxes.layers.can_keep)}:
            with _skip_failed(backend):
                await self._remove_layers(backend, used.get(backend, set()))
        for backend in self._backends(self._sandboxes.images.can_use):
            with _skip_failed(backend):
                await self._sandboxes.images.remove_unused(backend, self._images_in_use)

    async def _remove_layers(self, backend: str, used: set[str]) -> None:
        """Remove unused layers of a backend, and reset environments whose layer is gone."""
        there = await self._sandboxes.layers.remove_unused(
            backend, partial(self._layers_in_use, backend)
        )
        for layer_id in used - there:
            await self._db.write(partial(self._forget, layer_id))

    async def _layers_in_use(self, backend: str) -> frozenset[str]:
        # In this order, because an id moves from here into the table.
        made = frozenset(self._in_progress)
        return made.union((await EnvironmentTable.layers(self._db)).get(backend, ()))

    async def _images_in_use(self) -> frozenset[str]:
        # As above.
        made = frozenset(self._in_progress)
        return made | await EnvironmentTable.image_ids(self._db)

    def _backends(self, can: Callable[[Spec], bool]) -> set[str]:
        found = set()
        for spec in self._sandboxes.specs():
            with contextlib.suppress(BackendUnavailable):
                found |= {spec.backend} if can(spec) else set()
        return found

    async def _forget(self, layer_id: str, tx: Transaction) -> None:
        """Reset an environment whose layer is gone, as after a restore on another machine."""
        found = await EnvironmentTable.find_by_layer(tx, layer_id)
        if found is not None and found.layer_id == layer_id:
            lost = msgspec.structs.replace(
                found, layer_id="", status=Status.WAITING, attempt=new_id(), size_bytes=0
            )
            await EnvironmentTable.change(tx, lost, since=found.attempt)

    async def _run(self, environment_id: str) -> None:
        waiting = await EnvironmentTable.find(self._db, environment_id)
        if waiting is None:
            return
        async with self._user_locks[waiting.user_id], self._slots:
            found = await EnvironmentTable.find(self._db, environment_id)
            if found is None or found.status.is_final:
                return
            try:
                await self._prepare(found)
            except _Superseded:
                log.info("environment preparation superseded", extra={"environment_id": found.id})

    async def _prepare(self, found: Environment) -> None:
        layer_id = new_id()
        self._in_progress.add(layer_id)
        try:
            made = await self._outcome(found, layer_id)
            ended = msgspec.structs.replace(made, sandbox_id=None, updated_at=now())

            async def body(tx: Transaction) -> None:
                await self._store(tx, ended)
                if made.sandbox_id:
                    await self._sandboxes.release(tx, made.sandbox_id)

            try:
                await self._db.write(body)
            except StorageFailed:
                # The files of its sandbox may be the reason that the disk is full.
                await self._sandboxes.remove_ahead(made.sandbox_id or "")
                await self._db.write(body)
        finally:
            self._in_progress.discard(layer_id)
            self._reserved.pop(found.id, None)
        facts = {"environment_id": ended.id, "status": str(ended.status), "reason": ended.reason}
        log.info("environment prepared", extra=facts)

    async def _outcome(self, found: Environment, layer_id: str) -> Environment:
        try:
            return await self._make(found, layer_id)
        except _Superseded:
            raise
        except Exception as exc:
            latest = await EnvironmentTable.find(self._db, found.id)
            if latest is None or latest.attempt != found.attempt:
                raise _Superseded from exc
            reason = await self._reason(latest, exc)
            return msgspec.structs.replace(latest, status=Status.FAILED, reason=reason)

    async def _reason(self, failed: Environment, exc: Exception) -> str:
        if not isinstance(exc, AgentsvcError):
            log.error("environment not prepared", extra={"environment_id": failed.id}, exc_info=exc)
            return "An unexpected error; the server's log has the details"
        if isinstance(exc, AgentUnavailable):
            ended = await self._ended(failed)
            if ended is not None:
                return explain_end(ended)
        return explain_error(exc)

    async def _ended(self, failed: Environment) -> Sandbox | None:
        """Return the sandbox of a preparation if it has failed, or fails within a few checks."""
        sandbox_id = failed.sandbox_id or ""
        with contextlib.suppress(AgentsvcError):
            for _ in range(_CHECKS):
                # Resuming a sandbox makes the reconciler check it.
                await self._sandboxes.resume(failed.user_id, sandbox_id)
                seen = await self._sandboxes.wait_for(
                    sandbox_id,
                    lambda one: one is None or one.status is SandboxStatus.ERROR,
                    time_limit=_POLL_SECONDS,
                )
                if seen is None or seen.status is SandboxStatus.ERROR:
                    return seen
        return None

    async def _start_sandbox(self, found: Environment, base: str) -> Environment:
        """Start a sandbox without any secret of its user."""
        spec = self._sandboxes.get_spec(found.definition.sandbox_spec_id)
        bare = msgspec.structs.replace(spec, withholds_secrets=True, base=base)

        async def body(tx: Transaction) -> Environment:
            if found.sandbox_id:
                await self._sandboxes.release(tx, found.sandbox_id)
            sandbox = await self._sandboxes.start(
                found.user_id, bare, tx=tx, when_full=WhenFull.QUEUE, is_plain=False
            )
            begun = msgspec.structs.replace(
                found, status=Status.PREPARING, reason="Starting the sandbox", sandbox_id=sandbox.id
            )
            await self._store(tx, begun)
            return begun

        return await self._db.write(body)

    async def _make(self, found: Environment, layer_id: str) -> Environment:
        definition = found.definition
        spec = self._sandboxes.get_spec(definition.sandbox_spec_id)
        if why_not := self._sandboxes.layers.why_not_kept(spec):
            raise StartRefused(f"Its files cannot be stored: {why_not}")
        current = await self._update(
            found, status=Status.PREPARING, reason="Fetching the repository", log=""
        )
        room = self._reserved[found.id] = await self._free_bytes(found)
        async with self._source(current) as source:
            container = await self._container(current, source, layer_id)
            begun = await self._start_sandbox(current, container.image)
            sandbox = await self._wait_for(begun)
            agent = self._server.agents.at(sandbox.agent_url or "", sandbox.session_key)
            with self._sandboxes.usage.hold(sandbox.id):
                await agent.wait_ready(_AGENT_SECONDS)
                workspace = await self._unpack(begun, sandbox, agent, source)
                current = await self._update(begun, reason="Running the set-up script")
                current = await self._set_up(current, workspace, container)
                watched = (*definition.paths, *container.files)
                fingerprint = await workspace.fingerprint(watched)
        current = await self._update(current, reason="Storing the files")
        await self._sandboxes.stop(sandbox.user_id, sandbox.id)
        stopped = await self._sandboxes.get(sandbox.user_id, sandbox.id)
        size = await self._sandboxes.layers.keep(stopped, layer_id, max_bytes=room)
        return msgspec.structs.replace(
            current,
            status=Status.READY,
            reason=container.note,
            layer_id=layer_id,
            earlier_layer_id=current.layer_id,
            made_from=definition,
            container=container,
            backend=sandbox.backend,
            spec_id=sandbox.spec_id,
            fingerprint=fingerprint,
            size_bytes=size,
            prepared_at=now(),
        )

    @asynccontextmanager
    async def _source(self, begun: Environment) -> AsyncIterator[Source | None]:
        """Fetch the repository, if any, on the server, so that no token enters a sandbox."""
        definition = begun.definition
        if definition.repository is None:
            yield None
            return
        async with self._server.git.checkout(
            begun.user_id,
            definition.repository,
            definition.provider,
            time_limit=self._config.prepare_seconds,
        ) as checkout:
            head = await checkout.head()
            await checkout.fetch(head.commit)
            yield Source(checkout, head)

    async def _container(
        self, begun: Environment, source: Source | None, image_id: str
    ) -> Container:
        """Return the additions by the repository's `devcontainer.json`, with its image."""
        definition = begun.definition
        found = await source.find_devcontainer(definition.devcontainer) if source else None
        spec = self._sandboxes.get_spec(definition.sandbox_spec_id)
        has_images = self._sandboxes.images.can_use(spec)
        added = found.to_container(has_images=has_images) if found else Container()
        if not has_images:
            return added
        await self._update(begun, reason="Preparing the image")
        wanted = (source, found) if source and found else None
        image = await self._maker.make(image_id, spec, definition.image, wanted)
        built = image_id if image.endswith(f":{image_id}") else ""
        return msgspec.structs.replace(added, image=image, image_id=built)

    async def _free_bytes(self, begun: Environment) -> int:
        kept = await EnvironmentTable.total_bytes(self._db, without=begun.id)
        used = kept + sum(self._reserved.values())
        if used >= self._config.max_total_bytes:
            raise StartRefused(
                f"All environments together take the {self._config.max_total_bytes} bytes of"
                " `max_total_bytes`: delete some"
            )
        return min(self._config.max_bytes, self._config.max_total_bytes - used)

    async def _wait_for(self, begun: Environment) -> Sandbox:
        seen = await self._sandboxes.wait_for(
            begun.sandbox_id or "",
            lambda one: one is None or one.status is not SandboxStatus.STARTING,
            time_limit=self._config.prepare_seconds,
        )
        if seen is None:
            raise _Superseded
        if seen.status is SandboxStatus.STARTING:
            seconds = self._config.prepare_seconds
            raise StartRefused(
                f"The sandbox did not start in the {seconds:g} s of `prepare_seconds`"
                f" {seen.reason or ''}".strip()
            )
        if seen.agent_url is None:
            raise StartRefused(f"The sandbox does not run: {seen.reason or seen.status}")
        return seen

    async def _unpack(
        self, begun: Environment, sandbox: Sandbox, agent: AgentServer, source: Source | None
    ) -> Workspace:
        """Unpack the fetched repository in the sandbox, or create an empty workspace."""
        base = sandbox.working_dir.rstrip("/") or f"{await agent.home()}/project"
        if source is None:
            workspace = Workspace(agent, base)
            await workspace.make_empty({})
            return workspace
        await self._update(begun, reason="Unpacking the repository")
        url = source.checkout.remote.url
        workspace = Workspace(agent, f"{base}/{locate(url).directory}")
        await workspace.unpack(
            await source.checkout.pack(),
            commit=source.head.commit,
            branch=source.head.branch,
            work_branch=source.head.branch,
            url=url,
            time_limit=self._config.prepare_seconds,
        )
        return workspace

    async def _set_up(
        self, begun: Environment, workspace: Workspace, container: Container
    ) -> Environment:
        secrets, seconds = await self._secrets(begun), self._config.prepare_seconds
        script = setup_of(begun.definition, container, secrets)
        result = await workspace.run_bash(script, seconds)
        output = f"{result.stdout}\n{result.stderr}".strip()
        output = hidden(output, secrets.values())
        output = "\n".join(filter(None, (output[-_LOG_CHARACTERS:], container.note)))
        current = await self._update(begun, log=output)
        if result.timed_out:
            raise StartRefused(
                f"The set-up script took longer than the {seconds:g} s of `prepare_seconds`"
            )
        if result.exit_code != 0:
            raise StartRefused(explain_exit(result.exit_code, output))
        await workspace.run_bash(after_setup(container, workspace.project_dir), seconds)
        return current

    async def _secrets(self, begun: Environment) -> dict[str, str]:
        stored = await self._server.secrets.custom_secrets(begun.user_id)
        missing = [name for name in begun.definition.secrets if name not in stored]
        if missing:
            raise StartRefused(
                f"There is no secret `{missing[0]}`: store it, or take it out of `secrets`"
            )
        return {name: stored[name].value.reveal() for name in begun.definition.secrets}

    async def _update(self, one: Environment, **changes: Any) -> Environment:
        changed = msgspec.structs.replace(one, **changes)
        await self._db.write(partial(self._store, one=changed))
        return changed

    async def _store(self, tx: Transaction, one: Environment) -> None:
        if not await EnvironmentTable.change(tx, one, since=one.attempt):
            raise _Superseded


@contextlib.contextmanager
def _skip_failed(backend: str) -> Iterator[None]:
    """Skip a backend that fails, until the next run."""
    try:
        yield
    except AgentsvcError as exc:
        extra = {"backend": backend, "reason": exc.log_text}
        log.debug("unused files of environments not removed", extra=extra)
