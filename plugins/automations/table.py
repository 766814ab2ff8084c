"""The SQL of automations and their runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from agentsvc.base import moment_or_none, to_stored
from agentsvc.extension.storage import Queryable, Records, Transaction, row_of

from .model import Automation, Run, RunStatus

MIGRATIONS: Final = (
    """
    CREATE TABLE plugin_automations_automations (
        id TEXT PRIMARY KEY,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        definition TEXT NOT NULL,
        sealed BLOB,
        sealed_as TEXT NOT NULL,
        is_enabled INTEGER NOT NULL,
        disabled_reason TEXT NOT NULL,
        failures INTEGER NOT NULL,
        next_at TEXT,
        last_triggered_at TEXT,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX plugin_automations_of_user
        ON plugin_automations_automations (user_id, created_at);
    CREATE INDEX plugin_automations_due
        ON plugin_automations_automations (next_at) WHERE is_enabled AND next_at IS NOT NULL;
    CREATE TABLE plugin_automations_runs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        automation_id TEXT NOT NULL
            REFERENCES plugin_automations_automations (id) ON DELETE CASCADE,
        user_id TEXT NOT NULL,
        key TEXT NOT NULL,
        source TEXT NOT NULL,
        status TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        sealed BLOB,
        sealed_as TEXT NOT NULL,
        conversation_id TEXT,
        error_detail TEXT NOT NULL,
        result TEXT NOT NULL,
        cost REAL,
        due_at TEXT NOT NULL,
        created_at TEXT NOT NULL,
        started_at TEXT,
        timeout_at TEXT,
        completed_at TEXT,
        UNIQUE (automation_id, key)
    ) STRICT;
    CREATE INDEX plugin_automations_runs_listed
        ON plugin_automations_runs (automation_id, number);
    CREATE INDEX plugin_automations_runs_due
        ON plugin_automations_runs (due_at) WHERE status = 'PENDING';
    CREATE INDEX plugin_automations_runs_waiting
        ON plugin_automations_runs (automation_id, number) WHERE status = 'PENDING';
    CREATE INDEX plugin_automations_runs_running
        ON plugin_automations_runs (automation_id, number) WHERE status = 'RUNNING';
    """,
    """
    CREATE TABLE plugin_automations_works (
        id TEXT PRIMARY KEY,
        automation_id TEXT NOT NULL
            REFERENCES plugin_automations_automations (id) ON DELETE CASCADE,
        user_id TEXT NOT NULL,
        conversation_id TEXT NOT NULL,
        issue TEXT NOT NULL,
        title TEXT NOT NULL,
        base TEXT NOT NULL,
        "commit" TEXT NOT NULL,
        comment_id TEXT,
        shown TEXT NOT NULL,
        pull TEXT,
        pull_url TEXT NOT NULL,
        head TEXT NOT NULL,
        published TEXT NOT NULL,
        told TEXT NOT NULL,
        repairs INTEGER NOT NULL,
        is_open INTEGER NOT NULL,
        due_at TEXT
    ) STRICT;
    CREATE INDEX plugin_automations_works_open
        ON plugin_automations_works (automation_id) WHERE is_open;
    CREATE INDEX plugin_automations_works_conversation
        ON plugin_automations_works (conversation_id);
    CREATE INDEX plugin_automations_works_due
        ON plugin_automations_works (due_at) WHERE due_at IS NOT NULL;
    CREATE INDEX plugin_automations_polled
        ON plugin_automations_automations (id)
        WHERE is_enabled AND json_extract(definition, '$.trigger.poll_seconds') IS NOT NULL;
    CREATE TABLE plugin_automations_polls (
        automation_id TEXT PRIMARY KEY
            REFERENCES plugin_automations_automations (id) ON DELETE CASCADE,
        since TEXT NOT NULL,
        etag TEXT NOT NULL,
        due_at TEXT NOT NULL
    ) STRICT;
    """,
    """
    CREATE INDEX plugin_automations_runs_over
        ON plugin_automations_runs (completed_at) WHERE completed_at IS NOT NULL;
    """,
    """
    CREATE TABLE plugin_automations_apps (
        id TEXT PRIMARY KEY,
        user_id TEXT NOT NULL UNIQUE REFERENCES users (id) ON DELETE CASCADE,
        app_id TEXT NOT NULL,
        slug TEXT NOT NULL,
        host TEXT,
        sealed BLOB NOT NULL,
        sealed_as TEXT NOT NULL
    ) STRICT;
    ALTER TABLE plugin_automations_polls ADD COLUMN trouble TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE plugin_automations_works ADD COLUMN is_pull INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE plugin_automations_works ADD COLUMN is_answer INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX plugin_automations_works_of_runs
        ON plugin_automations_works (automation_id) WHERE pull IS NOT NULL AND issue = '';
    """,
    """
    ALTER TABLE plugin_automations_runs ADD COLUMN is_settled INTEGER NOT NULL DEFAULT 1;
    CREATE INDEX plugin_automations_runs_unsettled
        ON plugin_automations_runs (id) WHERE NOT is_settled;
    """,
)

_OF_REPOSITORY: Final = """
    WHERE t.user_id = :user_id AND t.is_enabled
      AND json_extract(t.definition, '$.trigger.type') = 'git'
      AND json_extract(t.definition, '$.repos[0].provider') = 'github'
      AND json_extract(t.definition, '$.repos[0].url') = :name COLLATE NOCASE
