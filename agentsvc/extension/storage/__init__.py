"""Storage for plugins: the database, the vault, the audit log, pagination, tables of records."""

from types import get_original_bases
from typing import Any, ClassVar, get_args

import msgspec

from agentsvc.accounts import note_by_server as note_by_server
from agentsvc.storage import Database as Database
from agentsvc.storage import Queryable as Queryable
from agentsvc.storage import Row as Row
from agentsvc.storage import Transaction as Transaction
from agentsvc.storage import Vault as Vault
from agentsvc.storage import cut as cut
from agentsvc.storage import note_effect as note_effect
from agentsvc.storage import read_foreign as read_foreign
from agentsvc.storage import record_of as record_of
from agentsvc.storage import row_of as row_of


class Records[T: msgspec.Struct]:
    """The SQL of a table whose columns have the names of its records' fields.

    A subclass names the table, as in `class NoteTable(Records[Note], table="plugin_notes_notes")`, and the
    key column, if that is not `id`. `rest` is the part of a query after FROM, in which the alias of the
    table is `t`. Subclasses for other columns override `columns`, `to_row` and `to_record`.
    """

    table: ClassVar[str]
    key: ClassVar[str]
    _kind: ClassVar[type[Any]]

    def __init_subclass__(cls, *, table: str = "", key: str = "id") -> None:
        super().__init_subclass__()
        if table:
            cls.table, cls.key = table, key
            [cls._kind] = get_args(get_original_bases(cls)[0])

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the columns to read."""
        return tuple(cls._kind.__struct_fields__)

    @classmethod
    def to_row(cls, record: T) -> dict[str, Any]:
        """Convert a record to a row."""
        return row_of(record)

    @classmethod
    def to_record(cls, row: Row) -> T:
        """Convert a row to a record."""
        record: T = record_of(row, cls._kind)
        return record

    @classmethod
    async def select(cls, source: Queryable, rest: str, **params: Any) -> list[T]:
        """Return the records of a query."""
        columns = ", ".join(f't."{name}"' for name in cls.columns())
        sql = ("SELECT", columns, "FROM", cls.table, "AS t", rest)
        return [cls.to_record(row) for row in await source.all(" ".join(sql), params)]

    @classmethod
    async def first(cls, source: Queryable, rest: str, **params: Any) -> T | None:
        """Return the first record of a query, or None."""
        return next(iter(await cls.select(source, f"{rest} LIMIT 1", **params)), None)

    @classmethod
    async def find(cls, source: Queryable, key: str) -> T | None:
        """Return the record with a key, whoever owns it."""
        return await cls.first(source, f'WHERE t."{cls.key}" = :key', key=key)

    @classmethod
    async def insert(cls, tx: Transaction, record: T, **more: Any) -> None:
        """Insert a record; `more` are columns that are not among its fields."""
        await tx.insert(cls.table, {**cls.to_row(record), **more})

    @classmethod
    async def update(
        cls, tx: Transaction, record: T, where: str = "", *, but: str = "", **params: Any
    ) -> bool:
        """Update the record with this key, except the column `but`; return whether a row matched."""
        row = cls.to_row(record)
        fields = ", ".join(f'"{name}" = :{name}' for name in row if name not in (cls.key, but))
        sql = ("UPDATE", cls.table, "SET", fields, f'WHERE "{cls.key}" = :{cls.key}', where)
        return await tx.run(" ".join(sql), {**row, **params}) == 1

    @classmethod
    async def delete(cls, tx: Transaction, key: str) -> bool:
        """Delete the record with a key; return whether it existed."""
        sql = ("DELETE FROM", cls.table, f'WHERE "{cls.key}" = :key')
        return await tx.run(" ".join(sql), {"key": key}) == 1
