"""Pages by key: the end of a statement that goes on where the last page stopped. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentsvc.errors import InvalidRequest
from agentsvc.orders import ConversationSort, StartSort
from agentsvc.values import decode_cursor

_SORTS: Final[Mapping[str, tuple[str, bool]]] = {
    "CREATED_AT": ("created_at", False),
    "CREATED_AT_DESC": ("created_at", True),
    "UPDATED_AT": ("updated_at", False),
    "UPDATED_AT_DESC": ("updated_at", True),
    "TITLE": ("coalesce(title, '')", False),
    "TITLE_DESC": ("coalesce(title, '')", True),
}


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The SQL of one page: conditions, order, and how to make the id of the next one."""

    expression: str
    descending: bool
    after: tuple[str, str] | None

    @classmethod
    def of(cls, sort: ConversationSort | StartSort, page_id: str | None) -> "Page":
        """Return the page behind a page id; raises InvalidRequest for a foreign one."""
        expression, descending = _SORTS[sort]
        after: tuple[str, str] | None = None
        if page_id is not None:
            order, key, last = decode_cursor(page_id, str, str, str)
            if order != sort:
                raise InvalidRequest(
                    "page_id was given for another sort order", loc=("query", "page_id")
                )
            after = (key, last)
        return cls(expression=expression, descending=descending, after=after)

    def sql(self, prefix: str, where: list[str], params: dict[str, Any], limit: int) -> str:
        """Return the end of a statement, and add to the conditions and parameters."""
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
