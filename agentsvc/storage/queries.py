"""The interface of everything that runs queries."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

type Params = Mapping[str, Any]
Row = sqlite3.Row

NO_PARAMS: Final[Params] = {}


class Queryable(ABC):
    """Runs queries: in a snapshot, in a transaction, or each by itself on the database."""

    @abstractmethod
    async def all(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        """Return every row of a query."""

    async def one(self, sql: str, params: Params = NO_PARAMS) -> Row | None:
        """Return the first row of a query, or None."""
        rows = await self.all(sql, params)
        return rows[0] if rows else None

    async def column(self, sql: str, params: Params = NO_PARAMS) -> list[Any]:
        """Return the first column of every row of a query."""
        return [row[0] for row in await self.all(sql, params)]

    async def value(self, sql: str, params: Params = NO_PARAMS) -> Any | None:
        """Return the first column of the first row of a query, or None."""
        row = await self.one(sql, params)
        return row[0] if row else None
