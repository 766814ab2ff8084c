"""Idempotency keys: stores the response to a request and replays it when the request is repeated.

A repeated request is not executed again. The effect of a request and its response are stored in one
transaction, so that a crash leaves both or neither.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import msgspec

from agentsvc.base import Conflict, IdempotencyKeyReused, RequestInProgress, TooManyRequests, values
from agentsvc.config import IdempotencyConfig
from agentsvc.storage import Database, Queryable, Transaction, Vault

LARGEST_ANSWER_BYTES: Final = 1024 * 1024
"""A larger response is not stored; a repeated request then gets Conflict."""

_BATCH: Final = 1000


class IdempotencySlot(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an idempotent request: user, operation, hash of the key, and fingerprint."""

    user_id: str
    operation: str
    key_hash: bytes
    fingerprint: bytes


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A stored response; not final if it is that of a stream that has only begun."""

    status: int
    media: str
    body: bytes
    is_final: bool = True


class IdempotencyStore:
    """The stored responses, and the requests with a key that are in progress."""

    def __init__(self, db: Database, vault: Vault, config: IdempotencyConfig) -> None:
        self._db = db
        self._vault = vault
        self._config = config
        self._running: set[tuple[str, str, bytes]] = set()

    @contextlib.contextmanager
    def claim(self, slot: IdempotencySlot) -> Iterator[None]:
        """Mark a request as in progress inside the context; raises RequestInProgress if it is."""
        name = (slot.user_id, slot.operation, slot.key_hash)
        if name in self._running:
            raise RequestInProgress("A request with this Idempotency-Key is in progress")
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)

    async def find(self, slot: IdempotencySlot) -> StoredAnswer | None:
        """Return the stored response, or None; raises IdempotencyKeyReused for another request.

        Raises Conflict if the response was too large to store.
        """
        sql = """
            SELECT id, fingerprint, status, media, sealed, size_bytes, is_final
            FROM kept_answers
            WHERE user_id = :user_id AND operation = :operation AND key_hash = :key_hash
                AND created_at >= :since
        """
        row = await self._db.one(sql, {**_of(slot), "since": self._oldest()})
        if row is None:
            return None
        if row["fingerprint"] != slot.fingerprint:
            raise IdempotencyKeyReused("This Idempotency-Key was used for another request")
        if row["size_bytes"] > LARGEST_ANSWER_BYTES:
            raise Conflict("The request was executed, but its response was too large to be stored")
        return StoredAnswer(
            status=row["status"],
            media=row["media"],
            body=self._vault.unseal(row["sealed"], _context(row["id"])),
            is_final=bool(row["is_final"]),
        )

    async def check_room(self, user_id: str) -> None:
        """Raise TooManyRequests if a user has reached the limit of stored responses."""
        await self._require_room(self._db, user_id, 0)

    async def keep(self, slot: IdempotencySlot, kept: StoredAnswer) -> None:
        """Store a response; raises TooManyRequests, or DiskFull if the disk is full."""
        await self._db.write(lambda tx: self.keep_in(tx, slot, kept))

    async def keep_in(self, tx: Transaction, slot: IdempotencySlot, kept: StoredAnswer) -> None:
        """Store a response in the transaction of its request; raises TooManyRequests."""
        # An expired use of the key, or the first response of this stream.
        sql = """
            DELETE FROM kept_answers
            WHERE user_id = :user_id AND operation = :operation AND key_hash = :key_hash
        """
        await tx.run(sql, _of(slot))
        size_bytes = len(kept.body)
        await self._require_room(tx, slot.user_id, size_bytes)
        body = kept.body if size_bytes <= LARGEST_ANSWER_BYTES else b""
        record_id = values.new_id()
        row = {
            **_of(slot),
            "id": record_id,
            "fingerprint": slot.fingerprint,
            "status": kept.status,
            "media": kept.media,
            "sealed": self._vault.seal(body, _context(record_id)),
            "size_bytes": size_bytes,
            "is_final": kept.is_final,
            "created_at": values.to_stored(values.now()),
        }
        await tx.insert("kept_answers", row)

    async def forget_old(self) -> None:
        """Delete expired responses, in batches."""
        sql = """
            DELETE FROM kept_answers
            WHERE id IN (SELECT id FROM kept_answers WHERE created_at < :before LIMIT :most)
        """
        params = {"before": self._oldest(), "most": _BATCH}
        while await self._db.write(lambda tx: tx.run(sql, params)):
            pass

    async def _require_room(self, reader: Queryable, user_id: str, size_bytes: int) -> None:
        sql = """
            SELECT count(*) AS number, coalesce(sum(size_bytes), 0) AS total_bytes
            FROM kept_answers
            WHERE user_id = :user_id
        """
        [used] = await reader.all(sql, {"user_id": user_id})
        is_full = used["number"] >= self._config.max_keys_per_user
        if is_full or used["total_bytes"] + size_bytes > self._config.max_bytes_per_user:
            raise TooManyRequests(
                "Too many requests with an Idempotency-Key; send it without one, or wait"
            )

    def _oldest(self) -> str:
        return values.to_stored(values.now() - timedelta(seconds=self._config.keep_seconds))


def _context(record_id: str) -> str:
    return f"kept answer {record_id}"


def _of(slot: IdempotencySlot) -> dict[str, str | bytes]:
    return {"user_id": slot.user_id, "operation": slot.operation, "key_hash": slot.key_hash}
