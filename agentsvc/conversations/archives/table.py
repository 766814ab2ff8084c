"""Archives as they are stored."""

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
    """Return an archive, whoever owns it."""
    row = await reader.one(_SELECT + " WHERE id = :id", {"id": archive_id})
    return record_of(row, Archive) if row else None


async def search_archives(
    reader: Queryable, user_id: str, page: SqlPage, limit: int
) -> list[Archive]:
    """Return so many of a user's archives, from where a page begins."""
    where, params = ["user_id = :user_id"], {"user_id": user_id}
    end = page.sql("", where, params, limit)
    return [record_of(row, Archive) for row in await reader.all(_SELECT + end, params)]
