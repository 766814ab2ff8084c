"""The SQL of the `sandboxes` table: structs to rows and back. No logic."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from agentsvc.base import Secret, now, sha256, to_stored
from agentsvc.plugin import Handle, Phase, Report
from agentsvc.sandboxes.state import Sandbox, SandboxSummary, Target
from agentsvc.storage import (
    Database,
    Queryable,
    Row,
    SqlPage,
    Transaction,
    Vault,
    record_of,
    row_of,
)

_SELECT: Final = """SELECT id, user_id, spec_id, spec, backend, target, phase, reason, exit_code, handle,
    endpoints, working_dir, facts, session_key_sealed, ready_by, created_at, updated_at,
    isolation, paused_as, cause, enforced,
    (SELECT client_id FROM client_sandboxes AS c WHERE c.sandbox_id = sandboxes.id) AS client_id
    FROM sandboxes"""

_OF_USER_BY_IDS: Final = """ WHERE user_id = :user_id AND target <> 'deleted'
    AND id IN (SELECT value FROM json_each(:ids))"""

_OF_USER_BY_CLIENT_IDS: Final = """ WHERE user_id = :user_id AND target <> 'deleted' AND id IN (
      SELECT sandbox_id FROM client_sandboxes
      WHERE user_id = :user_id AND client_id IN (SELECT value FROM json_each(:ids)))"""

_MAX_DECODED: Final = 256

_encode = msgspec.json.encode


class SandboxTable:
    """Inserts, updates and finds sandbox rows; each method is one statement."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault
        # Most rows are read many times before they change.
        self._from_row = lru_cache(maxsize=_MAX_DECODED)(self._decode)

    async def insert(self, tx: Transaction, sandbox: Sandbox) -> None:
        """Insert a new sandbox."""
        await tx.insert("sandboxes", self._to_row(sandbox))

    @staticmethod
    async def cancel_unstarted(tx: Transaction) -> int:
        """Set the target of sandboxes without a handle to DELETED; return how many."""
        return await tx.run("UPDATE sandboxes SET target = 'deleted' WHERE handle IS NULL", {})

    async def set_target(
        self, tx: Transaction, sandbox_id: str, target: Target, ready_by: datetime
    ) -> None:
        """Set the target, and clear the reason unless the sandbox has failed or is gone."""
        what = (
            "target = :target, ready_by = :ready_by,"
            " reason = CASE WHEN phase IN ('failed', 'gone') THEN reason ELSE '' END"
        )
        await self._set(tx, sandbox_id, what, target=target, ready_by=to_stored(ready_by))

    async def set_handle(self, tx: Transaction, handle: Handle) -> None:
        """Set the handle of a sandbox."""
        await self._set(tx, handle.sandbox_id, "handle = :handle", handle=_encode(handle))

    async def add_handle(self, tx: Transaction, handle: Handle) -> None:
        """Set the handle of a sandbox unless it has one."""
        what = "handle = coalesce(handle, :handle)"
        await self._set(tx, handle.sandbox_id, what, handle=_encode(handle))

    async def set_started(self, tx: Transaction, sandbox_id: str, ready_by: datetime) -> None:
        """Set the phase to starting, after the backend has accepted an order to start or restart.

        A paused sandbox gets `ready_by` as its new deadline; others keep theirs.
        """
        what = (
            "phase = 'starting', reason = '', exit_code = NULL, cause = NULL,"
            " target = CASE target WHEN 'restarted' THEN 'running' ELSE target END,"
            " ready_by = CASE phase WHEN 'paused' THEN :ready_by ELSE ready_by END"
        )
        await self._set(tx, sandbox_id, what, ready_by=to_stored(ready_by))

    async def set_failed(self, tx: Transaction, sandbox_id: str, reason: str) -> None:
        """Set the phase to failed, with a reason."""
        what = (
            "phase = 'failed', reason = :reason,"
            " target = CASE target WHEN 'restarted' THEN 'running' ELSE target END"
        )
        await self._set(tx, sandbox_id, what, reason=reason)

    async def set_reason(self, tx: Transaction, sandbox_id: str, reason: str) -> None:
        """Set the reason without changing the phase."""
        await self._set(tx, sandbox_id, "reason = :reason", reason=reason)

    async def set_report(
        self, tx: Transaction, sandbox_id: str, report: Report, ready_by: datetime
    ) -> None:
        """Store a backend's report; empty endpoints and facts of a report overwrite nothing.

        A sandbox that was running or paused and is starting again gets `ready_by` as its deadline.
        """
        await self._set(
            tx,
            sandbox_id,
            "phase = :phase, reason = :reason, exit_code = :exit_code,"
            " endpoints = coalesce(:endpoints, endpoints), facts = coalesce(:facts, facts),"
            " working_dir = coalesce(:working_dir, working_dir),"
            " isolation = coalesce(:isolation, isolation), paused_as = :paused_as,"
            " cause = :cause, enforced = coalesce(:enforced, enforced),"
            " ready_by = CASE WHEN phase IN ('running', 'paused') AND :phase = 'starting' THEN :ready_by"
            " ELSE ready_by END",
            ready_by=to_stored(ready_by),
            phase=report.phase,
            reason=report.reason,
            exit_code=report.exit_code,
            endpoints=_encode(report.endpoints) if report.endpoints else None,
            facts=_encode(report.facts) if report.facts else None,
            working_dir=report.working_dir or None,
            isolation=report.isolation,
            paused_as=report.paused_as,
            cause=report.cause,
            enforced=_encode(report.enforced) if report.enforced is not None else None,
        )

    async def set_session_key(self, tx: Transaction, sandbox_id: str, key: Secret) -> None:
        """Set the session key, sealed and hashed."""
        what = "session_key_sealed = :sealed, session_key_hash = :hash"
        sealed = self._vault.seal(key.reveal().encode(), _context(sandbox_id))
        await self._set(tx, sandbox_id, what, sealed=sealed, hash=sha256(key.reveal()))

    async def set_fetching(
        self, tx: Transaction, sandbox_id: str, reason: str, ready_by: datetime
    ) -> None:
        """Set the progress of a fetch as the reason, and the start deadline."""
        what, until = "reason = :reason, ready_by = :ready_by", to_stored(ready_by)
        await self._set(tx, sandbox_id, what, reason=reason, ready_by=until)

    async def set_unmade(self, tx: Transaction, sandbox_id: str, ready_by: datetime) -> None:
        """Clear phase, handle and endpoints, so that the sandbox is created anew by `ready_by`."""
        what = "phase = NULL, handle = NULL, endpoints = :none, reason = '', ready_by = :ready_by"
        await self._set(tx, sandbox_id, what, none=_encode(()), ready_by=to_stored(ready_by))

    async def set_deadlines(self, tx: Transaction, ready_by: datetime) -> None:
        """Set the deadline of every sandbox that is starting."""
        await tx.run(
            "UPDATE sandboxes SET ready_by = :ready_by"
            " WHERE phase IS NULL OR phase = 'starting' OR target = 'restarted'",
            {"ready_by": to_stored(ready_by)},
        )

    async def delete(self, tx: Transaction, sandbox_id: str) -> None:
        """Delete the row."""
        await tx.run("DELETE FROM sandboxes WHERE id = :id", {"id": sandbox_id})

    async def find(self, sandbox_id: str, reader: Queryable | None = None) -> Sandbox | None:
        """Return the sandbox, regardless of its owner."""
        return await self._find(reader or self._db, " WHERE id = :id", {"id": sandbox_id})

    async def find_owner(self, sandbox_id: str) -> str | None:
        """Return the id of the sandbox's owner."""
        return await self._db.value(
            "SELECT user_id FROM sandboxes WHERE id = :id", {"id": sandbox_id}
        )

    async def find_by_key_hash(
        self, key_hash: str, reader: Queryable | None = None
    ) -> Sandbox | None:
        """Return the sandbox whose session key has this SHA-256.

        Cached without `reader`, because many requests carry the same key.
        """
        where, params = " WHERE session_key_hash = :hash", {"hash": key_hash}
        if reader is not None:
            return await self._find(reader, where, params)
        key = (SandboxTable, key_hash)
        return await self._db.keep(key, lambda: self._find(self._db, where, params))

    async def find_of_user(self, user_id: str, ids: list[str]) -> dict[str, Sandbox]:
        """Return the user's sandboxes with these ids, by id."""
        if not ids:
            return {}
        params = {"user_id": user_id, "ids": _encode(ids).decode()}
        return {one.id: one for one in await self._find_all(_OF_USER_BY_IDS, params)}

    async def find_of_clients(self, user_id: str, client_ids: Sequence[str]) -> list[Sandbox]:
        """Return the user's sandboxes with these client ids."""
        params = {"user_id": user_id, "ids": _encode(client_ids).decode()}
        return await self._find_all(_OF_USER_BY_CLIENT_IDS, params)

    async def bases(self) -> list[str]:
        """Return the images that sandboxes run in instead of the image of their spec."""
        return await self._db.column(
            "SELECT DISTINCT json_extract(spec, '$.base') AS base FROM sandboxes"
            " WHERE json_extract(spec, '$.base') <> ''"
        )

    async def awaited_layers(self) -> frozenset[str]:
        """Return the layers of sandboxes that are not created yet."""
        return frozenset(
            await self._db.column(
                "SELECT json_extract(spec, '$.layer') AS layer FROM sandboxes"
                " WHERE phase IS NULL AND json_extract(spec, '$.layer') <> ''"
            )
        )

    async def search(self, user_id: str, page: SqlPage, limit: int) -> list[Sandbox]:
        """Return at most `limit` of a user's sandboxes, from the start of a page."""
        where, params = ["user_id = :user_id", "target <> 'deleted'"], {"user_id": user_id}
        return await self._find_all(page.sql("", where, params, limit), params)

    async def running_of_user(self, user_id: str) -> list[Sandbox]:
        """Return a user's running sandboxes whose target is RUNNING, oldest first."""
        return await self._find_all(
            " WHERE user_id = :user_id AND target = :target AND phase = :phase"
            " ORDER BY created_at, id",
            {"user_id": user_id, "target": Target.RUNNING, "phase": Phase.RUNNING},
        )

    async def all(self) -> list[Sandbox]:
        """Return every sandbox, including those that are being deleted."""
        return await self._find_all("", {})

    async def summaries(self, backend: str | None = None) -> list[SandboxSummary]:
        """Return summaries of all sandboxes, or of those of one backend."""
        rows = await self._db.all(
            "SELECT id, backend, phase, handle FROM sandboxes"
            " WHERE backend = coalesce(:backend, backend)",
            {"backend": backend},
        )
        return [record_of(row, SandboxSummary) for row in rows]

    async def backends(self) -> list[str]:
        """Return the names of the backends that have sandboxes."""
        return await self._db.column("SELECT DISTINCT backend FROM sandboxes ORDER BY backend")

    async def _find(
        self, reader: Queryable, where: str, params: Mapping[str, Any]
    ) -> Sandbox | None:
        row = await reader.one(_SELECT + where, params)
        return self._from_row(row) if row else None

    async def _find_all(self, where: str, params: Mapping[str, Any]) -> list[Sandbox]:
        return [self._from_row(row) for row in await self._db.all(_SELECT + where, params)]

    async def _set(self, tx: Transaction, sandbox_id: str, what: str, **params: Any) -> None:
        """Update columns of a sandbox, and `updated_at`."""
        sql = " ".join(("UPDATE sandboxes SET", what, ", updated_at = :now WHERE id = :id"))
        await tx.run(sql, {"id": sandbox_id, "now": to_stored(now()), **params})

    def _to_row(self, sandbox: Sandbox) -> Mapping[str, Any]:
        key = sandbox.session_key.reveal()
        row = row_of(
            sandbox,
            spec=_encode(sandbox.spec),
            handle=_encode(sandbox.handle) if sandbox.handle else None,
            endpoints=_encode(sandbox.endpoints),
            facts=_encode(sandbox.facts),
            enforced=_encode(sandbox.enforced),
            session_key_sealed=self._vault.seal(key.encode(), _context(sandbox.id)),
            session_key_hash=sha256(key),
        )
        # The key is sealed; `client_id` is in `client_sandboxes`.
        del row["session_key"], row["client_id"]
        return row

    def _decode(self, row: Row) -> Sandbox:
        key = self._vault.unseal(row["session_key_sealed"], _context(row["id"]))
        return record_of(row, Sandbox, session_key=Secret(key.decode()))


def _context(sandbox_id: str) -> str:
    return f"sandbox-key:{sandbox_id}"