"""
_DUE: Final = """
    WHERE t.is_enabled AND t.next_at IS NOT NULL AND t.next_at <= :now
    ORDER BY t.next_at
    LIMIT :limit
"""
_WAITING: Final = """
    WHERE t.is_enabled AND t.next_at IS NOT NULL AND t.next_at > :now
      AND json_extract(t.definition, '$.trigger.type') = 'cron'
"""
_STARTABLE: Final = """
    WHERE t.status = 'PENDING'
      AND t.due_at <= :now
      AND t.user_id NOT IN (SELECT value FROM json_each(:but_of))
      AND NOT EXISTS (
        SELECT 1
        FROM plugin_automations_runs AS f
        WHERE f.status = 'PENDING'
          AND f.automation_id = t.automation_id
          AND f.number < t.number
          AND f.due_at <= :now
      )
      AND NOT EXISTS (
        SELECT 1
        FROM plugin_automations_runs AS x
        JOIN plugin_automations_automations AS a ON a.id = x.automation_id
        WHERE x.status = 'RUNNING'
          AND x.automation_id = t.automation_id
          AND json_extract(a.definition, '$.concurrency') = 'queue'
      )
    ORDER BY t.due_at, t.number
    LIMIT :limit
"""
_OLD: Final = """
    WHERE t.completed_at < :before
      AND NOT EXISTS (
        SELECT 1
        FROM plugin_automations_works AS w
        WHERE w.conversation_id = t.conversation_id
          AND w.is_open
      )
    ORDER BY t.completed_at
    LIMIT :limit
"""
_OF_CONVERSATIONS: Final = """
    WHERE t.status = 'RUNNING'
      AND t.conversation_id IN (SELECT value FROM json_each(:ids))
