"""User accounts: create, rename, change role, block and unblock.

How they are read, and their keys, is in `keys`; how they are deleted in `conversations.user_deletion`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.accounts.keys import (
    USERS,
    Role,
    User,
    add_user,
    check_name,
    find_named,
    get_user,
    name_taken,
)
from agentsvc.base import Conflict, NotFound, values
from agentsvc.storage import Database, Transaction, note_effect, record_of, row_of


class UserPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed of a user."""

    name: str | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    is_blocked: bool | UnsetType = UNSET


class Users:
    """Every user."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list_all(self) -> list[User]:
        """Return all users by their names."""
        return [record_of(row, User) for row in await self._db.all(USERS + " ORDER BY name")]

    async def get(self, user_id: str) -> User:
        """Return a user; raises NotFound."""
        return await get_user(self._db, user_id)

    async def get_named(self, name: str) -> User:
        """Return the user of a name; raises NotFound."""
        user = await find_named(self._db, name)
        if user is None:
            raise NotFound(f"there is no user `{name}`")
        return user

    async def create(self, name: str, role: Role) -> User:
        """Add a user; raises BadRequest for what is no name, Conflict for one that is taken."""

        async def body(tx: Transaction) -> User:
            user = await add_user(tx, name, role)
            await note_effect(tx, user)
            return user

        return await self._db.write(body)

    async def change(self, user_id: str, patch: UserPatch) -> User:
        """Change a user and return what it is now.

        Raises as `change_user`.
        """
        return await self._db.write(lambda tx: change_user(tx, user_id, patch))


async def change_user(tx: Transaction, user_id: str, patch: UserPatch) -> User:
    """Change a user inside the caller's transaction and return what it is now.

    Raises NotFound, BadRequest for what is no name, and Conflict for a name that is taken, a user who is
    being deleted, or where no administrator would be left to let anybody in again. Keys that services
    of an administrator have made end where the user is none any more, or blocked.
    """
    if patch.name is not UNSET:
        check_name(patch.name)
    before = await get_user(tx, user_id)
    if before.leaving_at is not None:
        raise Conflict(f"`{before.name}` is being deleted")
    after = _patched(before, patch)
    await _check_free(tx, after)
    sql = "UPDATE users SET name = :name, role = :role, blocked_at = :blocked_at WHERE id = :id"
    await tx.run(sql, row_of(after))
    sql = "SELECT 1 FROM users WHERE role = 'admin' AND blocked_at IS NULL LIMIT 1"
    if before.is_active_admin and await tx.one(sql) is None:
        raise Conflict(f"`{before.name}` is the only administrator, and has to stay one")
    if not after.is_active_admin:
        await tx.run(_END_MADE, {"id": user_id, "now": values.to_stored(values.now())})
    return after


_END_MADE: Final = """
    UPDATE api_keys
    SET revoked_at = :now
    WHERE made_with IN (SELECT id FROM api_keys WHERE user_id = :id)
      AND revoked_at IS NULL
"""
"""Revokes what services of a user have made."""


def _patched(user: User, patch: UserPatch) -> User:
    blocked_at = user.blocked_at
    if patch.is_blocked is not UNSET:
        blocked_at = (blocked_at or values.now()) if patch.is_blocked else None
    return msgspec.structs.replace(
        user,
        name=user.name if patch.name is UNSET else patch.name,
        role=user.role if patch.role is UNSET else patch.role,
        blocked_at=blocked_at,
    )


async def _check_free(tx: Transaction, user: User) -> None:
    named = await find_named(tx, user.name)
    if named is not None and named.id != user.id:
        raise name_taken(user)
