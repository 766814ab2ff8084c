"""User accounts: create, rename, change role, block and unblock.

`keys` reads users and manages their keys; `conversations.user_deletion` deletes them.
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
    """Changes to a user; unset fields stay as they are."""

    name: str | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    is_blocked: bool | UnsetType = UNSET


class Users:
    """Reads, creates and changes users."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list_all(self) -> list[User]:
        """Return all users, sorted by name."""
        return [record_of(row, User) for row in await self._db.all(USERS + " ORDER BY name")]

    async def get(self, user_id: str) -> User:
        """Return a user; raises NotFound."""
        return await get_user(self._db, user_id)

    async def get_named(self, name: str) -> User:
        """Return the user with a name; raises NotFound."""
        user = await find_named(self._db, name)
        if user is None:
            raise NotFound(f"there is no user `{name}`")
        return user

    async def create(self, name: str, role: Role) -> User:
        """Add a user; raises BadRequest for an invalid name, Conflict for a taken one."""

        async def body(tx: Transaction) -> User:
            user = await add_user(tx, name, role)
            await note_effect(tx, user)
            return user

        return await self._db.write(body)

    async def change(self, user_id: str, patch: UserPatch) -> User:
        """Change a user and return the new state; raises like `change_user`."""
        return await self._db.write(lambda tx: change_user(tx, user_id, patch))


async def change_user(tx: Transaction, user_id: str, patch: UserPatch) -> User:
    """Change a user in the caller's transaction and return the new state.

    Raises NotFound, BadRequest for an invalid name, and Conflict if the name is taken, the user is
    being deleted, or no active administrator would remain. If the user is no active administrator
    afterwards, keys that their services have created are revoked.
    """
    if patch.name is not UNSET:
        check_name(patch.name)
    before = await get_user(tx, user_id)
    if before.leaving_at is not None:
        raise Conflict(f"`{before.name}` is being deleted")
    after = _patched(before, patch)
    await _check_name_free(tx, after)
    sql = "UPDATE users SET name = :name, role = :role, blocked_at = :blocked_at WHERE id = :id"
    await tx.run(sql, row_of(after))
    sql = "SELECT 1 FROM users WHERE role = 'admin' AND blocked_at IS NULL LIMIT 1"
    if before.is_active_admin and await tx.one(sql) is None:
        raise Conflict(f"`{before.name}` is the only administrator, and has to stay one")
    if not after.is_active_admin:
        await tx.run(_REVOKE_CREATED, {"id": user_id, "now": values.to_stored(values.now())})
    return after


_REVOKE_CREATED: Final = """
    UPDATE api_keys
    SET revoked_at = :now
    WHERE made_with IN (SELECT id FROM api_keys WHERE user_id = :id)
      AND revoked_at IS NULL
"""
"""Revokes the keys that services of a user have created."""


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


async def _check_name_free(tx: Transaction, user: User) -> None:
    named = await find_named(tx, user.name)
    if named is not None and named.id != user.id:
        raise name_taken(user)
