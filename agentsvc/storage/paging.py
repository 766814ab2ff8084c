"""Keyset pagination: each page continues after the last row of the one before. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentsvc.base import decode_cursor, encode_cursor


class SqlPage(msgspec.Struct, frozen=True, kw_only=True):
    """The SQL of one page of rows: condition and order."""

    expression: str = "created_at"
    descending: bool = True
    after: tuple[str, str] | None = None
    """The value of the expression and the id of the last row of the page before."""

    @classmethod
    def newest_first(cls, page_id: str | None) -> "SqlPage":
        """Return the page for a page id, None for the first; raises InvalidRequest if it is malformed."""
        return cls(after=None if page_id is None else decode_cursor(page_id, str, str))

    def sql(self, prefix: str, where: list[str], params: dict[str, Any], limit: int) -> str:
        """Return the end of a statement; adds to `where` and `params`."""
        sign, word = ("<", "DESC") if self.descending else (">", "ASC")
        expression = self.expression.replace("title", f"{prefix}title")
        if expression == self.expression:
            expression = prefix + expression
        if self.after is not None:
            where.append(f"({expression}, {prefix}id) {sign} (:after_key, :after_id)")
            params["after_key"], params["after_id"] = self.after
        params["limit"] = limit
        return (
            f" WHERE {' AND '.join(where)} ORDER BY {expression} {word}, {prefix}id {word}"
            " LIMIT :limit"
        )


def cut[T](
    found: Sequence[T], limit: int, key_of: Callable[[T], Sequence[str | int]]
) -> tuple[list[T], str | None]:
    """Return the first `limit` items, and the id of the next page if there are more items."""
    page = list(found[:limit])
    return page, encode_cursor(*key_of(page[-1])) if len(found) > limit else None
