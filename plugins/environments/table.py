"""The SQL of environments."""

from typing import Any, Final

import msgspec

from agentsvc.extension.storage import Queryable, Records, Transaction, row_of

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
    # An environment that is not ready may have been prepared from another definition, with secrets.
    """
    ALTER TABLE plugin_environments_environments ADD COLUMN made_from TEXT NOT NULL DEFAULT 'null';
    ALTER TABLE plugin_environments_environments
        ADD COLUMN earlier_layer_id TEXT NOT NULL DEFAULT '';
    UPDATE plugin_environments_environments SET layer_id = '', size_bytes = 0
        WHERE status <> 'ready' AND json_extract(definition, '$.shared');
    UPDATE plugin_environments_environments SET made_from = definition WHERE layer_id <> '';
    """,
)


class EnvironmentTable(Records[Environment], table="plugin_environments_environments"):
    """The SQL of environments; each method is one statement."""

    @classmethod
    def to_row(cls, record: Environment) -> dict[str, Any]:
        """Convert an environment to a row."""
        return row_of(record, made_from=msgspec.json.encode(record.made_from).decode())

    @classmethod
    async def change(cls, tx: Transaction, one: Environment, *, since: str) -> bool:
        """Update an environment if its attempt is still `since`; return whether it was."""
        return await cls.update(tx, one, "AND attempt = :since", since=since)

    @classmethod
    async def find_by_layer(cls, source: Queryable, layer_id: str) -> Environment | None:
        """Return the environment that has a layer now, or had it before."""
        tail = "WHERE t.layer_id <> '' AND :id IN (t.layer_id, t.earlier_layer_id)"
        return await cls.first(source, tail, id=layer_id)

    @classmethod
    async def of_user(cls, source: Queryable, user_id: str) -> list[Environment]:
        """Return the environments of a user, the newest first."""
        tail = "WHERE t.user_id = :user_id ORDER BY t.created_at DESC, t.id DESC"
        return await cls.select(source, tail, user_id=user_id)

    @staticmethod
    async def unfinished(source: Queryable) -> list[str]:
        """Return the ids of environments that wait for preparation or are being prepared."""
        return await source.column(
            "SELECT id FROM plugin_environments_environments"
            " WHERE status IN ('waiting', 'preparing') ORDER BY id"
        )

    @staticmethod
    async def layers(source: Queryable) -> dict[str, set[str]]:
        """Return the ids of the layers in use, by backend."""
        rows = await source.all(
            "SELECT backend, layer_id FROM plugin_environments_environments WHERE layer_id <> ''"
        )
        found: dict[str, set[str]] = {}
        for row in rows:
            found.setdefault(row["backend"], set()).add(row["layer_id"])
        return found

    @staticmethod
    async def image_ids(source: Queryable) -> frozenset[str]:
        """Return the ids of the images that were built for environments."""
        sql = """
            SELECT json_extract(container, '$.image_id') FROM plugin_environments_environments
        """
        return frozenset(filter(None, await source.column(sql)))

    @staticmethod
    async def total_bytes(source: Queryable, *, without: str) -> int:
        """Return the disk space of all environments except one, in bytes."""
        sql = """
            SELECT total(size_bytes) FROM plugin_environments_environments
            WHERE layer_id <> '' AND id <> :id
        """
        return int(await source.value(sql, {"id": without}) or 0)
