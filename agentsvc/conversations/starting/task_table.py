"""The SQL of start tasks. No logic; each write is announced on the bus after the commit.

Orders are stored encrypted, because they contain secrets.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import EventBus, Notice, Subject, to_stored
from agentsvc.conversations.model import StartTask
from agentsvc.conversations.sorting import cut_sorted, page_of
from agentsvc.domain import StartOrder, StartSort, encode_revealed, revealed_decoder
from agentsvc.storage import Database, Queryable, Row, Transaction, Vault, record_of, row_of

_SELECT_TASK: Final = """SELECT id, user_id, conversation_id, status, detail, sandbox_id, agent_server_url,
    sealed, generation, stages, created_at, updated_at, queue_position,
    (SELECT count(*) FROM pending_messages AS m
      WHERE m.conversation_id = start_tasks.conversation_id AND m.kind = 'message')
      AS queued_messages
    FROM start_tasks"""

_COUNT_TASKS: Final = "SELECT count(*) AS n FROM start_tasks WHERE "

_TASKS_BY_IDS: Final = """ WHERE user_id = :user_id
    AND id IN (SELECT value FROM json_each(:ids))"""

_encode = msgspec.json.encode


_order_decoder = revealed_decoder(StartOrder)


class StartTaskTable:
    """Inserts, updates and finds start tasks; each method is one statement."""

    def __init__(self, db: Database, vault: Vault, event_bus: EventBus) -> None:
        self._db = db
        self._event_bus = event_bus
        self._vault = vault

    async def insert(self, tx: Transaction, task: StartTask) -> None:
        """Insert a new start task; its order is encrypted."""
        sealed = self._vault.seal(encode_revealed(task.request), _context(task.id))
        row = {**_task_row(task), "sealed": sealed}
        del row["request"], row["queued_messages"]
        await tx.insert("start_tasks", row)
        self._announce(tx, task)

    async def update(self, tx: Transaction, task: StartTask) -> None:
        """Update the progress of a start task; its order is not changed."""
        await tx.run(
            "UPDATE start_tasks SET status = :status, detail = :detail,"
            " sandbox_id = :sandbox_id, agent_server_url = :agent_server_url, stages = :stages,"
            " queue_position = :queue_position, updated_at = :updated_at WHERE id = :id",
            _task_row(task),
        )
        self._announce(tx, task)

    async def find(self, task_id: str, reader: Queryable | None = None) -> StartTask | None:
        """Return a start task of any user, or None."""
        row = await (reader or self._db).one(_SELECT_TASK + " WHERE id = :id", {"id": task_id})
        return self._from_row(row) if row else None

    async def find_of_conversation(
        self, conversation_id: str, reader: Queryable | None = None
    ) -> StartTask | None:
        """Return the latest start task of a conversation, or None."""
        row = await (reader or self._db).one(
            _SELECT_TASK + " WHERE conversation_id = :id ORDER BY created_at DESC LIMIT 1",
            {"id": conversation_id},
        )
        return self._from_row(row) if row else None

    async def ids_of_conversations(self, reader: Queryable, ids: Sequence[str]) -> list[str]:
        """Return the ids of the tasks that start these conversations."""
        return await reader.column(
            "SELECT id FROM start_tasks"
            " WHERE conversation_id IN (SELECT value FROM json_each(:ids))",
            {"ids": _encode(list(ids)).decode()},
        )

    async def find_of_user(self, user_id: str, ids: Sequence[str]) -> dict[str, StartTask]:
        """Return the tasks with these ids that belong to a user, by id."""
        rows = await self._db.all(
            _SELECT_TASK + _TASKS_BY_IDS,
            {"user_id": user_id, "ids": _encode(list(ids)).decode()},
        )
        return {row["id"]: self._from_row(row) for row in rows}

    async def waiting(self) -> dict[str, str]:
        """Return the ids of the sandboxes that start tasks wait for, by task id."""
        rows = await self._db.all(
            "SELECT id, sandbox_id FROM start_tasks WHERE sandbox_id IS NOT NULL"
            " AND status IN ('WORKING', 'WAITING_FOR_SANDBOX')"
        )
        return {row["id"]: row["sandbox_id"] for row in rows}

    async def unfinished(self) -> list[str]:
        """Return the ids of the tasks that are neither READY nor ERROR, oldest first."""
        return await self._db.column(
            "SELECT id FROM start_tasks WHERE status NOT IN ('READY', 'ERROR') ORDER BY created_at"
        )

    async def search(
        self,
        user_id: str,
        *,
        conversation_id: str | None = None,
        created_at_gte: datetime | None = None,
        sort: StartSort = StartSort.CREATED_AT_DESC,
        page_id: str | None = None,
        limit: int = 100,
    ) -> tuple[list[StartTask], str | None]:
        """Return a page of a user's start tasks and the id of the next page."""
        page = page_of(sort, page_id)
        where, params = _task_conditions(user_id, conversation_id, created_at_gte)
        end = page.sql("", where, params, limit + 1)
        rows = await self._db.all(_SELECT_TASK + end, params)
        found, next_page_id = cut_sorted(rows, sort, limit)
        return [self._from_row(row) for row in found], next_page_id

    async def count(
        self,
        user_id: str,
        *,
        conversation_id: str | None = None,
        created_at_gte: datetime | None = None,
    ) -> int:
        """Return how many start tasks of a user match the filters."""
        where, params = _task_conditions(user_id, conversation_id, created_at_gte)
        return int(await self._db.value(_COUNT_TASKS + " AND ".join(where), params) or 0)

    def _announce(self, tx: Transaction, task: StartTask) -> None:
        notice = Notice(
            subject=Subject.START_TASK,
            user_id=task.user_id,
            id=task.id,
            conversation_id=task.conversation_id,
        )
        tx.after_commit(partial(self._event_bus.announce, notice))

    def _from_row(self, row: Row) -> StartTask:
        plain = self._vault.unseal(row["sealed"], _context(row["id"]))
        return record_of(row, StartTask, request=_order_decoder.decode(plain))


def _context(task_id: str) -> str:
    return f"start-task:{task_id}"


def _task_conditions(
    user_id: str, conversation_id: str | None, created_at_gte: datetime | None
) -> tuple[list[str], dict[str, Any]]:
    where, params = ["user_id = :user_id"], {"user_id": user_id}
    if conversation_id is not None:
        where.append("conversation_id = :conversation_id")
        params["conversation_id"] = conversation_id
    if created_at_gte is not None:
        where.append("created_at >= :created_gte")
        params["created_gte"] = to_stored(created_at_gte)
    return where, params


def _task_row(task: StartTask) -> dict[str, Any]:
    # The order is in the encrypted column only.
    return row_of(task, request=None, stages=_encode(task.stages))
