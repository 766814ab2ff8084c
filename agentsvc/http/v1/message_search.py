"""Handler of the search in what was said."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.conversations import FoundMessage, find_messages
from agentsvc.http.keys import DATABASE, user_of
from agentsvc.http.routes import Routes
from agentsvc.http.wire import Limit

_USUAL: Final = 20


class MessageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The query of the search of messages."""

    text_contains: Annotated[str, msgspec.Meta(min_length=2, max_length=200)] = msgspec.field(
        name="text__contains"
    )
    """Words that are to be in the message, upper or lower case, 2 to 200 characters"""
    limit: Limit = _USUAL


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/messages/search", example={"text__contains": "login page"})
async def search_messages(request: web.Request, query: MessageSearch) -> list[FoundMessage]:
    """Search in what you and your agents have said.

    The newest first, in your 200 latest conversations. Long histories are looked at in part.
    """
    return await find_messages(
        request.app[DATABASE], user_of(request), query.text_contains, limit=query.limit
    )
