"""Sort orders and page cursors of conversations and start tasks. Pure."""

from collections.abc import Sequence

from agentsvc.base import InvalidRequest, decode_cursor
from agentsvc.domain import ConversationSort, StartSort
from agentsvc.storage import Row, SqlPage, cut


def page_of(sort: ConversationSort | StartSort, page_id: str | None) -> SqlPage:
    """Return the SQL of the page after a page id; raises InvalidRequest for an invalid id."""
    column, after = _column_of(sort), None
    if page_id is not None:
        order, key, last = decode_cursor(page_id, str, str, str)
        if order != sort:
            raise InvalidRequest(
                "page_id was given for another sort order", loc=("query", "page_id")
            )
        after = (key, last)
    expression = "coalesce(title, '')" if column == "title" else column
    return SqlPage(expression=expression, descending=sort.endswith("_DESC"), after=after)


def cut_sorted(
    rows: Sequence[Row], sort: ConversationSort | StartSort, limit: int
) -> tuple[list[Row], str | None]:
    """Return the rows of a page, read with one extra row, and the id of the next page."""
    column = _column_of(sort)
    return cut(rows, limit, lambda last: (sort.value, last[column] or "", last["id"]))


def _column_of(sort: ConversationSort | StartSort) -> str:
    return sort.removesuffix("_DESC").lower()
