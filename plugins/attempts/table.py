"""The SQL of attempts: what is looked for has columns, the rest is JSON."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from agentsvc.base import stored_or_none, to_stored
from agentsvc.extension.storage import Queryable, Transaction

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

_set = msgspec.json.Decoder(AttemptSet)
_attempt = msgspec.json.Decoder(Attempt)


class SetTable:
    """The SQL of tasks."""

    @staticmethod
    async def insert(tx: Transaction, one: AttemptSet) -> None:
        """Add a task."""
        await tx.insert("plugin_attempts_sets", _set_row(one))

    @staticmethod
    async def change(tx: Transaction, one: AttemptSet) -> None:
        """Store what a task is now."""
        sql = """
            UPDATE plugin_attempts_sets
            SET body = :body, is_deleted = :is_deleted, completed_at = :completed_at
            WHERE id = :id
        """
        await tx.run(sql, _set_row(one))

    @staticmethod
    async def delete(tx: Transaction, set_id: str) -> None:
        """Delete a task and what is known of its attempts."""
        await tx.run("DELETE FROM plugin_attempts_sets WHERE id = :id", {"id": set_id})

    @staticmethod
    async def delete_old(tx: Transaction, before: datetime, limit: int) -> int:
        """Delete some tasks that were over before, and return how many."""
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

    @staticmethod
    async def find(source: Queryable, set_id: str) -> AttemptSet | None:
        """Return a task, whoever owns it."""
        sql = "SELECT body FROM plugin_attempts_sets WHERE id = :id"
        row = await source.one(sql, {"id": set_id})
        return _set.decode(row["body"]) if row else None

    @staticmethod
    async def of_user(source: Queryable, user_id: str) -> list[AttemptSet]:
        """Return a user's tasks, the newest first."""
        sql = """
            SELECT body FROM plugin_attempts_sets
            WHERE user_id = :user_id AND NOT is_deleted
            ORDER BY created_at DESC, id DESC
        """
        return [_set.decode(row["body"]) for row in await source.all(sql, {"user_id": user_id})]

    @staticmethod
    async def deleted(source: Queryable) -> list[AttemptSet]:
        """Return the tasks whose conversations are to be deleted."""
        sql = "SELECT body FROM plugin_attempts_sets WHERE is_deleted"
        return [_set.decode(row["body"]) for row in await source.all(sql)]


class AttemptTable:
    """The SQL of attempts of tasks."""

    @staticmethod
    async def insert(tx: Transaction, one: Attempt) -> None:
        """Add an attempt."""
        await tx.insert("plugin_attempts_attempts", _row(one))

    @staticmethod
    async def change(tx: Transaction, one: Attempt, *, since: AttemptStatus) -> bool:
        """Store what an attempt is now, unless it has not the status any more that it had."""
        sql = """
            UPDATE plugin_attempts_attempts
            SET status = :status, is_open = :is_open, body = :body
            WHERE conversation_id = :conversation_id AND status = :since
        """
        return await tx.run(sql, {**_row(one), "since": since}) == 1

    @staticmethod
    async def of_sets(source: Queryable, set_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """Return the attempts of some tasks, in their order."""
        sql = """
            SELECT body FROM plugin_attempts_attempts
            WHERE set_id IN (SELECT value FROM json_each(:ids))
            ORDER BY set_id, number
        """
        found: dict[str, list[Attempt]] = {set_id: [] for set_id in set_ids}
        for row in await source.all(sql, {"ids": _text(set_ids)}):
            one = _attempt.decode(row["body"])
            found[one.set_id].append(one)
        return found

    @staticmethod
    async def find(source: Queryable, conversation_id: str) -> Attempt | None:
        """Return the attempt that has this conversation."""
        sql = "SELECT body FROM plugin_attempts_attempts WHERE conversation_id = :id"
        row = await source.one(sql, {"id": conversation_id})
        return _attempt.decode(row["body"]) if row else None

    @staticmethod
    async def open(source: Queryable, ids: Collection[str] | None = None) -> list[Attempt]:
        """Return the attempts with which something is to be done: all, or those of conversations."""
        sql = """
            SELECT body FROM plugin_attempts_attempts
            WHERE is_open
              AND (:ids IS NULL OR conversation_id IN (SELECT value FROM json_each(:ids)))
        """
        given = None if ids is None else _text(list(ids))
        return [_attempt.decode(row["body"]) for row in await source.all(sql, {"ids": given})]


def _set_row(one: AttemptSet) -> dict[str, Any]:
    return {
        "id": one.id,
        "user_id": one.user_id,
        "body": _text(one),
        "is_deleted": one.is_deleted,
        "created_at": to_stored(one.created_at),
        "completed_at": stored_or_none(one.completed_at),
    }


def _row(one: Attempt) -> dict[str, Any]:
    is_due = one.status in (AttemptStatus.CHOSEN, AttemptStatus.DISCARDED) and not one.is_settled
    return {
        "set_id": one.set_id,
        "number": one.number,
        "conversation_id": one.conversation_id,
        "status": one.status,
        "is_open": one.status in OPEN or is_due,
        "body": _text(one),
    }


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
