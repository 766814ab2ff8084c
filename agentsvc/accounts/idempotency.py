"""Idempotency keys: stores the response to a request and replays it when the request is repeated.

A request that is repeated is not done again. What it did and what was answered to it are stored in
one transaction, so that a crash leaves both or neither.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.base import Conflict, IdempotencyKeyReused, RequestInProgress, TooManyRequests, values
from agentsvc.config import IdempotencyConfig
from agentsvc.storage import Database, Queryable, Row, Transaction, Vault, row_of

LARGEST_ANSWER_BYTES: Final = 1024 * 1024
"""What is larger is not kept; then a repeat is told no more than that it was done."""

_BATCH: Final = 1000


class IdempotencySlot(msgspec.Struct, frozen=True, kw_only=True):
    """What a key of a request stands for: one request of one user on one operation."""

    user_id: str
    operation: str
    key_hash: bytes
    fingerprint: bytes


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; one that is not final is that of a stream that has only begun."""

    status: int
    media: str
    body: bytes
    is_final: bool = True


class IdempotencyStore:
    """Every answer that is kept, and the requests with a key that are being done now."""

    def __init__(self, db: Database, vault: Vault, config: IdempotencyConfig) -> None:
        self._db = db
        self._vault = vault
        self._config = config
        self._running: set[tuple[str, str, bytes]] = set()

    @contextlib.contextmanager
    def claim(self, slot: IdempotencySlot) -> Iterator[None]:
        """Keep repeats of a request off while it is being done; raises RequestInProgress."""
        name = (slot.user_id, slot.operation, slot.key_hash)
        if name in self._running:
            raise RequestInProgress("A request with this Idempotency-Key is being done")
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)

    async def find(self, slot: IdempotencySlot) -> StoredAnswer | None:
        """Return what was answered; raises IdempotencyKeyReused for another request.

        Raises Conflict if the answer was too large to be kept.
        """
        row = await IdempotencyTable.find(self._db, slot, self._oldest())
        if row is None:
            return None
        if row["fingerprint"] != slot.fingerprint:
            raise IdempotencyKeyReused("This Idempotency-Key was used for another request")
        if row["size_bytes"] > LARGEST_ANSWER_BYTES:
            raise Conflict("The request was done, and its answer was too large to be kept")
        return StoredAnswer(
            status=row["status"],
            media=row["media"],
            body=self._vault.unseal(row["sealed"], _context(row["id"])),
            is_final=bool(row["is_final"]),
        )

    async def check_room(self, user_id: str) -> None:
        """Raise TooManyRequests if no further answer is kept for a user."""
        await self._require_room(self._db, user_id, 0)

    async def keep(self, slot: IdempotencySlot, kept: StoredAnswer) -> None:
        """Store an answer; raises TooManyRequests, and CapacityExceeded for a full disk."""
        await self._db.write(lambda tx: self.keep_in(tx, slot, kept))

    async def keep_in(self, tx: Transaction, slot: IdempotencySlot, kept: StoredAnswer) -> None:
        """Store an answer in the transaction of what it tells of; raises TooManyRequests."""
        await IdempotencyTable.delete(tx, slot)
        size_bytes = len(kept.body)
        await self._require_room(tx, slot.user_id, size_bytes)
        body = kept.body if size_bytes <= LARGEST_ANSWER_BYTES else b""
        record_id = values.new_id()
        await IdempotencyTable.insert(
            tx,
            slot,
            kept,
            record_id=record_id,
            sealed=self._vault.seal(body, _context(record_id)),
        )

    async def forget_old(self) -> None:
        """Delete the answers that are kept for long enough."""
        while await self._db.write(lambda tx: IdempotencyTable.delete_old(tx, self._oldest())):
            pass

    async def _require_room(self, reader: Queryable, user_id: str, size_bytes: int) -> None:
        number, total_bytes = await IdempotencyTable.usage(reader, user_id)
        is_full = number >= self._config.max_keys_per_user
        if is_full or total_bytes + size_bytes > self._config.max_bytes_per_user:
            raise TooManyRequests(
                "Too many requests with an Idempotency-Key; send it without one, or wait"
            )

    def _oldest(self) -> datetime:
        return values.now() - timedelta(seconds=self._config.keep_seconds)


def _context(record_id: str) -> str:
    return f"kept answer {record_id}"


class IdempotencyTable:
    """The SQL of kept answers."""

    @staticmethod
    async def find(reader: Queryable, slot: IdempotencySlot, since: datetime) -> Row | None:
        """Return what is kept of a request since then."""
        sql = """
            SELECT id, fingerprint, status, media, sealed, size_bytes, is_final
            FROM kept_answers
            WHERE user_id = :user_id AND operation = :operation AND key_hash = :key_hash
                AND created_at >= :since
        """
        return await reader.one(sql, {**_of(slot), "since": values.to_stored(since)})

    @staticmethod
    async def usage(reader: Queryable, user_id: str) -> tuple[int, int]:
        """Return how many answers of a user are kept, and how many bytes they have."""
        sql = """
            SELECT count(*) AS number, coalesce(sum(size_bytes), 0) AS total_bytes
            FROM kept_answers
            WHERE user_id = :user_id
        """
        [row] = await reader.all(sql, {"user_id": user_id})
        return row["number"], row["total_bytes"]

    @staticmethod
    async def insert(
        tx: Transaction, slot: IdempotencySlot, kept: StoredAnswer, *, record_id: str, sealed: bytes
    ) -> int:
        """Add an answer."""
        row = row_of(kept, **_of(slot), id=record_id, fingerprint=slot.fingerprint, sealed=sealed)
        row |= {"size_bytes": len(row.pop("body")), "created_at": values.to_stored(values.now())}
        return await tx.insert("kept_answers", row)

    @staticmethod
    async def delete(tx: Transaction, slot: IdempotencySlot) -> int:
        """Delete what is kept of a request: a former use of its key, or the beginning."""
        sql = """
            DELETE FROM kept_answers
            WHERE user_id = :user_id AND operation = :operation AND key_hash = :key_hash
        """
        return await tx.run(sql, _of(slot))

    @staticmethod
    async def delete_old(tx: Transaction, before: datetime) -> int:
        """Delete some of the answers from before; return how many."""
        sql = """
            DELETE FROM kept_answers
            WHERE id IN (SELECT id FROM kept_answers WHERE created_at < :before LIMIT :most)
        """
        return await tx.run(sql, {"before": values.to_stored(before), "most": _BATCH})


def _of(slot: IdempotencySlot) -> dict[str, str | bytes]:
    return {"user_id": slot.user_id, "operation": slot.operation, "key_hash": slot.key_hash}
