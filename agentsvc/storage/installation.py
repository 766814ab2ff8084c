"""An installation: the database, master key and id of a data directory.

They belong together: a data directory in which one of them is missing is rejected.
"""

import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from agentsvc.base import StartFailed, hint_against, new_id, replace_private
from agentsvc.config import DataDirectory
from agentsvc.storage.database import Database, Transaction
from agentsvc.storage.database_file import read_installation
from agentsvc.storage.queries import Queryable
from agentsvc.storage.vault import Vault

_KEY_ID: Final = "master_key_id"
_MISSING: Final = "missing, and the values it sealed cannot be read"
_ANOTHER: Final = "not the one that sealed the values in this database"
_RESTORE: Final = "put the key back from a copy; without one, start with another --data-dir"
_START_OVER: Final = (
    "restore a backup into another directory; to start over, move `instance-id` away, too:"
    " sandboxes that run are left alone then"
)
_UNFINISHED: Final = (
    "a change of the key was interrupted; finish it with `agentsvc keys rotate-master`"
)
_SEALED_COLUMNS: Final[Mapping[tuple[str, str], str]] = {
    ("settings", "sealed"): "settings/{user_id}",
    ("secrets", "sealed"): "secrets/{user_id}/{kind}/{name}",
    ("sandboxes", "session_key_sealed"): "sandbox-key:{id}",
    ("start_tasks", "sealed"): "start-task:{id}",
    ("webhook_subscriptions", "sealed"): "webhook subscription {id}",
    ("webhook_subscriptions", "former_sealed"): "webhook subscription {id}",
    ("client_sandboxes", "env_sealed"): "sandbox-env:{sandbox_id}",
    ("kept_answers", "sealed"): "kept answer {id}",
    ("model_grants", "sealed"): "model grant {token_hash}",
    ("spares", "key_sealed"): "spare-key:{id}",
}
"""All sealed columns of the server, with the format of a row's context by its other columns."""
_SEALED_OF_PLUGINS: Final = """
    SELECT found.name
    FROM sqlite_schema AS found, pragma_table_info(found.name) AS part
    WHERE found.type = 'table'
      AND found.name LIKE 'plugin!_%' ESCAPE '!'
      AND part.name IN ('sealed', 'sealed_as')
    GROUP BY found.name
    HAVING count(*) = 2
"""
"""The plugin tables with a column `sealed`; its context is in the column `sealed_as`."""
_ID: Final = re.compile(r"[0-9a-fA-F]{32}")


class Installation:
    """The open database of a data directory, and the vault for its sealed values."""

    def __init__(self, data_directory: DataDirectory, database: Database, vault: Vault) -> None:
        self._data_directory = data_directory
        self.database = database
        self.vault = vault

    @classmethod
    async def open(cls, data_directory: DataDirectory) -> "Installation":
        """Open both, and create each that is absent from a new installation.

        Raises StartFailed, with a hint, if one of them is unusable or was lost, or if the stored data was
        sealed with another master key; the lost one is not created then.
        """
        if data_directory.instance_id.exists() and not _has_content(data_directory.database):
            raise StartFailed(
                f"the database {data_directory.database} is missing, and all its sandboxes would be removed",
                hint=_START_OVER,
            )
        if data_directory.instance_id.exists() and not data_directory.master_key.exists():
            raise _wrong_key(data_directory, _MISSING)
        async with contextlib.AsyncExitStack() as opened:
            database = await Database.open(data_directory.database)
            opened.push_async_callback(database.close)
            vault = await _open_vault(database, data_directory)
            opened.pop_all()
        return cls(data_directory, database, vault)

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()

    async def __aenter__(self) -> Self:
        """Return the installation itself, which is closed at exit."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the database."""
        await self.close()

    def read_id(self) -> str:
        """Return the id of this installation; create it first if the file is absent or empty.

        Raises StartFailed, with a hint, if the file cannot be read or created, or holds no id.
        """
        file = self._data_directory.instance_id
        try:
            text = file.read_bytes().decode(errors="replace").strip() if file.exists() else ""
            if not text:
                # Written atomically: with a lost id, two installations could take over each other's
                # sandboxes.
                text = new_id()
                replace_private(file, text)
        except OSError as exc:
            raise StartFailed(
                f"the id of this installation cannot be read or created ({exc.strerror}): {file}",
                hint=hint_against(exc),
            ) from exc
        if not _ID.fullmatch(text):
            raise StartFailed(
                f"the file does not hold the id of an installation, 32 hex digits: {file}",
                hint="restore it from a copy; once it is moved away a new id is created at the next"
                " start, and the sandboxes that run now are no longer found",
            )
        return text


