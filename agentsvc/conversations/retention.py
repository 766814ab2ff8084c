"""Retention: deletion of old events and unused sandboxes."""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.base import now, to_stored
from agentsvc.plugin import IdleRules
from agentsvc.sandboxes import Target, UseTable, due, rules_for
from agentsvc.settings import SettingsStore
from agentsvc.storage import Database, Queryable, Transaction, record_of

log = logging.getLogger(__name__)

_BATCH: Final = 5000
_DELETABLE: Final = """
    NOT EXISTS (
        SELECT 1 FROM conversations AS c JOIN sandboxes AS s ON s.id = c.sandbox_id
        WHERE c.id = e.conversation_id
    )
    AND NOT EXISTS (
        SELECT 1 FROM webhook_deliveries AS d
        WHERE d.lane = e.conversation_id AND d.state = 'pending'
    )
"""
_COUNT_OLD: Final = f"""
    SELECT COUNT(*) AS events, COUNT(DISTINCT e.conversation_id) AS conversations
    FROM events AS e
    WHERE e.received_at < :before AND {_DELETABLE}
"""  # noqa: S608  # a constant
_WITH_OLD_EVENTS: Final = """
    SELECT c.id FROM conversations AS c
    WHERE NOT EXISTS (SELECT 1 FROM sandboxes AS s WHERE s.id = c.sandbox_id)
      AND (
          SELECT e.received_at FROM events AS e WHERE e.conversation_id = c.id
          ORDER BY e.seq LIMIT 1
      ) < :before
"""
_DELETE_OLD: Final = f"""
    DELETE FROM events WHERE rowid IN (
        SELECT number
        FROM (
            SELECT number, MAX(received_at) OVER (ORDER BY seq) AS newest_so_far
            FROM (
                SELECT e.rowid AS number, e.seq, e.received_at
                FROM events AS e
                WHERE e.conversation_id = :id AND {_DELETABLE}
                ORDER BY e.seq
                LIMIT {_BATCH}
            )
        )
        WHERE newest_so_far < :before
    )
"""  # noqa: S608  # a constant
_IDLE: Final = """
    SELECT s.id, u.name AS user_name, COALESCE(w.active_at, s.created_at) AS used_at
    FROM sandboxes AS s
    JOIN users AS u ON u.id = s.user_id
    LEFT JOIN sandbox_uses AS w ON w.sandbox_id = s.id
    WHERE COALESCE(w.active_at, s.created_at) < :before
      AND s.target != 'deleted'
      AND NOT EXISTS (
          SELECT 1 FROM conversations AS c
          WHERE c.sandbox_id = s.id AND c.execution_status = 'running'
      )
      AND s.id NOT IN (
          SELECT t.sandbox_id FROM start_tasks AS t
          WHERE t.sandbox_id IS NOT NULL AND t.status NOT IN ('READY', 'ERROR')
      )
      AND s.id NOT IN (SELECT a.sandbox_id FROM archives AS a WHERE a.state = 'saving')
"""
_SET_DELETED: Final = f"""
    UPDATE sandboxes SET target = 'deleted', updated_at = :now
    WHERE id IN (SELECT id FROM ({_IDLE}))
      AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
"""  # noqa: S608  # a constant


class IdleSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that was not used for long, and the time of its last use."""

    id: str
    user_name: str
    used_at: str


async def count_old_events(source: Queryable, before: datetime) -> tuple[int, int]:
    """Return how many events were received before a time, and of how many conversations.

    Conversations that still have a sandbox or pending webhook deliveries are left out.
    """
    row = await source.one(_COUNT_OLD, {"before": to_stored(before)})
    return (row["events"], row["conversations"]) if row else (0, 0)


async def delete_old_events(database: Database, before: datetime) -> int:
    """Delete the events that `count_old_events` counts, in batches; return their number.

    Only the beginning of a log is deleted: events after a younger one, as after a change of the
    clock, stay until that is old.
    """
    moment = to_stored(before)
    rows = await database.all(_WITH_OLD_EVENTS, {"before": moment})
    return sum([await _delete_old_events_of(database, row["id"], moment) for row in rows])


async def _delete_old_events_of(database: Database, conversation_id: str, before: str) -> int:
    async def body(tx: Transaction) -> int:
        return await tx.run(_DELETE_OLD, {"before": before, "id": conversation_id})

    deleted = 0
    while count := await database.write(body):
        deleted += count
    return deleted


async def keep_to_age(database: Database, age: timedelta) -> None:
    """Delete events older than `age`, as `delete_old_events` does; called periodically."""
    if deleted := await delete_old_events(database, now() - age):
        log.info("old events deleted", extra={"events": deleted})


async def find_idle(source: Queryable, before: datetime) -> list[IdleSandbox]:
    """Return the sandboxes last used before a time, without those in use; oldest use first.

    In use are sandboxes with a running agent, an unfinished start, or an archive being saved.
    """
    rows = await source.all(f"{_IDLE} ORDER BY used_at, s.id", {"before": to_stored(before)})
    return [record_of(row, IdleSandbox) for row in rows]


async def find_idle_by_rules(
    database: Database, settings: SettingsStore, defaults: IdleRules
) -> list[IdleSandbox]:
    """Return the sandboxes that the idle rules delete now, according to the stored state.

    The user's own rules override those of the spec, which override `defaults`.
    """
    found: set[str] = set()
    for unused in await database.read(UseTable(database).unused):
        rules = await rules_for(unused, settings, defaults)
        if due(rules, unused, now() - unused.active_at) is Target.DELETED:
            found.add(unused.id)
    return [idle for idle in await find_idle(database, now()) if idle.id in found]


async def delete_idle(
    database: Database, before: datetime, *, only: Collection[str] | None = None
) -> int:
    """Set the target of the sandboxes that `find_idle` returns to deleted; return their number.

    `only` restricts them to these ids. The server deletes them at its next sweep or start.
    """
    ids = None if only is None else msgspec.json.encode(sorted(only)).decode()

    async def body(tx: Transaction) -> int:
        moments = {"before": to_stored(before), "now": to_stored(now())}
        return await tx.run(_SET_DELETED, {**moments, "ids": ids})

    return await database.write(body)
