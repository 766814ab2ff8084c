"""Keys with which a service acts for users, made with a key that an administrator gave the service."""

import contextlib
from typing import Final

from agentsvc.accounts.keys import KEY_PREFIX, KeyScope, KeyTable, check_name, insert_key
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
            maker = await KeyTable.find_by_id(tx, maker_id)
            if maker is None or maker["revoked_at"] is not None:
                raise NotAuthenticated
            # What is stored is a hash, so the key is made anew from what never changes.
            ended = await KeyTable.count_ended(tx, maker_id, user_id, name)
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