async def change_master_key(data_directory: DataDirectory) -> Path:
    """Create a new master key, reseal all stored values, and return the path of the former key.

    No server may be running. An interrupted change is finished by the next call. Raises StartFailed.
    """
    if not data_directory.master_key.exists() and not data_directory.next_master_key.exists():
        raise _wrong_key(data_directory, _MISSING)
    database = await Database.open(data_directory.database)
    try:
        new = Vault.open(data_directory.next_master_key)
        if await _read_key_id(database) != new.key_id:
            old = await _open_vault(database, data_directory)
            await database.write(lambda tx: _reseal(tx, old, new))
    finally:
        await database.close()
    former = data_directory.master_key.with_name(f"{data_directory.master_key.name}.former")
    if data_directory.master_key.exists():
        _rename_earlier(former)
        data_directory.master_key.replace(former)
    data_directory.next_master_key.replace(data_directory.master_key)
    return former


def check_master_key(data_directory: DataDirectory, copy: Path) -> None:
    """Raise StartFailed unless the master key fits a copy of the database that nobody uses."""
    if not data_directory.master_key.exists():
        raise _wrong_key(data_directory, _MISSING)
    recorded = read_installation(copy).get(_KEY_ID)
    if recorded not in (None, Vault.open(data_directory.master_key).key_id):
        raise _wrong_key(data_directory, _ANOTHER)


def _rename_earlier(former: Path) -> None:
    """Rename the key before the former one, because backups may need it."""
    if former.exists():
        names = (former.with_name(f"{former.name}.{number}") for number in itertools.count(1))
        former.rename(next(name for name in names if not name.exists()))


async def _reseal(tx: Transaction, old: Vault, new: Vault) -> None:
    for (table, column), context in (await _sealed_columns(tx)).items():
        # One row at a time: a whole table may exceed the memory.
        find = ("SELECT rowid FROM", table, "WHERE", column, "IS NOT NULL")
        read = ("SELECT * FROM", table, "WHERE rowid = :number")
        write = ("UPDATE", table, "SET", column, "= :sealed WHERE rowid = :number")
        for number in await tx.column(" ".join(find)):
            [row] = await tx.all(" ".join(read), {"number": number})
            of_row = context.format_map(dict(row))
            sealed = new.seal(old.unseal(row[column], of_row), of_row)
            await tx.run(" ".join(write), {"sealed": sealed, "number": number})
    await tx.run(
        "UPDATE installation SET value = :value WHERE name = :name",
        {"name": _KEY_ID, "value": new.key_id},
    )


async def _open_vault(database: Database, data_directory: DataDirectory) -> Vault:
    known = await database.read(_sealed_by)
    if known and not data_directory.master_key.exists():
        raise _wrong_key(data_directory, _MISSING)
    vault = Vault.open(data_directory.master_key)
    if known and vault.key_id not in known:
        raise _wrong_key(data_directory, _ANOTHER)
    await _record_key_id(database, vault.key_id)
    return vault


async def _sealed_by(db: Queryable) -> set[str]:
    """Return the ids of the keys that may be the right one; empty if nothing is sealed."""
    sealed = " UNION ALL ".join(
        " ".join(("SELECT", column, "AS sealed FROM", table, "WHERE", column, "IS NOT NULL"))
        for table, column in await _sealed_columns(db)
    )
    if not await db.one(" ".join(("SELECT 1 FROM (", sealed, ") LIMIT 1"))):
        return set()
    if recorded := await _read_key_id(db):
        return {recorded}
    # Earlier versions did not record it; bytes two to five of a sealed value are its key's id.
    key_ids = ("SELECT DISTINCT lower(hex(substr(sealed, 2, 4))) FROM (", sealed, ")")
    return set(await db.column(" ".join(key_ids)))


async def _sealed_columns(db: Queryable) -> dict[tuple[str, str], str]:
    """Return all sealed columns, also of plugins, with the format of a row's context."""
    tables = await db.column(_SEALED_OF_PLUGINS)
    return {**_SEALED_COLUMNS, **{(f'"{name}"', "sealed"): "{sealed_as}" for name in tables}}


async def _read_key_id(db: Queryable) -> str | None:
    return await db.value("SELECT value FROM installation WHERE name = :name", {"name": _KEY_ID})


async def _record_key_id(database: Database, key_id: str) -> None:
    if await _read_key_id(database) != key_id:
        row = {"name": _KEY_ID, "value": key_id}
        update = "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        await database.write(lambda tx: tx.insert("installation", row, update))


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _wrong_key(data_directory: DataDirectory, why: str) -> StartFailed:
    hint = _UNFINISHED if data_directory.next_master_key.exists() else _RESTORE
    return StartFailed(f"the master key {data_directory.master_key} is {why}", hint=hint)
