"""Storage for plugins: the database, the vault, the audit log, pages of lists, tables of records."""

from collections.abc import Collection
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
    """The SQL of a table whose columns are called as the fields of its records.

    A class of its own names it, as in `class NoteTable(Records[Note], table="plugin_notes_notes")`. What
    is asked for is the rest of a query, which begins with its condition and calls the table `t`.
    """

    table: ClassVar[str]
    _kind: ClassVar[type[Any]]
    _select: ClassVar[str]

    def __init_subclass__(cls, *, table: str = "") -> None:
        super().__init_subclass__()
        if table:
            cls.table = table
            [cls._kind] = get_args(get_original_bases(cls)[0])
            columns = ", ".join(f't."{name}"' for name in cls._kind.__struct_fields__)
            cls._select = " ".join(("SELECT", columns, "FROM", table, "AS t"))

    @classmethod
    async def select(cls, source: Queryable, rest: str, **params: Any) -> list[T]:
        """Return the records that the rest of a query leaves."""
        rows = await source.all(f"{cls._select} {rest}", params)
        return [record_of(row, cls._kind) for row in rows]

    @classmethod
    async def first(cls, source: Queryable, rest: str, **params: Any) -> T | None:
        """Return the first of them."""
        row = await source.one(f"{cls._select} {rest}", params)
        return record_of(row, cls._kind) if row else None

    @classmethod
    async def find(cls, source: Queryable, record_id: str) -> T | None:
        """Return the record with an id, whoever owns it."""
        return await cls.first(source, "WHERE t.id = :id", id=record_id)

    @classmethod
    async def insert(cls, tx: Transaction, record: T, **more: Any) -> None:
        """Add a record, with columns that are none of its fields or have another value."""
        await tx.insert(cls.table, row_of(record, **more))

    @classmethod
    async def update(
        cls, tx: Transaction, record: T, where: str = "", *, but: Collection[str] = (), **more: Any
    ) -> bool:
        """Store the fields of the record with this id, but some; say whether one fits the condition."""
        names = [name for name in cls._kind.__struct_fields__ if name not in ("id", *but)]
        fields = ", ".join(f'"{name}" = :{name}' for name in names)
        sql = ("UPDATE", cls.table, "SET", fields, "WHERE id = :id", where)
        return await tx.run(" ".join(sql), row_of(record, **more)) == 1

    @classmethod
    async def delete(cls, tx: Transaction, record_id: str) -> bool:
        """Delete the record with an id; say whether there was one."""
        sql = ("DELETE FROM", cls.table, "WHERE id = :id")
        return await tx.run(" ".join(sql), {"id": record_id}) == 1
