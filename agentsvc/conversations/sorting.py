"""In which order conversations and their starts are listed, and where a page begins. Pure."""

from collections.abc import Sequence

from agentsvc.base import InvalidRequest, decode_cursor
from agentsvc.domain import ConversationSort, StartSort
from agentsvc.storage import Row, SqlPage, cut


def page_of(sort: ConversationSort | StartSort, page_id: str | None) -> SqlPage:
    """Return the page behind a page id; raises InvalidRequest for a foreign one."""
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
    """Return the rows of such a page, of which one too many was read, and the id of the next page."""
    column = _column_of(sort)
    return cut(rows, limit, lambda last: (sort.value, last[column] or "", last["id"]))


def _column_of(sort: ConversationSort | StartSort) -> str:
    return sort.removesuffix("_DESC").lower()
