"""Handler of the search in messages."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.conversations import FoundMessage, find_messages
from agentsvc.http.keys import DATABASE, user_of
from agentsvc.http.routes import Routes
from agentsvc.http.wire import Limit

_DEFAULT_LIMIT: Final = 20


class MessageSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the search of messages."""

    text_contains: Annotated[str, msgspec.Meta(min_length=2, max_length=200)] = msgspec.field(
        name="text__contains"
    )
    """Text that the message has to contain, ignoring case, 2 to 200 characters"""
    limit: Limit = _DEFAULT_LIMIT


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/messages/search", example={"text__contains": "login page"})
async def search_messages(request: web.Request, query: MessageSearch) -> list[FoundMessage]:
    """Search your messages and those of your agents.

    Newest first, in your 200 latest conversations. Of long histories only a part is searched.
    """
    return await find_messages(
        request.app[DATABASE], user_of(request), query.text_contains, limit=query.limit
    )
