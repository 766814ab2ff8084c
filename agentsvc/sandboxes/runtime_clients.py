"""Sandboxes of the runtime API: client ids, and environment variables set by clients.

Each sandbox has an id chosen by the client, so that a repeated request creates no second sandbox,
and environment variables in addition to those of its spec.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from agentsvc.base import Secret
from agentsvc.storage import Database, Queryable, Transaction, Vault

_env: Final = msgspec.json.Decoder(dict[str, str])
_encode: Final = msgspec.json.encode


class ClientOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A client's id of a sandbox, and the environment variables that the client adds."""

    id: str
    env: Mapping[str, Secret] = {}


class ClientTable:
    """The SQL of the `client_sandboxes` table; each method is one statement."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def insert(
        self, tx: Transaction, user_id: str, sandbox_id: str, order: ClientOrder
    ) -> None:
        """Insert the id and environment of a client's sandbox."""
        env = {name: value.reveal() for name, value in order.env.items()}
        row = {
            "sandbox_id": sandbox_id,
            "user_id": user_id,
            "client_id": order.id,
            "env_sealed": self._vault.seal(_encode(env), _context(sandbox_id)),
        }
        await tx.insert("client_sandboxes", row)

    async def find(
        self, user_id: str, client_id: str, reader: Queryable | None = None
    ) -> str | None:
        """Return the sandbox id for a client id of a user, or None."""
        return await (reader or self._db).value(
            "SELECT sandbox_id FROM client_sandboxes"
            " WHERE user_id = :user_id AND client_id = :client_id",
            {"user_id": user_id, "client_id": client_id},
        )

    async def ids(self, user_id: str) -> list[str]:
        """Return the ids of all sandboxes of a user that have a client id."""
        return await self._db.column(
            "SELECT sandbox_id FROM client_sandboxes WHERE user_id = :user_id ORDER BY sandbox_id",
            {"user_id": user_id},
        )

    async def env(self, sandbox_id: str) -> dict[str, Secret]:
        """Return the environment variables that a client added to a sandbox."""
        row = await self._db.one(
            "SELECT env_sealed FROM client_sandboxes WHERE sandbox_id = :id", {"id": sandbox_id}
        )
        if row is None:
            return {}
        env = _env.decode(self._vault.unseal(row["env_sealed"], _context(sandbox_id)))
        return {name: Secret(value) for name, value in env.items()}


def _context(sandbox_id: str) -> str:
    return f"sandbox-env:{sandbox_id}"
