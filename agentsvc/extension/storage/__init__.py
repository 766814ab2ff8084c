"""Storage for plugins: the database, the vault, the audit log, pages of lists, tables of records."""

from collections.abc import Collection
from typing import Any

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
    """The records of one table, whose columns are called as the fields; SQL calls the table `t`."""

    def __init__(self, table: str, kind: type[T]) -> None:
        self.table = table
        self._kind = kind
        columns = ", ".join(f't."{name}"' for name in kind.__struct_fields__)
        self._select = " ".join(("SELECT", columns, "FROM", table, "AS t"))

    async def all(self, source: Queryable, rest: str = "", **params: Any) -> list[T]:
        """Return the records that the rest of a query leaves, which begins with its condition."""
        rows = await source.all(f"{self._select} {rest}", params)
        return [record_of(row, self._kind) for row in rows]

    async def one(self, source: Queryable, rest: str, **params: Any) -> T | None:
        """Return the first of them."""
        row = await source.one(f"{self._select} {rest}", params)
        return record_of(row, self._kind) if row else None

    async def insert(self, tx: Transaction, record: T, **more: Any) -> None:
        """Add a record, with columns that are none of its fields."""
        await tx.insert(self.table, row_of(record, **more))

    async def change(
        self, tx: Transaction, record: T, where: str = "", *, but: Collection[str] = (), **more: Any
    ) -> bool:
        """Store the fields of the record with this id, but some; say whether one fits the condition."""
        names = [name for name in self._kind.__struct_fields__ if name not in ("id", *but)]
        fields = ", ".join(f'"{name}" = :{name}' for name in names)
        sql = ("UPDATE", self.table, "SET", fields, "WHERE id = :id", where)
        return await tx.run(" ".join(sql), row_of(record, **more)) == 1