"""


class _SealedRecords[T: msgspec.Struct](Records[T]):
    """Rows with an optional sealed value."""

    @classmethod
    async def find_sealed(cls, source: Queryable, record_id: str) -> bytes | None:
        """Return the sealed value: the secret of an automation, or the payload of a run."""
        sql = ("SELECT sealed FROM", cls.table, "WHERE id = :id")
        return await source.value(" ".join(sql), {"id": record_id})

    @classmethod
    async def set_sealed(cls, tx: Transaction, record_id: str, sealed: bytes | None) -> None:
        """Replace or delete the sealed value."""
        sql = ("UPDATE", cls.table, "SET sealed = :sealed WHERE id = :id")
        await tx.run(" ".join(sql), {"id": record_id, "sealed": sealed})


class AutomationTable(_SealedRecords[Automation], table="plugin_automations_automations"):
    """The SQL of automations."""

    @classmethod
    async def of_user(
        cls, source: Queryable, user_id: str, *, limit: int, offset: int
    ) -> list[Automation]:
        """Return a user's automations, the newest first."""
        tail = "WHERE t.user_id = :id ORDER BY t.created_at DESC, t.id LIMIT :limit OFFSET :offset"
        return await cls.select(source, tail, id=user_id, limit=limit, offset=offset)

    @classmethod
    async def of_repository(cls, source: Queryable, user_id: str, name: str) -> list[Automation]:
        """Return a user's enabled automations with a trigger `git` for a repository at GitHub."""
        return await cls.select(source, _OF_REPOSITORY, user_id=user_id, name=name)

    @staticmethod
    async def count(source: Queryable, user_id: str) -> int:
        """Return how many automations a user has."""
        sql = "SELECT COUNT(*) AS n FROM plugin_automations_automations WHERE user_id = :user_id"
        return int(await source.value(sql, {"user_id": user_id}) or 0)

    @classmethod
    async def due(cls, source: Queryable, now: datetime, limit: int) -> list[Automation]:
        """Return the due automations, the most overdue first."""
        return await cls.select(source, _DUE, now=to_stored(now), limit=limit)

    @classmethod
    async def waiting(cls, source: Queryable, now: datetime) -> list[Automation]:
        """Return the automations with a schedule that are not due yet."""
        return await cls.select(source, _WAITING, now=to_stored(now))

    @staticmethod
    async def next_at(source: Queryable) -> datetime | None:
        """Return the earliest due time of all automations, or None."""
        sql = """
            SELECT MIN(next_at) AS moment
            FROM plugin_automations_automations
            WHERE is_enabled AND next_at IS NOT NULL
        """
        return moment_or_none(await source.value(sql))


