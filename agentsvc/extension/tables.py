"""Migrates the tables of plugins."""

import logging
from collections.abc import Sequence
from typing import Final

from agentsvc.base import StartFailed
from agentsvc.storage import Database, Queryable, Transaction, statements_of

log = logging.getLogger(__name__)

_VERSIONS: Final = """
    CREATE TABLE IF NOT EXISTS plugin_versions (
        plugin TEXT PRIMARY KEY,
        version INTEGER NOT NULL
    ) STRICT
"""


async def migrate(database: Database, plugin: str, scripts: Sequence[str]) -> None:
    """Run the pending migrations of a plugin, all of them or none; raises StartFailed."""
    if not scripts:
        return
    version = await database.write(lambda tx: _read_version(tx, plugin))
    if version > len(scripts):
        raise StartFailed(
            f"The tables of the plugin `{plugin}` have version {version}, and this version of the"
            f" plugin knows up to {len(scripts)}",
            hint="install the newer plugin again",
        )
    if version == len(scripts):
        return
    await database.write(lambda tx: _run(tx, plugin, scripts[version:], len(scripts)))
    log.info(
        "tables of a plugin migrated",
        extra={"plugin": plugin, "from_version": version, "to_version": len(scripts)},
    )


async def _read_version(tx: Transaction, plugin: str) -> int:
    await tx.run(_VERSIONS)
    sql = "SELECT version FROM plugin_versions WHERE plugin = :plugin"
    return int(await tx.value(sql, {"plugin": plugin}) or 0)


async def _run(tx: Transaction, plugin: str, scripts: Sequence[str], version: int) -> None:
    before = await _objects(tx)
    for script in scripts:
        for statement in statements_of(script):
            await tx.run(statement)
    for kind, name in await _objects(tx) ^ before:
        if kind not in ("table", "index") or not name.startswith(f"plugin_{plugin}_"):
            raise StartFailed(
                f"The plugin `{plugin}` creates or drops the {kind} `{name}`; it may have tables and"
                f" indexes whose names begin with `plugin_{plugin}_`"
            )
    await tx.run(
        "INSERT INTO plugin_versions (plugin, version) VALUES (:plugin, :version)"
        " ON CONFLICT (plugin) DO UPDATE SET version = excluded.version",
        {"plugin": plugin, "version": version},
    )


async def _objects(source: Queryable) -> set[tuple[str, str]]:
    rows = await source.all(
        "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    )
    return {(row["type"], row["name"]) for row in rows}
