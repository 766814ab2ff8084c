"""The SQL of sandbox usage: capacity, the queue, times of last use and failed removals."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from agentsvc.base import moment_or_none, stored_or_none, to_stored
from agentsvc.plugin import PausedAs, Phase, Spec
from agentsvc.sandboxes.admission.capacity import AdmittedSandbox, Load
from agentsvc.sandboxes.state import TAKES_MEMORY, Target
from agentsvc.storage import Database, Queryable, Row, Transaction, record_of

_HELD: Final = """SELECT b.id, b.user_id, b.backend, coalesce(u.active_at, b.created_at) AS since,
    json_extract(b.spec, '$.limits.memory_bytes') AS memory_bytes,
    b.target IN ('paused', 'reclaimed', 'hibernated', 'stopped', 'deleted') AS is_leaving
    FROM sandboxes AS b LEFT JOIN sandbox_uses AS u ON u.sandbox_id = b.id
    WHERE u.queued_at IS NULL AND (b.phase IN ('starting', 'running')
      OR b.target IN ('running', 'restarted') AND coalesce(b.phase, '') NOT IN ('failed', 'gone')
      OR b.target = 'restarted' AND b.phase = 'failed')
    UNION ALL SELECT id, '', backend, created_at, json_extract(spec, '$.limits.memory_bytes'), 0
    FROM spares WHERE state IN ('making', 'ready')"""

_WAITING: Final = """SELECT b.id, b.user_id, b.backend, u.queued_at AS since,
    json_extract(b.spec, '$.limits.memory_bytes') AS memory_bytes, 0 AS is_leaving
    FROM sandbox_uses AS u JOIN sandboxes AS b ON b.id = u.sandbox_id
    WHERE u.queued_at IS NOT NULL AND b.target IN ('running', 'restarted')"""

_IDLE: Final = """SELECT b.id, b.user_id, b.backend, b.spec, b.target, b.phase, b.paused_as,
    coalesce(u.active_at, b.created_at) AS active_at
    FROM sandboxes AS b LEFT JOIN sandbox_uses AS u ON u.sandbox_id = b.id
    WHERE b.target <> 'deleted' AND u.queued_at IS NULL AND NOT EXISTS (
      SELECT 1 FROM conversations AS c WHERE c.sandbox_id = b.id
        AND (c.execution_status = 'running' AND b.phase = 'running'))
    AND NOT EXISTS (
      SELECT 1 FROM start_tasks AS t WHERE t.sandbox_id = b.id
        AND t.status NOT IN ('READY', 'ERROR'))"""

_REMOVALS: Final = """SELECT b.id AS sandbox_id, b.user_id, b.backend, b.spec_id, b.reason,
    u.removal_tries AS tries, u.removal_due_at AS due_at
    FROM sandbox_uses AS u JOIN sandboxes AS b ON b.id = u.sandbox_id
    WHERE b.target = 'deleted' AND u.removal_tries > 0 ORDER BY b.updated_at, b.id LIMIT :limit"""


class UnusedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox without a running agent or a start, according to the database."""

    id: str
    user_id: str
    backend: str
    spec: Spec
    target: Target
    phase: Phase | None
    active_at: datetime
    paused_as: PausedAs | None = None

    @property
    def may_stop(self) -> bool:
        """Whether it runs or is paused with its memory kept, so that stopping frees it."""
        has_memory = self.phase is Phase.PAUSED and self.paused_as is not PausedAs.STOPPED
        is_paused = self.target in (Target.PAUSED, Target.RECLAIMED, Target.HIBERNATED)
        return self.may_pause or (has_memory and is_paused)

    @property
    def may_reclaim(self) -> bool:
        """Whether it is paused with its memory in place, and its target is PAUSED."""
        is_frozen = self.phase is Phase.PAUSED and self.paused_as is PausedAs.FROZEN
        return is_frozen and self.target is Target.PAUSED

    @property
    def may_hibernate(self) -> bool:
        """Whether it is paused in RAM or swap, and its target is no deeper rest."""
        has_memory = self.phase is Phase.PAUSED and self.paused_as in TAKES_MEMORY
        return has_memory and self.target in (Target.PAUSED, Target.RECLAIMED)

    @property
    def may_pause(self) -> bool:
        """Whether it runs and its target is RUNNING."""
        return self.target is Target.RUNNING and self.phase is Phase.RUNNING


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox whose removal has failed so far, with the last reason."""

    sandbox_id: str
    user_id: str | None
    backend: str
    spec_id: str | None
    reason: str
    tries: int
    due_at: datetime | None


class UseTable:
    """Reads and writes sandbox usage; each method is one statement."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def held(self, reader: Queryable) -> list[AdmittedSandbox]:
        """Return running and starting sandboxes and spares, including those that are leaving."""
        return [_to_admitted(row) for row in await reader.all(_HELD)]

    async def waiting(self, reader: Queryable) -> list[AdmittedSandbox]:
        """Return the sandboxes in the queue."""
        return [_to_admitted(row) for row in await reader.all(_WAITING)]

    async def unused(self, reader: Queryable) -> list[UnusedSandbox]:
        """Return the sandboxes without a running agent or a start."""
        return [record_of(row, UnusedSandbox) for row in await reader.all(_IDLE)]

    async def failed_removals(self, limit: int) -> list[Removal]:
        """Return the sandboxes whose removal has failed so far, oldest first."""
        rows = await self._db.all(_REMOVALS, {"limit": limit})
        return [record_of(row, Removal) for row in rows]

    async def is_waiting(self, sandbox_id: str) -> bool:
        """Return whether a sandbox is in the queue."""
        return await self._value(self._db, "queued_at", sandbox_id) is not None

    async def is_culled(self, sandbox_id: str, reader: Queryable) -> bool:
        """Return whether a sandbox was paused by an idle rule or to make room."""
        return await self._value(reader, "culled_at", sandbox_id) is not None

    async def find_removal_due(self, sandbox_id: str) -> datetime | None:
        """Return when the removal of a sandbox may be retried, or None for at once."""
        return moment_or_none(await self._value(self._db, "removal_due_at", sandbox_id))

    async def set_queued(
        self, tx: Transaction, sandbox_id: str, queued_at: datetime, *, may_pause_idle: bool
    ) -> None:
        """Add a sandbox to the queue; one that is queued keeps its place."""
        await tx.run(
            "INSERT INTO sandbox_uses (sandbox_id, queued_at, may_pause_idle)"
            " VALUES (:id, :at, :may) ON CONFLICT (sandbox_id) DO UPDATE"
            " SET queued_at = coalesce(queued_at, :at), may_pause_idle = :may",
            {"id": sandbox_id, "at": to_stored(queued_at), "may": may_pause_idle},
        )

    async def ids_wanting(self, reader: Queryable) -> set[str]:
        """Return the ids of queued sandboxes for which an idle one may be paused."""
        return set(
            await reader.column(
                "SELECT sandbox_id FROM sandbox_uses WHERE queued_at IS NOT NULL AND may_pause_idle"
            )
        )

    async def clear_queued(self, tx: Transaction, sandbox_id: str) -> None:
        """Remove a sandbox from the queue."""
        await tx.run(
            "UPDATE sandbox_uses SET queued_at = NULL WHERE sandbox_id = :id", {"id": sandbox_id}
        )

    async def set_culled(
        self, tx: Transaction, sandbox_id: str, culled_at: datetime | None
    ) -> None:
        """Set when a sandbox was culled; None if its user's request or use ended that."""
        await tx.run(
            "INSERT INTO sandbox_uses (sandbox_id, culled_at) VALUES (:id, :at)"
            " ON CONFLICT (sandbox_id) DO UPDATE SET culled_at = :at",
            {"id": sandbox_id, "at": stored_or_none(culled_at)},
        )

    async def set_active(self, tx: Transaction, moments: Mapping[str, datetime]) -> None:
        """Store when sandboxes were last used; ignore deleted ones."""
        given = {sandbox_id: to_stored(at) for sandbox_id, at in moments.items()}
        await tx.run(
            "INSERT INTO sandbox_uses (sandbox_id, active_at)"
            " SELECT j.key, j.value FROM json_each(:given) AS j"
            " WHERE EXISTS (SELECT 1 FROM sandboxes AS b WHERE b.id = j.key)"
            " ON CONFLICT (sandbox_id) DO UPDATE"
            " SET active_at = max(coalesce(active_at, ''), excluded.active_at)",
            {"given": msgspec.json.encode(given).decode()},
        )

    async def count_failed_removal(
        self, tx: Transaction, sandbox_id: str, due_at: datetime
    ) -> None:
        """Increment the failed tries of a removal, and set the time of the next."""
        await tx.run(
            "INSERT INTO sandbox_uses (sandbox_id, removal_tries, removal_due_at)"
            " VALUES (:id, 1, :at) ON CONFLICT (sandbox_id) DO UPDATE"
            " SET removal_tries = removal_tries + 1, removal_due_at = :at",
            {"id": sandbox_id, "at": to_stored(due_at)},
        )

    async def count_tries(self, reader: Queryable, sandbox_id: str) -> int:
        """Return how often the removal of a sandbox has failed."""
        return await self._value(reader, "removal_tries", sandbox_id) or 0

    async def _value(self, reader: Queryable, column: str, sandbox_id: str) -> Any | None:
        sql = " ".join(("SELECT", column, "FROM sandbox_uses WHERE sandbox_id = :id"))
        return await reader.value(sql, {"id": sandbox_id})


def _to_admitted(row: Row) -> AdmittedSandbox:
    load = Load(sandboxes=1, memory_bytes=row["memory_bytes"] or 0)
    return record_of(row, AdmittedSandbox, load=load)
