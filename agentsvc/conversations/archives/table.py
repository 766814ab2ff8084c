"""The SQL of archives."""

from typing import Final

from agentsvc.conversations.archives.model import Archive
from agentsvc.storage import Queryable, SqlPage, Transaction, record_of, row_of

_SELECT: Final = """SELECT id, user_id, conversation_id, title, sandbox_id, working_dir, directory,
    state, reason, releases, size_bytes, unpacked_bytes, files, skipped, created_at, rest
    FROM archives"""


async def insert_archive(tx: Transaction, archive: Archive) -> None:
    """Insert an archive that is to be saved."""
    await tx.insert("archives", row_of(archive))


async def find_archive(reader: Queryable, archive_id: str) -> Archive | None:
    """Return an archive of any user, or None."""
    row = await reader.one(_SELECT + " WHERE id = :id", {"id": archive_id})
    return record_of(row, Archive) if row else None


async def search_archives(
    reader: Queryable, user_id: str, page: SqlPage, limit: int
) -> list[Archive]:
    """Return at most `limit` of a user's archives, from the start of a page on."""
    where, params = ["user_id = :user_id"], {"user_id": user_id}
    end = page.sql("", where, params, limit)
    return [record_of(row, Archive) for row in await reader.all(_SELECT + end, params)]
