"""The SQL of archives: rows in, structs out. No logic."""

from datetime import datetime
from typing import Final

from agentsvc.base import to_stored
from agentsvc.conversations.archives.model import Archive, PausedState
from agentsvc.storage import Database, Page, Queryable, Transaction, record_of, row_of

_SELECT: Final = """SELECT id, user_id, conversation_id, title, sandbox_id, working_dir, directory,
    state, reason, releases, size_bytes, unpacked_bytes, files, skipped, created_at, rest
    FROM archives"""

_OVER: Final = """SELECT id FROM (SELECT id, sum(size_bytes) OVER (
      ORDER BY created_at DESC, id DESC) AS total FROM archives WHERE state <> 'saving')
    WHERE total > :most"""


class ArchiveTable:
    """Inserts, updates and finds archives; each method is one statement."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def insert(self, tx: Transaction, archive: Archive) -> None:
        """Insert an archive that is to be saved."""
        await tx.insert("archives", row_of(archive))

    async def update(self, tx: Transaction, archive: Archive) -> None:
        """Store how the saving ended."""
        await tx.run(
            "UPDATE archives SET state = :state, reason = :reason, size_bytes = :size_bytes,"
            " unpacked_bytes = :unpacked_bytes, files = :files, skipped = :skipped WHERE id = :id",
            row_of(archive),
        )

    async def set_rest(self, tx: Transaction, archive_id: str, rest: PausedState) -> None:
        """Store how the sandbox rested."""
        await tx.run(
            "UPDATE archives SET rest = :rest WHERE id = :id", {"id": archive_id, "rest": rest}
        )

    async def delete(self, tx: Transaction, archive_id: str) -> None:
        """Delete the row."""
        await tx.run("DELETE FROM archives WHERE id = :id", {"id": archive_id})

    async def find(self, archive_id: str, reader: Queryable | None = None) -> Archive | None:
        """Return an archive, whoever owns it."""
        row = await (reader or self._db).one(_SELECT + " WHERE id = :id", {"id": archive_id})
        return record_of(row, Archive) if row else None

    async def search(self, user_id: str, page: Page, limit: int) -> list[Archive]:
        """Return so many of a user's archives, from where a page begins."""
        where, params = ["user_id = :user_id"], {"user_id": user_id}
        end = page.sql("", where, params, limit)
        return [record_of(row, Archive) for row in await self._db.all(_SELECT + end, params)]

    async def unfinished(self) -> list[str]:
        """Return the ids of the archives that are still to be saved."""
        return await self._db.column(
            "SELECT id FROM archives WHERE state = 'saving' ORDER BY created_at"
        )

    async def all_ids(self) -> set[str]:
        """Return the ids of all archives."""
        return set(await self._db.column("SELECT id FROM archives"))

    async def older_than(self, moment: datetime) -> list[str]:
        """Return the ids of the archives that were made before a moment."""
        return await self._db.column(
            "SELECT id FROM archives WHERE state <> 'saving' AND created_at < :moment",
            {"moment": to_stored(moment)},
        )

    async def beyond(self, max_bytes: int) -> list[str]:
        """Return the ids of the oldest archives, those without which the others fit."""
        return await self._db.column(_OVER, {"most": max_bytes})
