"""The SQL of the warm pool, in the table `spares`."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from agentsvc.base import Secret
from agentsvc.plugin import Endpoint, Handle, Spec
from agentsvc.storage import Database, Queryable, Row, Transaction, Vault, record_of, row_of

_encode = msgspec.json.encode

_SELECT: Final = """SELECT id, state, spec, backend, made_of, key_sealed, handle, endpoints, created_at
    FROM spares"""


class WarmSandboxState(StrEnum):
    """State of a sandbox of the warm pool."""

    MAKING = "making"
    READY = "ready"
    LEAVING = "leaving"
    """It is being removed and cannot be claimed."""
    CLAIMED = "claimed"
    """It has a row in `sandboxes`, but its agent server is not initialized yet."""
    ASSIGNED = "told"


class WarmSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox whose agent server waits to be initialized for a user."""

    id: str
    state: WarmSandboxState
    spec: Spec
    backend: str
    made_of: str
    """Hash of spec, server URL and versions; a spare with another hash is stale."""
    key: Secret
    """The key that initializes its agent server."""
    handle: Handle | None = None
    endpoints: tuple[Endpoint, ...] = ()
    created_at: datetime


class WarmPoolTable:
    """Inserts, updates and finds rows; each method is one statement."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def insert(self, tx: Transaction, spare: WarmSandbox) -> None:
        """Insert a new spare, before its backend creates it."""
        await tx.insert("spares", self._to_row(spare))

    async def set_handle(self, tx: Transaction, handle: Handle) -> None:
        """Set the handle of a spare."""
        await tx.run(
            "UPDATE spares SET handle = :handle WHERE id = :id",
            {"id": handle.sandbox_id, "handle": _encode(handle)},
        )

    async def set_ready(
        self, tx: Transaction, spare_id: str, endpoints: tuple[Endpoint, ...]
    ) -> None:
        """Mark a spare that was being created as ready, with its endpoints."""
        await tx.run(
            "UPDATE spares SET state = 'ready', endpoints = :endpoints"
            " WHERE id = :id AND state = 'making'",
            {"id": spare_id, "endpoints": _encode(endpoints)},
        )

    async def set_state(self, tx: Transaction, spare_id: str, state: WarmSandboxState) -> None:
        """Set the state of a spare."""
        await tx.run(
            "UPDATE spares SET state = :state WHERE id = :id", {"id": spare_id, "state": state}
        )

    async def forget(self, tx: Transaction, spare_id: str) -> None:
        """Delete the row of a claimed spare, whose sandbox continues without it."""
        await tx.run("DELETE FROM spares WHERE id = :id", {"id": spare_id})

    async def retire(self, tx: Transaction, spare_id: str) -> bool:
        """Mark a spare for removal; return False if it was claimed meanwhile."""
        changed = await tx.run(
            "UPDATE spares SET state = 'leaving' WHERE id = :id AND state IN ('making', 'ready', 'leaving')",
            {"id": spare_id},
        )
        return changed > 0

    @staticmethod
    async def retire_all(tx: Transaction) -> int:
        """Mark all unclaimed spares for removal; return how many."""
        return await tx.run(
            "UPDATE spares SET state = 'leaving' WHERE state IN ('making', 'ready')", {}
        )

    async def delete(self, tx: Transaction, spare_id: str) -> None:
        """Delete the row of an unclaimed spare."""
        await tx.run(
            "DELETE FROM spares WHERE id = :id AND state IN ('making', 'ready', 'leaving')",
            {"id": spare_id},
        )

    async def unclaimed(self, reader: Queryable | None = None) -> list[WarmSandbox]:
        """Return the unclaimed spares, oldest first."""
        rows = await (reader or self._db).all(
            _SELECT + " WHERE state IN ('making', 'ready', 'leaving') ORDER BY created_at, id"
        )
        return [self._from_row(row) for row in rows]

    async def ids_of_backend(self, backend: str) -> set[str]:
        """Return the ids of a backend's unclaimed spares."""
        return set(
            await self._db.column(
                "SELECT id FROM spares WHERE backend = :backend AND state IN ('making', 'ready', 'leaving')",
                {"backend": backend},
            )
        )

    async def find(self, spare_id: str) -> WarmSandbox | None:
        """Return a spare in any state, or None."""
        row = await self._db.one(_SELECT + " WHERE id = :id", {"id": spare_id})
        return self._from_row(row) if row else None

    def _to_row(self, spare: WarmSandbox) -> Mapping[str, Any]:
        row = row_of(
            spare,
            spec=_encode(spare.spec),
            key_sealed=self._vault.seal(spare.key.reveal().encode(), _context(spare.id)),
            endpoints=_encode(spare.endpoints),
        )
        del row["key"]
        return row

    def _from_row(self, row: Row) -> WarmSandbox:
        key = self._vault.unseal(row["key_sealed"], _context(row["id"]))
        return record_of(row, WarmSandbox, key=Secret(key.decode()))


def _context(spare_id: str) -> str:
    return f"spare-key:{spare_id}"
