"""Keys with which a service acts for users, made with a key that an administrator gave the service."""

import contextlib
from typing import Final

from agentsvc.accounts.keys import KEY_PREFIX, KeyScope, check_name, find_key, get_user, insert_key
from agentsvc.base import Conflict, NotAuthenticated, Secret, values
from agentsvc.storage import Database, Transaction, Vault

_CONTEXT: Final = "service-key"


class ServiceKeys:
    """Every key that was made with that of a service."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def make(self, maker_id: int, user_id: str, name: str) -> Secret:
        """Return the key of a user that a key has made under a name; it is made where there is none.

        It is the same each time until it is revoked, is of the scope `run`, and ends with what it
        was made with. Raises BadRequest, NotFound, and NotAuthenticated where that has ended.
        """
        check_name(name)

        async def body(tx: Transaction) -> Secret:
            maker = await find_key(tx, maker_id)
            if maker is None or maker["revoked_at"] is not None:
                raise NotAuthenticated
            if not (await get_user(tx, maker["user_id"])).is_active_admin:
                raise NotAuthenticated
            # What is stored is a hash, so the key is made anew from what never changes.
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
    """Return how many keys of a user that one has made under a name open nothing any more."""
    sql = """
        SELECT COUNT(*) AS count
        FROM api_keys
        WHERE made_with = :made_with AND user_id = :user_id AND name = :name
          AND (revoked_at IS NOT NULL OR expires_at <= :now)
    """
    now = values.to_stored(values.now())
    params = {"made_with": made_with, "user_id": user_id, "name": name, "now": now}
    return int(await tx.value(sql, params) or 0)
