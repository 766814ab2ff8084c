"""Start tasks: created from orders, run in the background, and followed by clients."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import msgspec

from agentsvc.accounts import quotas
from agentsvc.base import BadRequest, Conflict, NotFound, new_id, steady_now
from agentsvc.conversations.archives import Archive, ArchiveState
from agentsvc.conversations.model import Conversation, Generation, StartTask
from agentsvc.conversations.records import new_conversation, new_task, require_settings
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.pipeline import StartPipeline
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.sandbox_choice import SandboxChooser
from agentsvc.conversations.starting.states import CheckedStart, Start
from agentsvc.domain import StartOrder, check_branch, check_repository, restore_secrets
from agentsvc.settings import Settings
from agentsvc.storage import Queryable, Transaction, note_effect

log = logging.getLogger(__name__)

type Claim = Callable[[Transaction, StartTask], Awaitable[None]]
"""A callback in the transaction that creates a start task; it rolls that back by raising."""


class StartOrders:
    """Validates and completes orders before a start task is stored."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._table = parts.stores.conversations
        self._tasks = parts.stores.tasks

    async def complete(self, user_id: str, order: StartOrder) -> tuple[StartOrder, Settings]:
        """Return the order with masked and inherited values filled in, and its user's settings.

        Raises BadRequest, Conflict or NotFound if the settings or the archive do not permit it.
        """
        settings = await self._parts.settings.find(user_id)
        if order.settings_required:
            require_settings(order, settings)
        if order.mcp_config is not None:
            stored = settings.mcp_config if settings else None
            restored = restore_secrets(order.mcp_config, stored)
            order = msgspec.structs.replace(order, mcp_config=restored)
        if order.archive_id is not None:
            await self._check_archive(user_id, order)
        if (first_id := order.fork_of) is not None:
            order = await self._with_earlier(order, first_id)
            if settings is not None:
                order = await self._with_model(order, first_id, settings)
        return order, settings or Settings()

    def check(self, order: StartOrder) -> None:
        """Raise BadRequest or NotFound for an order that can never be started."""
        first_message(order)
        self._parts.sandboxes.get_spec(order.spec_id)
        if order.repository is not None and "://" not in order.repository:
            check_repository(order.repository, order.provider)
        if order.branch is not None:
            check_branch(order.branch)

    async def find_existing(
        self, user_id: str, order: StartOrder, reader: Queryable | None = None
    ) -> StartTask | None:
        """Return the task of the same order, if it was accepted before.

        Raises Conflict if its conversation id belongs to a different order or user.
        """
        if order.conversation_id is None:
            return None
        known = await self._table.find(order.conversation_id, reader)
        if known is None:
            return None
        task = await self._tasks.find_of_conversation(known.id, reader)
        if known.user_id != user_id or task is None or task.request != order:
            raise Conflict(
                "A conversation with this id exists and was started by a different request; nothing"
                " of this request was stored. Send messages to it with `send-message`"
            )
        return task

    async def find_parent(self, user_id: str, order: StartOrder) -> Conversation | None:
        """Return the parent conversation that an order names, if any; raises NotFound."""
        if order.parent_conversation_id is None:
            return None
        wanted = order.parent_conversation_id
        found = await self._table.find_of_user(user_id, [wanted], include_starting=False)
        if wanted not in found:
            raise NotFound("Parent conversation not found")
        return found[wanted]

    async def _with_earlier(self, order: StartOrder, first_id: str) -> StartOrder:
        """Return the order of a fork with its origin's secrets: the origin may be deleted first."""
        task = await self._tasks.find_of_conversation(first_id)
        if task is None:
            return order
        first = StartOrder(secrets=task.request.secrets, mcp_config=task.request.mcp_config)
        known = (first,) if first != StartOrder() else ()
        return msgspec.structs.replace(order, earlier=(*known, *task.request.earlier))

    async def _with_model(self, order: StartOrder, first_id: str, settings: Settings) -> StartOrder:
        """Return the order of a fork with the model of its origin, unless it names a model itself.

        A saved profile of that model is preferred, because it has its own key. A model that is
        neither saved nor named by the origin's order falls back to the default model.
        """
        first = await self._table.find(first_id)
        wanted = first.llm_model if first is not None else None
        is_named = order.llm_model or order.llm_profile
        if first is None or is_named or wanted in (None, settings.llm_model):
            return order
        for name, saved in settings.llm_profiles.items():
            if saved.model == wanted:
                return msgspec.structs.replace(order, llm_profile=name)
        task = await self._tasks.find_of_conversation(first.id)
        if task is None or task.request.llm_model != wanted:
            return order
        return msgspec.structs.replace(order, llm_model=wanted)

    async def _check_archive(self, user_id: str, order: StartOrder) -> None:
        archive = await self._parts.archives.get(user_id, order.archive_id or "")
        if archive.state is ArchiveState.FAILED:
            raise Conflict(f"The workspace is not saved: {archive.reason}")
        if order.repository or order.parent_conversation_id or order.sandbox_id:
            raise BadRequest("An archive needs a new sandbox, without a repository or a parent")


