"""Keys with which a service acts for users, created with a key of an administrator."""

import contextlib
from typing import Final

from agentsvc.accounts.keys import KEY_PREFIX, KeyScope, check_name, find_key, get_user, insert_key
from agentsvc.base import Conflict, NotAuthenticated, Secret, values
from agentsvc.storage import Database, Transaction, Vault

_CONTEXT: Final = "service-key"


class ServiceKeys:
    """Creates the keys with which services act for users."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def make(self, maker_id: int, user_id: str, name: str) -> Secret:
        """Return the user's key that `maker_id` has created under a name; create it if missing.

        Returns the same key until it is revoked; it has the scope `run` and expires with its maker.
        Raises BadRequest, NotFound, and NotAuthenticated if the maker is no longer valid.
        """
        check_name(name)

        async def body(tx: Transaction) -> Secret:
            maker = await find_key(tx, maker_id)
            if maker is None or maker["revoked_at"] is not None:
                raise NotAuthenticated
            if not (await get_user(tx, maker["user_id"])).is_active_admin:
                raise NotAuthenticated
            # Only a hash is stored, so derive the key again from the master key and constant values.
            ended = await _count_ended(tx, maker_id, user_id, name)
            context = f"{_CONTEXT}:{maker_id}:{user_id}:{ended}:{name}"
            key = Secret(KEY_PREFIX + self._vault.derive(context))
            with contextlib.suppress(Conflict):
                await insert_key(
                    tx,
                    user_id,
                    name,
                    key,
                    scope=KeyScope.RUN,
                    expires_at=values.moment_or_none(maker["expires_at"]),
                    made_with=maker_id,
                )
            return key

        return await self._db.write(body)


async def _count_ended(tx: Transaction, made_with: int, user_id: str, name: str) -> int:
    """Count the revoked or expired keys that a key has created for a user under a name."""
    sql = """
        SELECT COUNT(*) AS count
        FROM api_keys
        WHERE made_with = :made_with AND user_id = :user_id AND name = :name
          AND (revoked_at IS NOT NULL OR expires_at <= :now)
    """
    now = values.to_stored(values.now())
    params = {"made_with": made_with, "user_id": user_id, "name": name, "now": now}
    return int(await tx.value(sql, params) or 0)
