"""The SQL of work items, and of the positions up to which hosts were polled."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from agentsvc.base import stored_or_none, to_stored
from agentsvc.extension.storage import Queryable, Records, Transaction, record_of, row_of

from .host_events import HostEvent
from .hosts import Kind
from .model import WorkItem


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a host was polled for an automation."""

    automation_id: str
    user_id: str
    since: str
    etag: str
    trouble: str = ""
    """Why polling fails, as reported to the user; empty if it works."""


class WorkTable(Records[WorkItem], table="plugin_automations_works"):
    """The SQL of work items."""

    @classmethod
    async def change(cls, tx: Transaction, work_id: str, **changes: Any) -> None:
        """Update some fields of a work item."""
        found = await cls.find(tx, work_id)
        if found is not None:
            await cls.update(tx, msgspec.structs.replace(found, **changes))

    @staticmethod
    async def schedule_check(
        tx: Transaction, automation_id: str, due_at: datetime | None, *, work_id: str | None = None
    ) -> None:
        """Schedule the check of a work item's pull request, or of all open ones of an automation."""
        sql = """
            UPDATE plugin_automations_works
            SET due_at = :due_at
            WHERE is_open AND automation_id = :automation_id AND (:id IS NULL OR id = :id)
              AND pull IS NOT NULL
        """
        row = {"automation_id": automation_id, "id": work_id, "due_at": stored_or_none(due_at)}
        await tx.run(sql, row)

    @staticmethod
    async def close(tx: Transaction, conversation_id: str) -> None:
        """Close the work item of a conversation."""
        sql = "UPDATE plugin_automations_works SET is_open = 0 WHERE conversation_id = :id"
        await tx.run(sql, {"id": conversation_id})

    @classmethod
    async def of_conversation(cls, source: Queryable, conversation_id: str) -> WorkItem | None:
        """Return the work item of a conversation, or None."""
        return await cls.first(source, "WHERE t.conversation_id = :id", id=conversation_id)

    @classmethod
    async def all_open(cls, source: Queryable, automation_id: str) -> list[WorkItem]:
        """Return the open work items of an automation."""
        return await cls.select(
            source, "WHERE t.is_open AND t.automation_id = :id", id=automation_id
        )

    @classmethod
    async def last_pull(cls, source: Queryable, automation_id: str) -> WorkItem | None:
        """Return the work item of an automation's last pull request without an issue, or None."""
        tail = "WHERE t.automation_id = :id AND t.pull IS NOT NULL AND t.issue = ''"
        return await cls.first(source, f"{tail} ORDER BY t.rowid DESC", id=automation_id)

    @classmethod
    async def due(cls, source: Queryable, now: datetime) -> list[WorkItem]:
        """Return the work items whose pull requests are due for a check."""
        tail = "WHERE t.due_at IS NOT NULL AND t.due_at <= :now"
        return await cls.select(source, tail, now=to_stored(now))


def find_meant(works: Iterable[WorkItem], event: HostEvent) -> WorkItem | None:
    """Return the work item that an event is about, or None."""
    for work in works:
        if event.kind is Kind.CHECK:
            matches = bool(work.head) and work.head == event.id
        else:
            number = work.issue if not work.is_pull else None
            matches = event.number == (work.pull if event.is_pull else number)
        if matches:
            return work
    return None


class PollTable:
    """The SQL of polling positions."""

    @staticmethod
    async def due(source: Queryable, now: datetime) -> list[Poll]:
        """Return the positions of the automations that are due for a poll."""
        sql = """
            SELECT a.id AS automation_id, a.user_id, COALESCE(p.trouble, '') AS trouble,
                   COALESCE(p.since, substr(a.created_at, 1, 19) || 'Z') AS since,
                   COALESCE(p.etag, '') AS etag
            FROM plugin_automations_automations AS a
            LEFT JOIN plugin_automations_polls AS p ON p.automation_id = a.id
            WHERE a.is_enabled
              AND json_extract(a.definition, '$.trigger.poll_seconds') IS NOT NULL
              AND COALESCE(p.due_at, '') <= :now
        """
        return [record_of(row, Poll) for row in await source.all(sql, {"now": to_stored(now)})]

    @staticmethod
    async def store(tx: Transaction, poll: Poll, due_at: datetime) -> None:
        """Store a position and the time of the next poll."""
        sql = """
            INSERT INTO plugin_automations_polls (automation_id, since, etag, due_at, trouble)
            SELECT id, :since, :etag, :due_at, :trouble
            FROM plugin_automations_automations WHERE id = :automation_id
            ON CONFLICT (automation_id) DO UPDATE
            SET since = excluded.since, etag = excluded.etag, due_at = excluded.due_at,
                trouble = excluded.trouble
        """
        await tx.run(sql, row_of(poll, due_at=due_at))