class Starts:
    """Accepts orders for conversations, and runs their start tasks."""

    def __init__(self, parts: StartParts) -> None:
        self.environments = parts.environments
        self._parts = parts
        self._table = parts.stores.conversations
        self._tasks = parts.stores.tasks
        self.search, self.count = self._tasks.search, self._tasks.count
        self.waiting, self.on_change = self._tasks.waiting, parts.followers.listen
        self._orders = StartOrders(parts)
        self._chooser = SandboxChooser(parts)
        self._pipeline = StartPipeline(parts)

    async def start(
        self,
        user_id: str,
        order: StartOrder,
        *,
        generation: Generation = Generation.V1,
        claim: Claim | None = None,
        archive: Archive | None = None,
    ) -> StartTask:
        """Store a start task for an order and run it in the background; return the task.

        Idempotent: the same order for a known conversation id returns its task. With `archive`, the
        record of that archive is inserted in the same transaction, and the conversation begins with
        its files. `claim` runs in the transaction that creates the task and may roll it back by
        raising; it is not called if the task exists.
        Raises Conflict if another order has the conversation id, or another conversation the alias;
        BadRequest or NotFound for an order that can never be started; SandboxLimitReached if there
        is no room for it now; QuotaExceeded if the user may start no more.
        """
        order, settings = await self._orders.complete(user_id, order)
        if archive is not None:
            order = msgspec.structs.replace(order, archive_id=archive.id)
        order = await self.environments.check(user_id, order)
        conversation_id = order.conversation_id or new_id()
        earlier = await self._orders.find_existing(user_id, order)
        if earlier is not None:
            return earlier
        self._orders.check(order)
        parent = await self._orders.find_parent(user_id, order)
        conversation = new_conversation(
            user_id, conversation_id, order, settings, parent, generation=generation
        )
        task = new_task(user_id, conversation_id, order, generation)

        async def body(tx: Transaction) -> StartTask:
            earlier = await self._orders.find_existing(user_id, order, tx)
            if earlier is not None:
                return earlier
            if order.alias and await self._table.find_by_alias(user_id, order.alias, tx):
                raise Conflict("A conversation with this name exists")
            await quotas.note_start(tx, user_id)
            await self._table.insert(tx, conversation)
            if order.fork_of is not None:
                await self._parts.events.copy(tx, order.fork_of, conversation_id, order.fork_until)
            await self._tasks.insert(tx, task)
            if archive is not None:
                await self._parts.archives.insert(tx, archive)
            start = Start(task=task, conversation=conversation, deadline=steady_now())
            await self._chooser.reserve(tx, CheckedStart(start=start, settings=settings))
            if claim is not None:
                await claim(tx, start.task)
            await note_effect(tx, start.task)
            tx.after_commit(lambda: self._run(task.id))
            return start.task

        return await self._parts.stores.db.write(body)

    async def check(self, user_id: str, order: StartOrder) -> None:
        """Raise as `start` does for an order that can never be started; store nothing."""
        order, _ = await self._orders.complete(user_id, order)
        order = await self.environments.check(user_id, order)
        self._orders.check(order)

    async def find_many(self, user_id: str, ids: Sequence[str]) -> list[StartTask | None]:
        """Return a user's start tasks in the order of the ids, None for each unknown one."""
        found = await self._tasks.find_of_user(user_id, ids)
        return [found.get(task_id) for task_id in ids]

    async def follow(self, user_id: str, task_id: str) -> AsyncIterator[StartTask]:
        """Yield a start task now and after each change, until it is READY or ERROR.

        Ends early if the conversation is deleted. Raises NotFound.
        """
        with self._parts.followers.followed(task_id) as queue:
            [task] = await self.find_many(user_id, [task_id])
            if task is None:
                raise NotFound
            yield task
            while not task.status.is_final:
                changed = await queue.get()
                if changed is None:
                    return
                if changed.status.is_final or changed.updated_at > task.updated_at:
                    task = changed
                    yield task

    def forget(self, task_ids: Iterable[str]) -> None:
        """Free the slots of deleted start tasks and end the streams of their followers."""
        for task_id in task_ids:
            self._parts.sandboxes.slots.remove(task_id)
            self._parts.followers.end(task_id)

    async def go_on(self) -> None:
        """Resume the start tasks that a shutdown, a crash or a full disk interrupted."""
        unfinished = await self._tasks.unfinished()
        is_running = self._parts.supervisor.is_running
        interrupted = [task_id for task_id in unfinished if not is_running(_job_name(task_id))]
        self._parts.sandboxes.slots.expect(interrupted)
        for task_id in interrupted:
            log.info("conversation start resumed", extra={"task_id": task_id})
            self._run(task_id)

    def _run(self, task_id: str) -> None:
        self._parts.supervisor.spawn(_job_name(task_id), lambda: self._pipeline.run(task_id))


def _job_name(task_id: str) -> str:
    return f"start {task_id}"
