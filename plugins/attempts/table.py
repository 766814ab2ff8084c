"""The SQL of attempts: columns for queried fields, JSON for the whole record."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from agentsvc.base import stored_or_none, to_stored
from agentsvc.extension.storage import Queryable, Records, Row, Transaction

from .model import OPEN, Attempt, AttemptSet, AttemptStatus

MIGRATIONS: Final = (
    """
    CREATE TABLE plugin_attempts_sets (
        id TEXT PRIMARY KEY,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        body TEXT NOT NULL,
        is_deleted INTEGER NOT NULL,
        created_at TEXT NOT NULL,
        completed_at TEXT
    ) STRICT;
    CREATE INDEX plugin_attempts_of_user ON plugin_attempts_sets (user_id, created_at);
    CREATE INDEX plugin_attempts_deleted ON plugin_attempts_sets (id) WHERE is_deleted;
    CREATE INDEX plugin_attempts_completed
        ON plugin_attempts_sets (completed_at) WHERE completed_at IS NOT NULL;
    CREATE TABLE plugin_attempts_attempts (
        set_id TEXT NOT NULL REFERENCES plugin_attempts_sets (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        conversation_id TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL,
        is_open INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (set_id, number)
    ) STRICT;
    CREATE INDEX plugin_attempts_open
        ON plugin_attempts_attempts (conversation_id) WHERE is_open;
    """,
)


class _JsonRecords[T: msgspec.Struct](Records[T]):
    """Records stored as JSON in one column, in addition to columns for queries."""

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the column with the JSON."""
        return ("body",)

    @classmethod
    def to_record(cls, row: Row) -> T:
        """Decode a row as a record."""
        record: T = msgspec.json.decode(row["body"], type=cls._kind)
        return record


class SetTable(_JsonRecords[AttemptSet], table="plugin_attempts_sets"):
    """The SQL of tasks."""

    @classmethod
    def to_row(cls, record: AttemptSet) -> dict[str, Any]:
        """Convert a task to a row."""
        return {
            "id": record.id,
            "user_id": record.user_id,
            "body": _text(record),
            "is_deleted": record.is_deleted,
            "created_at": to_stored(record.created_at),
            "completed_at": stored_or_none(record.completed_at),
        }

    @staticmethod
    async def delete_old(tx: Transaction, before: datetime, limit: int) -> int:
        """Delete a batch of tasks completed before a moment, and return their number."""
        sql = """
            DELETE FROM plugin_attempts_sets
            WHERE id IN (
                SELECT s.id FROM plugin_attempts_sets AS s
                WHERE s.completed_at < :before AND NOT s.is_deleted
                  AND NOT EXISTS (
                    SELECT 1 FROM plugin_attempts_attempts AS a WHERE a.set_id = s.id AND a.is_open
                  )
                LIMIT :limit
            )
        """
        return await tx.run(sql, {"before": to_stored(before), "limit": limit})

    @classmethod
    async def of_user(cls, source: Queryable, user_id: str) -> list[AttemptSet]:
        """Return a user's tasks, the newest first."""
        tail = "WHERE t.user_id = :id AND NOT t.is_deleted ORDER BY t.created_at DESC, t.id DESC"
        return await cls.select(source, tail, id=user_id)

    @classmethod
    async def deleted(cls, source: Queryable) -> list[AttemptSet]:
        """Return the deleted tasks, whose conversations remain to be deleted."""
        return await cls.select(source, "WHERE t.is_deleted")


class AttemptTable(_JsonRecords[Attempt], table="plugin_attempts_attempts", key="conversation_id"):
    """The SQL of attempts."""

    @classmethod
    def to_row(cls, record: Attempt) -> dict[str, Any]:
        """Convert an attempt to a row."""
        is_over = record.status in (AttemptStatus.CHOSEN, AttemptStatus.DISCARDED)
        return {
            "set_id": record.set_id,
            "number": record.number,
            "conversation_id": record.conversation_id,
            "status": record.status,
            "is_open": record.status in OPEN or (is_over and not record.is_settled),
            "body": _text(record),
        }

    @classmethod
    async def change(cls, tx: Transaction, one: Attempt, *, since: AttemptStatus) -> bool:
        """Update an attempt if it still has the status `since`; return whether it had."""
        return await cls.update(tx, one, "AND status = :since", since=since)

    @classmethod
    async def of_sets(cls, source: Queryable, set_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """Return the attempts of some tasks, ordered by number."""
        tail = """
            WHERE t.set_id IN (SELECT value FROM json_each(:ids))
            ORDER BY t.set_id, t.number
        """
        found: dict[str, list[Attempt]] = {set_id: [] for set_id in set_ids}
        for one in await cls.select(source, tail, ids=_text(set_ids)):
            found[one.set_id].append(one)
        return found

    @classmethod
    async def open(cls, source: Queryable, ids: Collection[str] | None = None) -> list[Attempt]:
        """Return the open attempts: all, or those of some conversations."""
        tail = """
            WHERE t.is_open
              AND (:ids IS NULL OR t.conversation_id IN (SELECT value FROM json_each(:ids)))
        """
        return await cls.select(source, tail, ids=None if ids is None else _text(list(ids)))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
