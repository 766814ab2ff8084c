"""Operations of users on tasks and their attempts."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agentsvc.base import Conflict, InvalidRequest, NotFound, QuotaExceeded, new_id, now
from agentsvc.extension.conversations import (
    ExecutionStatus,
    StartOrder,
    WhenFull,
    check_starts,
    refuse_credentials,
)
from agentsvc.extension.preferences import Settings, SettingsStore
from agentsvc.extension.server import Server
from agentsvc.extension.storage import Queryable, Transaction, note_effect

from .config import AttemptsConfig
from .model import LEAST, OPEN, Attempt, AttemptOrder, AttemptSet, AttemptStatus
from .table import AttemptTable, SetTable

OTHER_CHOSEN: Final = "Another attempt was chosen"

_NOT_STARTED: Final = (AttemptStatus.QUEUED, AttemptStatus.STARTING, AttemptStatus.DISCARDED)
_MAX_TITLE: Final = 190


class AttemptSetResult(msgspec.Struct, frozen=True, kw_only=True):
    """A task with its attempts."""

    task: AttemptSet
    attempts: Sequence[Attempt]


class Attempts:
    """All tasks; users see and change only their own. `wake` wakes the runner."""

    def __init__(self, server: Server, config: AttemptsConfig, wake: Callable[[], None]) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._events = server.events
        self._settings = SettingsStore(server.database, server.vault)
        self._config = config
        self._wake = wake

    async def list_of(self, user_id: str) -> list[AttemptSetResult]:
        """Return the tasks of a user, the newest first."""
        found = await SetTable.of_user(self._db, user_id)
        attempts = await AttemptTable.of_sets(self._db, [one.id for one in found])
        return [AttemptSetResult(task=one, attempts=attempts[one.id]) for one in found]

    async def get(self, user_id: str, set_id: str) -> AttemptSetResult:
        """Return a task; raises NotFound."""
        return await _with_attempts(self._db, await _owned(self._db, user_id, set_id))

    async def create(self, user_id: str, definition: AttemptOrder) -> AttemptSetResult:
        """Store a task, whose attempts start in the background.

        Raises InvalidRequest for a contradictory order, QuotaExceeded for too many tasks or starts, and
        the errors of starts.
        """
        definition = definition.with_plain_ids()
        self._check(definition)
        await self._check_starts(user_id, definition)
        task = AttemptSet(id=new_id(), user_id=user_id, definition=definition, created_at=now())
        attempts = [
            Attempt(
                set_id=task.id,
                number=number + 1,
                conversation_id=new_id(),
                model=definition.models[number % len(definition.models)]
                if definition.models
                else None,
            )
            for number in range(definition.size)
        ]

        async def body(tx: Transaction) -> AttemptSetResult:
            if len(await SetTable.of_user(tx, user_id)) >= self._config.most_per_user:
                limit = self._config.most_per_user
                raise QuotaExceeded(f"A user has at most {limit} tasks with attempts: delete one")
            await check_starts(tx, user_id, len(attempts))
            await SetTable.insert(tx, task)
            for one in attempts:
                await AttemptTable.insert(tx, one)
            made = AttemptSetResult(task=task, attempts=attempts)
            await note_effect(tx, made)
            tx.after_commit(self._wake)
            return made

        return await self._db.write(body)

    async def choose(
        self, user_id: str, set_id: str, wanted: int | str, *, keep_others: bool
    ) -> AttemptSetResult:
        """Choose one attempt by its number or its conversation, and delete or stop the others.

        Raises NotFound, and Conflict if it has not started or another one was chosen.
        """
        known = _find_attempt((await self.get(user_id, set_id)).attempts, wanted)
        [view] = await self._conversations.find_many(user_id, [known.conversation_id])

        async def body(tx: Transaction) -> AttemptSetResult:
            task = await _owned(tx, user_id, set_id)
            before = (await _with_attempts(tx, task)).attempts
            chosen = _find_attempt(before, wanted)
            if task.chosen == chosen.number:
                return await _with_attempts(tx, task)
            if task.chosen is not None:
                raise Conflict(f"Attempt {task.chosen} of this task was chosen")
            if view is None or chosen.status in _NOT_STARTED:
                raise Conflict("This attempt has no conversation to continue")
            await _mark(tx, chosen, AttemptStatus.CHOSEN)
            for one in before:
                if one is not chosen and not keep_others:
                    await _mark(tx, one, AttemptStatus.DISCARDED)
            await stop(tx, msgspec.structs.replace(task, chosen=chosen.number, stop=OTHER_CHOSEN))
            after = await _with_attempts(tx, await _owned(tx, user_id, set_id))
            await note_effect(tx, after)
            tx.after_commit(self._wake)
            return after

        return await self._db.write(body)

    async def delete(self, user_id: str, set_id: str) -> None:
        """Delete a task and its conversations except the chosen one; raises NotFound."""

        async def body(tx: Transaction) -> None:
            task = await _owned(tx, user_id, set_id)
            await SetTable.update(tx, msgspec.structs.replace(task, is_deleted=True))
            tx.after_commit(self._wake)

        await self._db.write(body)

    def _check(self, definition: AttemptOrder) -> None:
        limit = self._config.most_attempts
        if not LEAST <= definition.size <= limit:
            raise InvalidRequest(
                f"A task has {LEAST} to {limit} attempts: set the number by `count` or by `models`",
                loc=("body", "count"),
            )
        if len(definition.models) > definition.size:
            raise InvalidRequest("There are more models than attempts", loc=("body", "models"))
        is_fork, place = definition.conversation_id is not None, ("body", "conversation_id")
        if is_fork and (definition.repository or definition.environment_id or definition.branch):
            raise InvalidRequest("A fork uses the files of its conversation", loc=place)
        if definition.up_to_event_id and not is_fork:
            raise InvalidRequest("`up_to_event_id` requires a conversation", loc=place)
        if definition.branch and not definition.repository:
            raise InvalidRequest("A branch requires a repository", loc=("body", "branch"))
        refuse_credentials(definition.repository or "", loc=("body", "repository"))

    async def _check_starts(self, user_id: str, definition: AttemptOrder) -> None:
        """Raise the error of an order that can never start: BadRequest, Conflict, NotFound."""
        if definition.conversation_id is not None:
            view = await self._conversations.get(user_id, definition.conversation_id)
            if view.execution_status is ExecutionStatus.RUNNING:
                raise Conflict("The agent is running: wait for it, so that all forks are the same")
            if (event_id := definition.up_to_event_id) is not None:
                [event] = await self._events.find_many(view.conversation.id, [event_id])
                if event is None:
                    raise NotFound("This conversation has no such event: name one by its `id`")
        settings = await self._settings.get(user_id)
        for model in definition.models or (None,):
            order = order_of(definition, model, settings)
            await self._conversations.starts.check(user_id, order)


def _find_attempt(attempts: Sequence[Attempt], wanted: int | str) -> Attempt:
    for one in attempts:
        if wanted in (one.number, one.conversation_id):
            return one
    raise NotFound("This task has no such attempt")


async def _mark(tx: Transaction, one: Attempt, status: AttemptStatus) -> None:
    ended_at = one.ended_at or (now() if one.started_at else None)
    marked = msgspec.structs.replace(one, status=status, ended_at=ended_at)
    await AttemptTable.change(tx, marked, since=one.status)


async def complete(tx: Transaction, set_id: str) -> None:
    """Mark a task as completed if all of its attempts have ended."""
    task = await SetTable.find(tx, set_id)
    attempts = (await AttemptTable.of_sets(tx, [set_id]))[set_id]
    if task is None or task.completed_at or any(one.status in OPEN for one in attempts):
        return
    await SetTable.update(tx, msgspec.structs.replace(task, completed_at=now()))


async def stop(tx: Transaction, task: AttemptSet) -> None:
    """Store why a task is stopped, and cancel its queued attempts; the runner ends the others."""
    await SetTable.update(tx, task)
    for one in (await AttemptTable.of_sets(tx, [task.id]))[task.id]:
        if one.status is AttemptStatus.QUEUED:
            cancelled = msgspec.structs.replace(
                one, detail=task.stop, status=AttemptStatus.CANCELLED
            )
            await AttemptTable.change(tx, cancelled, since=one.status)
    await complete(tx, task.id)


async def _owned(source: Queryable, user_id: str, set_id: str) -> AttemptSet:
    found = await SetTable.find(source, set_id)
    if found is None or found.user_id != user_id or found.is_deleted:
        raise NotFound("There is no such task with attempts")
    return found


async def _with_attempts(source: Queryable, task: AttemptSet) -> AttemptSetResult:
    found = await AttemptTable.of_sets(source, [task.id])
    return AttemptSetResult(task=task, attempts=found[task.id])


def order_of(
    definition: AttemptOrder, model: str | None, settings: Settings, one: Attempt | None = None
) -> StartOrder:
    """Return the start order of an attempt, or of any attempt with this model.

    It contains no message: the task is sent later, once the tree of the files is stored.
    """
    is_saved = model in settings.llm_profiles
    return StartOrder(
        conversation_id=one.conversation_id if one else None,
        title=title_of(definition, one) if one else None,
        llm_profile=model if is_saved else None,
        llm_model=None if is_saved else model,
        repository=definition.repository or None,
        branch=definition.branch or None,
        provider=definition.provider if definition.repository else None,
        environment_id=definition.environment_id,
        when_full=WhenFull.QUEUE,
        max_budget=definition.budget,
        is_alone=True,
    )


def title_of(definition: AttemptOrder, one: Attempt) -> str:
    """Return the title of an attempt's conversation until it is chosen."""
    return f"{definition.name[:_MAX_TITLE]} ({one.number}/{definition.size})"
