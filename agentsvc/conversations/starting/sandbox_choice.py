"""Choice of the sandbox for a conversation: the named one, a running one it joins, or a new one."""

import contextlib
import logging

import msgspec

from agentsvc.base import BackendUnavailable, NotFound, StartRefused
from agentsvc.conversations.starting.environments import is_named
from agentsvc.conversations.starting.failure import unknown_sandbox
from agentsvc.conversations.starting.grouping import choose_sandbox
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress
from agentsvc.conversations.starting.sandbox_checks import SandboxChecks
from agentsvc.conversations.starting.states import CheckedStart, StartWithSandbox
from agentsvc.domain import WhenFull
from agentsvc.plugin import Spec
from agentsvc.sandboxes import Sandbox, SandboxStatus, StartLane, Target
from agentsvc.settings import GroupingStrategy
from agentsvc.storage import Transaction

log = logging.getLogger(__name__)


class SandboxChooser:
    """Chooses the sandbox of each start, and the directory in it."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._stores = parts.stores
        self._sandboxes = parts.sandboxes
        self._progress = Progress(parts)
        self._checks = SandboxChecks(parts)

    async def reserve(self, tx: Transaction, checked: CheckedStart) -> None:
        """Enter a new start into the admission queue, if room is limited for its user.

        In the transaction of the order, so that its caller gets the errors of
        `AdmissionQueue.enter`. A start that may join a running sandbox is left out; it waits later
        if it needs room.
        """
        start = checked.start
        user_id, order = start.task.user_id, start.task.request
        if not await self._sandboxes.admission.is_limited_for(tx, user_id):
            return
        named = order.sandbox_id or start.conversation.sandbox_id
        if named is not None:
            await self._sandboxes.resume_named(tx, user_id, named, order.when_full)
        elif not await self._find_joinable(checked):
            # An unavailable backend is retried in the background; it does not fail the order.
            with contextlib.suppress(BackendUnavailable):
                await self._create(tx, checked, order.when_full, start_id=start.task.id)

    async def find_lane(self, checked: CheckedStart) -> StartLane | None:
        """Return the lane in which a start waits for its turn; None if it needs none."""
        start, task = checked.start, checked.start.task
        named = task.sandbox_id or task.request.sandbox_id or start.conversation.sandbox_id
        if named is None:
            found = await self._find_joinable(checked)
        else:
            [found] = await self._sandboxes.find_many(task.user_id, [named])
            if found is None:
                return None
        if not self._sandboxes.runs_here(found or self._spec(checked)):
            return None
        is_running = found is not None and found.status is SandboxStatus.RUNNING
        return StartLane.RUNNING if is_running else StartLane.NEW

    async def choose(self, checked: CheckedStart) -> Sandbox:
        """Return the sandbox of a start: create, join or resume it, and link it to the conversation.

        Raises StartRefused if the named sandbox does not exist or was deleted.
        """
        start = checked.start
        task, order = start.task, start.task.request
        wanted = task.sandbox_id or order.sandbox_id or start.conversation.sandbox_id
        if wanted is None:
            # If room is limited, `reserve` has already reported a lack of it to the caller.
            if (joined := await self._join_sandbox(checked)) is not None:
                return joined
            return await self._stores.db.write(lambda tx: self._create(tx, checked, WhenFull.QUEUE))
        [sandbox] = await self._sandboxes.find_many(task.user_id, [wanted])
        if sandbox is None:
            is_lost = task.sandbox_id is not None
            raise StartRefused(
                await self._checks.explain(None) if is_lost else unknown_sandbox(wanted)
            )
        # Once this run has seen it running, a pause is the user's own and is not undone.
        is_resumable = sandbox.status is SandboxStatus.PAUSED and start.sandbox is None
        if is_resumable or (sandbox.status is SandboxStatus.ERROR and not task.sandbox_id):
            await self._sandboxes.resume(task.user_id, wanted, when_full=WhenFull.QUEUE)
        if task.sandbox_id is None:
            await self._stores.db.write(lambda tx: self._progress.link_sandbox(tx, start, wanted))
        return sandbox

    async def _join_sandbox(self, checked: CheckedStart) -> Sandbox | None:
        start = checked.start
        chosen = await self._find_joinable(checked)
        if chosen is None:
            return None
        sandbox_id = chosen.id

        async def join(tx: Transaction) -> Sandbox | None:
            found = await self._sandboxes.find_any(sandbox_id, tx)
            if found is None or found.target is not Target.RUNNING:
                # It was deleted, or is to be paused, since the query.
                return None
            await self._progress.link_sandbox(tx, start, sandbox_id)
            return found

        return await self._stores.db.write(join)

    async def _find_joinable(self, checked: CheckedStart) -> Sandbox | None:
        strategy, spec = checked.settings.sandbox_grouping_strategy, self._spec(checked)
        order = checked.start.task.request
        has_own_files = is_named(order) or order.copied is not None
        is_alone = order.is_alone or order.withholds_secrets or has_own_files
        if strategy is GroupingStrategy.NO_GROUPING or is_alone:
            return None
        running = [
            sandbox
            for sandbox in await self._sandboxes.find_running(checked.start.task.user_id)
            if sandbox.spec_id == spec.id
            and sandbox.agent_url is not None
            and not sandbox.spec.withholds_secrets
            and not sandbox.spec.layer
        ]
        occupancy = await self._stores.conversations.occupancy([sandbox.id for sandbox in running])
        return choose_sandbox(strategy, running, occupancy)

    async def _create(
        self,
        tx: Transaction,
        checked: CheckedStart,
        when_full: WhenFull | None,
        *,
        start_id: str | None = None,
    ) -> Sandbox:
        spec = await self._with_initial_files(tx, checked, self._spec(checked))
        factor = checked.settings.remote_runtime_resource_factor
        if factor is not None:
            spec = msgspec.structs.replace(spec, resource_factor=factor)
        if checked.start.task.request.withholds_secrets:
            spec = msgspec.structs.replace(spec, withholds_secrets=True)
        # In one transaction: a sandbox that its task does not know would be created twice.
        user_id = checked.start.task.user_id
        sandbox = await self._sandboxes.start(
            user_id, spec, tx=tx, when_full=when_full, start_id=start_id
        )
        await self._progress.link_sandbox(tx, checked.start, sandbox.id)
        return sandbox

    async def _with_initial_files(self, tx: Transaction, checked: CheckedStart, spec: Spec) -> Spec:
        """Return the spec with the copied files or the layer that the conversation begins with."""
        task = checked.start.task
        if (copied := task.request.copied) is not None:
            return msgspec.structs.replace(
                spec, copy_of=copied.sandbox_id, backend=copied.backend, base=copied.base
            )
        strategy = checked.settings.sandbox_grouping_strategy
        found = await self._parts.environments.choose(
            tx,
            task.user_id,
            task.request,
            spec,
            is_grouped=strategy is not GroupingStrategy.NO_GROUPING,
        )
        if found is None:
            return spec
        return msgspec.structs.replace(
            self._sandboxes.get_spec(found.spec_id),
            layer=found.layer_id,
            backend=found.backend,
            base=found.base,
        )

    def _spec(self, checked: CheckedStart) -> Spec:
        """Return the spec that the order names, or the user's default, or the server's."""
        wanted = checked.start.task.request.spec_id
        usual = checked.settings.default_sandbox_spec_id
        if wanted is None and usual is not None:
            try:
                return self._sandboxes.get_spec(usual)
            except NotFound:
                log.warning("sandbox spec of the settings does not exist", extra={"spec_id": usual})
        return self._sandboxes.get_spec(wanted)

    async def base_dir(self, hosted: StartWithSandbox) -> str:
        """Return the directory below which the conversation has its project."""
        start, sandbox = hosted.checked.start, hosted.sandbox
        parent_id = start.task.request.parent_conversation_id
        if parent_id is not None:
            parent = await self._stores.conversations.find(parent_id)
            if parent is not None and parent.working_dir:
                return parent.working_dir
        base = sandbox.working_dir.rstrip("/") or f"{await hosted.agent.home()}/project"
        if (copied := start.task.request.copied) is not None:
            return f"{base}/{copied.directory}".rstrip("/")
        mates = await self._stores.conversations.of_sandbox(sandbox.id)
        # The first conversation in a sandbox that others may join has its own directory, too. A
        # sandbox with an environment layer is never joined.
        strategy = hosted.checked.settings.sandbox_grouping_strategy
        is_grouped = strategy is not GroupingStrategy.NO_GROUPING and not sandbox.spec.layer
        if is_grouped or any(mate.id != start.conversation.id for mate in mates):
            return f"{base}/{start.conversation.id}"
        return base
