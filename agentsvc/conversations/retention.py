"""What has been kept for longer than anybody needs it: old events, and sandboxes nobody uses."""

from datetime import datetime
from typing import Final

import msgspec

from agentsvc.db import Database, Queryable, Transaction
from agentsvc.values import now, to_stored

_BATCH: Final = 5000
_OLD_EVENTS: Final = """
    FROM events AS e
    WHERE e.received_at < :before
      AND NOT EXISTS (
          SELECT 1 FROM conversations AS c JOIN sandboxes AS s ON s.id = c.sandbox_id
          WHERE c.id = e.conversation_id
      )
      AND NOT EXISTS (
          SELECT 1 FROM webhook_deliveries AS d
          WHERE d.lane = e.conversation_id AND d.seq = e.seq AND d.state = 'pending'
      )
"""
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
"""
_GIVE_UP: Final = f"""
    UPDATE sandboxes SET target = 'deleted', updated_at = :now
    WHERE id IN (SELECT id FROM ({_IDLE}))
"""  # noqa: S608  # a constant


class IdleSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that nobody has used for long, and when it was used last."""

    id: str
    user_name: str
    used_at: str


async def count_old_events(source: Queryable, before: datetime) -> tuple[int, int]:
    """Return how many events are older, and of how many conversations.

    Those of a conversation that still has a sandbox, or of which a webhook is to tell, do not count.
    """
    row = await source.one(
        f"SELECT COUNT(*) AS events, COUNT(DISTINCT e.conversation_id) AS conversations {_OLD_EVENTS}",  # a constant
        {"before": to_stored(before)},
    )
    return (row["events"], row["conversations"]) if row else (0, 0)


async def delete_old_events(database: Database, before: datetime) -> int:
    """Delete the events that `count_old_events` counts, in pieces between which others write."""
    deleted = 0
    sql = f"DELETE FROM events WHERE rowid IN (SELECT e.rowid {_OLD_EVENTS} LIMIT {_BATCH})"  # noqa: S608  # a constant

    async def body(tx: Transaction) -> int:
        return await tx.run(sql, {"before": to_stored(before)})

    while count := await database.write(body):
        deleted += count
    return deleted


async def find_idle(source: Queryable, before: datetime) -> list[IdleSandbox]:
    """Return the sandboxes last used before a moment whose agents do not run, oldest use first."""
    rows = await source.all(f"{_IDLE} ORDER BY used_at, s.id", {"before": to_stored(before)})
    return [
        IdleSandbox(id=row["id"], user_name=row["user_name"], used_at=row["used_at"])
        for row in rows
    ]


async def give_up_idle(database: Database, before: datetime) -> int:
    """Want the sandboxes that `find_idle` finds removed, and return how many those are.

    A server removes them, within the time of a sweep or when it starts.
    """

    async def body(tx: Transaction) -> int:
        moments = {"before": to_stored(before), "now": to_stored(now())}
        return await tx.run(_GIVE_UP, moments)

    return await database.write(body)
