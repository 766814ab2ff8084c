"""Deletion of users: first what they own, by the usual operations, then the users themselves.

The request is stored, so that the command line can make it, and a restart continues it.
"""

import contextlib
import logging
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.accounts import User, UserPatch, change_user, get_user
from agentsvc.base import Conflict, NotFound, Supervisor, now, to_stored
from agentsvc.conversations.archives import Archives
from agentsvc.conversations.service import Conversations
from agentsvc.sandboxes import Sandbox, Sandboxes
from agentsvc.storage import Database, Queryable, Transaction, record_of

log = logging.getLogger(__name__)

_TASK: Final = "user deletion"
_OWNED_TABLES: Final = ("sandboxes", "conversations", "start_tasks", "archives")
"""The tables whose rows are not deleted with the row of their user."""
_OWNS_NOTHING: Final = "".join(
    f" AND NOT EXISTS (SELECT 1 FROM {table} WHERE user_id = :id)"  # noqa: S608  # constants
    for table in _OWNED_TABLES
)

_LEAVING: Final = "SELECT id FROM users WHERE leaving_at IS NOT NULL"


class RemainingData(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a user's objects that have to be deleted first."""

    conversations: int
    sandboxes: int
    archives: int

    def __str__(self) -> str:
        """Return the counts as text; empty without objects."""
        counts = msgspec.structs.asdict(self).items()
        parts = [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts if count]
        *others, last = parts or [""]
        return f"{', '.join(others)} and {last}" if others else last


class PendingUserDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A user who is being deleted, and the remaining data; `is_over` once the user is deleted."""

    user: User
    owned: RemainingData
    is_over: bool


async def request_user_deletion(
    db: Database, user_id: str, *, with_owned: bool
) -> PendingUserDeletion:
    """Delete a user without data, or block the user until a server has deleted the data.

    Idempotent. Raises NotFound, and Conflict for the only administrator, or if the user has data
    and `with_owned` is False.
    """

    async def body(tx: Transaction) -> PendingUserDeletion:
        user = await get_user(tx, user_id)
        owned = await _count_owned(tx, user_id)
        if user.leaving_at is None:
            if str(owned) and not with_owned:
                raise Conflict(
                    f"`{user.name}` owns {owned}: delete that first, or all with `with_owned`"
                )
            await change_user(tx, user_id, UserPatch(is_blocked=True))
            sql = "UPDATE users SET leaving_at = :now WHERE id = :id"
            await tx.run(sql, {"id": user_id, "now": to_stored(now())})
        is_over = await _delete_user(tx, user_id)
        return PendingUserDeletion(user=user, owned=owned, is_over=is_over)

    return await db.write(body)


class UserDeletions(msgspec.Struct, kw_only=True, eq=False):
    """Deletes users and their data in the background."""

    db: Database
    conversations: Conversations
    sandboxes: Sandboxes
    archives: Archives
    supervisor: Supervisor

    def __post_init__(self) -> None:
        self.sandboxes.on_change(self._sandbox_changed)

    async def request(self, user_id: str, *, with_owned: bool) -> PendingUserDeletion:
        """Call `request_user_deletion`, and start to delete the data; raises the same errors."""
        deletion = await request_user_deletion(self.db, user_id, with_owned=with_owned)
        if not deletion.is_over:
            self._delete_soon()
        return deletion

    async def delete_due(self) -> None:
        """Delete the data of leaving users, and then the users; called periodically."""
        for user_id in await self.db.column(_LEAVING):
            try:
                await self._clear(user_id)
                if await self.db.write(partial(_delete_user, user_id=user_id)):
                    log.info("user deleted", extra={"user_id": user_id})
            except Exception:
                log.exception("user not deleted, trying again later", extra={"user_id": user_id})

    async def _clear(self, user_id: str) -> None:
        await self.db.write(lambda tx: self._release_sandboxes(tx, user_id))
        for conversation_id in await _owned_ids(self.db, "conversations", user_id):
            # A child conversation is deleted with its parent.
            with contextlib.suppress(NotFound):
                await self.conversations.delete(user_id, conversation_id)
        for archive_id in await _owned_ids(self.db, "archives", user_id):
            # An archive that is being saved fails soon, because its sandbox is deleted.
            with contextlib.suppress(NotFound, Conflict):
                await self.archives.delete(user_id, archive_id)

    async def _release_sandboxes(self, tx: Transaction, user_id: str) -> None:
        for sandbox_id in await _owned_ids(tx, "sandboxes", user_id):
            await self.sandboxes.release(tx, sandbox_id)

    def _sandbox_changed(self, _before: Sandbox, after: Sandbox | None) -> None:
        if after is None:
            self._delete_soon()

    def _delete_soon(self) -> None:
        self.supervisor.spawn(_TASK, self.delete_due)


async def _count_owned(reader: Queryable, user_id: str) -> RemainingData:
    """Return the counts of a user's objects that are not deleted with the user's row."""
    sql = """
        SELECT
            (SELECT COUNT(*) FROM conversations WHERE user_id = :id) AS conversations,
            (SELECT COUNT(*) FROM sandboxes WHERE user_id = :id) AS sandboxes,
            (SELECT COUNT(*) FROM archives WHERE user_id = :id) AS archives
    """
    row: Any = await reader.one(sql, {"id": user_id})
    return record_of(row, RemainingData)


async def _owned_ids(reader: Queryable, table: str, user_id: str) -> list[str]:
    """Return the ids of a user's rows in a table."""
    return await reader.column(
        f"SELECT id FROM {table} WHERE user_id = :id ORDER BY created_at",  # noqa: S608  # a name of ours
        {"id": user_id},
    )


async def _delete_user(tx: Transaction, user_id: str) -> bool:
    """Delete the row of a leaving user without data; keys and settings are deleted with it."""
    sql = f"DELETE FROM users WHERE id = :id AND leaving_at IS NOT NULL{_OWNS_NOTHING}"  # noqa: S608  # constants
    return await tx.run(sql, {"id": user_id}) == 1
