"""In which order conversations and their starts are listed, and where a page begins. Pure."""

from collections.abc import Mapping
from typing import Final

from agentsvc.base import InvalidRequest, decode_cursor
from agentsvc.domain import ConversationSort, StartSort
from agentsvc.storage import Page

_SORTS: Final[Mapping[str, tuple[str, bool]]] = {
    "CREATED_AT": ("created_at", False),
    "CREATED_AT_DESC": ("created_at", True),
    "UPDATED_AT": ("updated_at", False),
    "UPDATED_AT_DESC": ("updated_at", True),
    "TITLE": ("coalesce(title, '')", False),
    "TITLE_DESC": ("coalesce(title, '')", True),
}


def page_of(sort: ConversationSort | StartSort, page_id: str | None) -> Page:
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
    return Page(expression=expression, descending=descending, after=after)
