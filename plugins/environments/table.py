"""The SQL of environments."""

from typing import Any, Final

import msgspec

from agentsvc.extension.storage import Database, Queryable, Records, Transaction

from .model import Environment

MIGRATIONS: Final = (
    """
    CREATE TABLE plugin_environments_environments (
        id TEXT PRIMARY KEY,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        definition TEXT NOT NULL,
        status TEXT NOT NULL,
        attempt TEXT NOT NULL,
        reason TEXT NOT NULL,
        log TEXT NOT NULL,
        sandbox_id TEXT,
        layer_id TEXT NOT NULL,
        backend TEXT NOT NULL,
        spec_id TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        prepared_at TEXT,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX plugin_environments_of_user
        ON plugin_environments_environments (user_id, created_at);
    CREATE INDEX plugin_environments_unfinished
        ON plugin_environments_environments (id) WHERE status IN ('waiting', 'preparing');
    CREATE INDEX plugin_environments_layers
        ON plugin_environments_environments (layer_id) WHERE layer_id <> '';
    """,
    """
    ALTER TABLE plugin_environments_environments ADD COLUMN container TEXT NOT NULL DEFAULT '{}';
    """,
    # What is not ready may have been prepared from another definition, with secrets.
    """
    ALTER TABLE plugin_environments_environments ADD COLUMN made_from TEXT NOT NULL DEFAULT 'null';
    ALTER TABLE plugin_environments_environments
        ADD COLUMN earlier_layer_id TEXT NOT NULL DEFAULT '';
    UPDATE plugin_environments_environments SET layer_id = '', size_bytes = 0
        WHERE status <> 'ready' AND json_extract(definition, '$.shared');
    UPDATE plugin_environments_environments SET made_from = definition WHERE layer_id <> '';
    """,
)

_ENVIRONMENTS: Final = Records("plugin_environments_environments", Environment)


class EnvironmentTable:
    """Inserts, changes and finds environments; each method is one statement."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def insert(self, tx: Transaction, one: Environment) -> None:
        """Insert an environment."""
        await _ENVIRONMENTS.insert(tx, one, made_from=_in_json(one.made_from))

    async def change(self, tx: Transaction, one: Environment, *, since: str) -> bool:
        """Store an environment if its attempt is still that one; say whether it was."""
        made_from, where = _in_json(one.made_from), "AND attempt = :since"
        return await _ENVIRONMENTS.change(tx, one, where, since=since, made_from=made_from)

    async def delete(self, tx: Transaction, environment_id: str) -> None:
        """Delete an environment."""
        await tx.run(
            "DELETE FROM plugin_environments_environments WHERE id = :id", {"id": environment_id}
        )

    async def find(
        self, environment_id: str, reader: Queryable | None = None
    ) -> Environment | None:
        """Return an environment, whoever owns it."""
        return await _ENVIRONMENTS.one(reader or self._db, "WHERE t.id = :id", id=environment_id)

    async def find_by_layer(self, layer_id: str) -> Environment | None:
        """Return the environment that has a layer now, or had it before."""
        rest = "WHERE t.layer_id <> '' AND :id IN (t.layer_id, t.earlier_layer_id)"
        return await _ENVIRONMENTS.one(self._db, rest, id=layer_id)

    async def of_user(self, user_id: str, reader: Queryable | None = None) -> list[Environment]:
        """Return the environments of a user, the newest first."""
        rest = "WHERE t.user_id = :user_id ORDER BY t.created_at DESC, t.id DESC"
        return await _ENVIRONMENTS.all(reader or self._db, rest, user_id=user_id)

    async def unfinished(self) -> list[str]:
        """Return the ids of those that are to be prepared, or are being prepared."""
        return await self._db.column(
            "SELECT id FROM plugin_environments_environments"
            " WHERE status IN ('waiting', 'preparing') ORDER BY id"
        )

    async def layers(self) -> dict[str, set[str]]:
        """Return the layers that are in use, by their backends."""
        rows = await self._db.all(
            "SELECT backend, layer_id FROM plugin_environments_environments WHERE layer_id <> ''"
        )
        found: dict[str, set[str]] = {}
        for row in rows:
            found.setdefault(row["backend"], set()).add(row["layer_id"])
        return found

    async def image_ids(self) -> frozenset[str]:
        """Return the ids of the images that were built for environments."""
        rows = await self._db.all(
            "SELECT json_extract(container, '$.image_id') AS id"
            " FROM plugin_environments_environments"
        )
        return frozenset(row["id"] for row in rows if row["id"])

    async def total_bytes(self, tx: Transaction, *, without: str) -> int:
        """Return how much disk the files of all environments but one take."""
        return int(
            await tx.value(
                "SELECT total(size_bytes) AS bytes FROM plugin_environments_environments"
                " WHERE layer_id <> '' AND id <> :id",
                {"id": without},
            )
            or 0
        )


def _in_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
