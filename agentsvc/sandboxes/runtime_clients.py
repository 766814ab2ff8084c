"""Sandboxes of the runtime API: ids and environment that other servers gave them.

Each has an id of the client's own, under which asking twice gives one sandbox, and variables that
its environment has besides those of its spec.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from agentsvc.base import Secret
from agentsvc.storage import Database, Queryable, Transaction, Vault

_env: Final = msgspec.json.Decoder(dict[str, str])
_encode: Final = msgspec.json.encode


class ClientOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A client's own id of a sandbox, and what is in its environment for the client's sake."""

    id: str
    env: Mapping[str, Secret] = {}


class ClientTable:
    """The SQL of it; each method is one statement."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def insert(
        self, tx: Transaction, user_id: str, sandbox_id: str, order: ClientOrder
    ) -> None:
        """Store what a client ordered."""
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
        """Return the id of the sandbox that a user's client knows by its own id."""
        return await (reader or self._db).value(
            "SELECT sandbox_id FROM client_sandboxes"
            " WHERE user_id = :user_id AND client_id = :client_id",
            {"user_id": user_id, "client_id": client_id},
        )

    async def ids(self, user_id: str) -> list[str]:
        """Return the ids of all sandboxes that a user's clients know by ids of their own."""
        return await self._db.column(
            "SELECT sandbox_id FROM client_sandboxes WHERE user_id = :user_id ORDER BY sandbox_id",
            {"user_id": user_id},
        )

    async def env(self, sandbox_id: str) -> dict[str, Secret]:
        """Return the variables a client ordered for a sandbox."""
        row = await self._db.one(
            "SELECT env_sealed FROM client_sandboxes WHERE sandbox_id = :id", {"id": sandbox_id}
        )
        if row is None:
            return {}
        env = _env.decode(self._vault.unseal(row["env_sealed"], _context(sandbox_id)))
        return {name: Secret(value) for name, value in env.items()}


def _context(sandbox_id: str) -> str:
    return f"sandbox-env:{sandbox_id}"