class RunTable(_SealedRecords[Run], table="plugin_automations_runs"):
    """The SQL of runs."""

    @staticmethod
    async def add(tx: Transaction, run: Run, payload: bytes | None = None) -> bool:
        """Add a run with its sealed payload; return False if its key exists."""
        row = row_of(run, sealed=payload, sealed_as=payload_context(run.automation_id))
        del row["number"]
        otherwise = "ON CONFLICT (automation_id, key) DO NOTHING"
        return await tx.insert("plugin_automations_runs", row, otherwise) == 1

    @staticmethod
    async def known(source: Queryable, automation_id: str, keys: Sequence[str]) -> set[str]:
        """Return those of some keys that an automation has runs of."""
        sql = """
            SELECT key FROM plugin_automations_runs
            WHERE automation_id = :id AND key IN (SELECT value FROM json_each(:keys))
        """
        return set(await source.column(sql, {"id": automation_id, "keys": _json(keys)}))

    @classmethod
    async def change(cls, tx: Transaction, run: Run, *, since: RunStatus) -> bool:
        """Update a run if it still has the status `since`; return whether it had.

        The payload of a run that has ended is deleted.
        """
        is_changed = await cls.update(tx, run, "AND status = :since", but="number", since=since)
        if is_changed and run.completed_at is not None:
            await cls.set_sealed(tx, run.id, None)
        return is_changed

    @staticmethod
    async def cancel_waiting(
        tx: Transaction, automation_id: str, detail: str, now: datetime
    ) -> None:
        """Cancel the pending runs of an automation."""
        sql = """
            UPDATE plugin_automations_runs
            SET status = 'CANCELLED', error_detail = :detail, completed_at = :now, sealed = NULL
            WHERE status = 'PENDING'
              AND automation_id = :automation_id
        """
        params = {"automation_id": automation_id, "detail": detail, "now": to_stored(now)}
        await tx.run(sql, params)

    @staticmethod
    async def count_waiting(source: Queryable, automation_id: str) -> int:
        """Return the number of pending runs of an automation."""
        sql = """
            SELECT COUNT(*) AS n
            FROM plugin_automations_runs
            WHERE status = 'PENDING'
              AND automation_id = :automation_id
        """
        return int(await source.value(sql, {"automation_id": automation_id}) or 0)

    @classmethod
    async def search(
        cls, source: Queryable, automation_id: str, *, limit: int, offset: int
    ) -> list[Run]:
        """Return a page of an automation's runs, the newest first."""
        tail = "WHERE t.automation_id = :id ORDER BY t.number DESC LIMIT :limit OFFSET :offset"
        return await cls.select(source, tail, id=automation_id, limit=limit, offset=offset)

    @staticmethod
    async def counts(source: Queryable, automation_id: str) -> dict[RunStatus, int]:
        """Return the number of an automation's runs by status."""
        sql = """
            SELECT status, COUNT(*) AS n
            FROM plugin_automations_runs
            WHERE automation_id = :automation_id
            GROUP BY status
        """
        rows = await source.all(sql, {"automation_id": automation_id})
        return {RunStatus(row["status"]): row["n"] for row in rows}

    @classmethod
    async def startable(
        cls, source: Queryable, now: datetime, limit: int, *, but_of: Sequence[str] = ()
    ) -> list[Run]:
        """Return the first due run of each automation.

        Runs queued behind a running one, and those of the users `but_of`, are omitted.
        """
        params = {"now": to_stored(now), "limit": limit, "but_of": _json(but_of)}
        return await cls.select(source, _STARTABLE, **params)

    @staticmethod
    async def next_at(source: Queryable, now: datetime) -> datetime | None:
        """Return the earliest later due time of a pending run, or None."""
        sql = """
            SELECT MIN(due_at) AS moment
            FROM plugin_automations_runs
            WHERE status = 'PENDING'
              AND due_at > :now
        """
        return moment_or_none(await source.value(sql, {"now": to_stored(now)}))

    @classmethod
    async def running(cls, source: Queryable, automation_id: str | None = None) -> list[Run]:
        """Return the running runs, of one automation or all."""
        condition = "" if automation_id is None else "AND t.automation_id = :id"
        return await cls.select(source, f"WHERE t.status = 'RUNNING' {condition}", id=automation_id)

    @classmethod
    async def unsettled(cls, source: Queryable) -> list[Run]:
        """Return the runs that have ended but whose sandboxes are not released yet."""
        return await cls.select(source, "WHERE NOT t.is_settled")

    @staticmethod
    async def settle(tx: Transaction, run_id: str) -> None:
        """Mark the sandbox of a run as released."""
        sql = "UPDATE plugin_automations_runs SET is_settled = 1 WHERE id = :id"
        await tx.run(sql, {"id": run_id})

    @classmethod
    async def delete_old(cls, tx: Transaction, before: datetime, limit: int) -> int:
        """Delete a batch of runs that ended before a moment, with their work items; return how many.

        Runs with open work items are kept. Work items of pull requests without an issue are kept for ever,
        since their pull requests may still be open.
        """
        runs = await cls.select(tx, _OLD, before=to_stored(before), limit=limit)
        sql = """
            DELETE FROM plugin_automations_works
            WHERE NOT is_open
              AND (pull IS NULL OR issue != '')
              AND conversation_id IN (SELECT value FROM json_each(:ids))
        """
        await tx.run(sql, {"ids": _json([run.conversation_id for run in runs])})
        sql = """
            DELETE FROM plugin_automations_runs
            WHERE id IN (SELECT value FROM json_each(:ids))
        """
        return await tx.run(sql, {"ids": _json([run.id for run in runs])})

    @classmethod
    async def of_conversations(cls, source: Queryable, ids: Sequence[str]) -> list[Run]:
        """Return the running runs among those of some conversations."""
        return await cls.select(source, _OF_CONVERSATIONS, ids=_json(ids))


def _json(ids: Sequence[str | None]) -> str:
    return msgspec.json.encode(ids).decode()


def secret_context(automation_id: str) -> str:
    """Return the sealing context of an automation's secret."""
    return f"secret of automation {automation_id}"


def payload_context(automation_id: str) -> str:
    """Return the sealing context of the payloads of an automation's runs."""
    return f"payload of automation {automation_id}"
