"""The API of shared conversations: links for owners, and read access for readers of links."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Annotated, Final

import msgspec
from aiohttp import hdrs, web
from msgspec import Meta

from agentsvc.base import (
    Conflict,
    ExportTooLarge,
    InvalidRequest,
    NotFound,
    TooManyRequests,
    now,
    parse_time,
    to_stored,
    view_of,
)
from agentsvc.extension.history import EventQuery, Metrics, Provider
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import (
    CONFIG,
    EXAMPLE_ID,
    HTML,
    PRINCIPAL,
    SUCCESS,
    Effect,
    EventFilter,
    EventSearch,
    Handler,
    Page,
    RateLimit,
    Route,
    Routes,
    Scope,
    StoredEvent,
    Success,
    Time,
    client_of,
    enforce,
    json_response,
    links_of,
    raw_array,
    raw_json_response,
    raw_page,
    to_query,
)

from .config import SharingConfig
from .links import MIGRATIONS, Link, Links, SharedView
from .redaction import Redaction, show_text

_MAX_IDS: Final = 100
_PAGE: Final = 100
_PIECE: Final = 64 * 1024
"""Size of the pieces of a page; the link is checked again before each piece."""
_HEADERS: Final = {
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Referrer-Policy": "no-referrer",
}
"""The link is a credential: pages must not be indexed, and its URL not sent as a referrer."""


class ShareOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new link."""

    conversation_id: Annotated[str, Meta(max_length=64)]
    """Id of the conversation to show"""
    expires_at: Time | None = None
    """When the link expires; null: the latest time that the server allows"""
    redact: Annotated[list[Redaction], Meta(max_length=len(Redaction))] = []
    """What to hide; secrets are never shown"""


class ShareQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list of links."""

    conversation_id: str | None = None
    """Only links to this conversation; omitted: all"""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A link that shows a conversation."""

    id: str
    """Id of the link, the only credential of readers: the id of a shared conversation"""
    url: str
    """URL of the page for browsers"""
    conversation_id: str
    """Id of the shared conversation"""
    redact: list[Redaction]
    """What it hides"""
    created_at: Time
    expires_at: Time | None
    """When it expires; null: only when it is revoked"""


class SharedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """SharedConversation: a conversation as shown to readers of its link."""

    id: str
    """Id of the link"""
    created_by_user_id: str | None = None
    """Always null: the owner is not shown"""
    sandbox_id: str = ""
    """Always empty: the sandbox is not shown"""
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    title: str | None
    """Title; null if it has none"""
    pr_number: list[int]
    llm_model: str | None
    """Provider and name of its model; null until that is known"""
    metrics: Metrics | None
    """Its cost so far; null before the first call of the model"""
    parent_conversation_id: str | None = None
    """Always null: a link shows one conversation"""
    sub_conversation_ids: list[str] = []
    """Always empty"""
    created_at: Time
    updated_at: Time


class SharedIds(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of the shared conversations to get."""

    ids: Annotated[list[str], Meta(max_length=_MAX_IDS)]
    """Ids of links, at most 100"""


class OfShared(msgspec.Struct, frozen=True, kw_only=True):
    """The link, in the query of a request."""

    conversation_id: str
    """Id of the link"""


class SharedFilter(EventFilter, frozen=True, kw_only=True):
    """The filters of shared events."""

    conversation_id: str
    """Id of the link"""


class SharedSearch(EventSearch, frozen=True, kw_only=True):
    """The query of the search of shared events."""

    conversation_id: str
    """Id of the link"""


class SharedEventIds(OfShared, frozen=True, kw_only=True):
    """The ids of the shared events to get."""

    id: Annotated[list[str], Meta(max_length=_MAX_IDS)]
    """Ids of events, at most 100"""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a shared page."""

    download: bool = False
    """Whether browsers save it as a file"""


class ExportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of an exported page."""

    redact: list[Redaction] = []
    """What to hide; secrets are never shown"""


class Sharing(Extension[SharingConfig]):
    """The server extension of shared conversations."""

    Config = SharingConfig
    migrations = MIGRATIONS

    def __init__(self, config: SharingConfig) -> None:
        super().__init__(config)
        self._limit = RateLimit("address", config.requests_per_minute)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Create the objects that the handlers use."""
        self._server = server
        self._links = Links(server, self.config)
        yield

    def routes(self) -> Iterable[Route]:
        """Return the routes of owners, and those of readers."""
        readers = (
            msgspec.structs.replace(route, handler=self._limited(route.handler))
            for route in _reader_routes(self)
        )
        return (*_owner_routes(self), *readers)

    # For owners

    async def post_share(self, request: web.Request, body: ShareOrder) -> Link:
        """Create a link that shows a conversation.

        Anybody with the link can read the conversation without a key: its messages and actions so far, and
        future ones. It shows none of your secrets, and not the configuration of the agent.
        """
        expires_at = None if body.expires_at is None else parse_time(body.expires_at)
        if body.expires_at is not None and expires_at is None:
            loc = ("body", "expires_at")
            raise InvalidRequest(
                "Input should be a valid datetime", loc=loc, kind="datetime_parsing"
            )
        conversation_id = await self._resolve(request, body.conversation_id)
        return await self._links.add(
            request[PRINCIPAL].user_id,
            conversation_id,
            redact=body.redact,
            expires_at=expires_at,
        )

    async def get_shares(self, request: web.Request, query: ShareQuery) -> list[Share]:
        """List your links.

        Only valid ones, in the order of creation.
        """
        wanted = query.conversation_id
        conversation_id = wanted and await self._resolve(request, wanted)
        found = await self._links.list_of(request[PRINCIPAL].user_id, conversation_id)
        return [from_link(request, one) for one in found]

    async def delete_share(self, request: web.Request, share_id: str) -> Success:
        """Revoke a link.

        The next request with it is rejected. Saved pages are not affected.
        """
        await self._links.revoke(request[PRINCIPAL].user_id, share_id)
        return SUCCESS

    async def get_conversation_page(
        self, request: web.Request, conversation_id: str, query: ExportQuery
    ) -> web.StreamResponse:
        """Download a conversation as an HTML file.

        One HTML file without scripts and external resources, with the content that a link would show.
        """
        link = Link(
            id="",
            conversation_id=conversation_id,
            user_id=request[PRINCIPAL].user_id,
            redact=tuple(query.redact),
            created_at=now(),
            expires_at=None,
        )
        return await self._send_page(request, link, is_download=True)

    # For readers

    async def get_shared_conversations(
        self, request: web.Request, query: SharedIds
    ) -> list[SharedConversation | None]:
        """Get shared conversations.

        In the order of the ids, null for each invalid one. Reading starts no sandbox. Each id counts as a
        request for the rate limit.
        """
        for _ in query.ids[1:]:
            enforce(request, self._limit.take(client_of(request)))
        views = [await self._find(one) for one in query.ids]
        return [from_view(one) if one else None for one in views]

    async def search_shared_events(
        self, _request: web.Request, query: SharedSearch
    ) -> web.Response:
        """Search the events of a shared conversation.

        Without redacted parts, secrets, and instructions added to messages. An invalid link has no events.
        """
        wanted = to_query(query, sort=query.sort_order)
        view = await self._find(query.conversation_id)
        if view is None:
            return raw_json_response(raw_page([], None))
        page = await view.search(wanted, page_id=query.page_id, limit=query.limit)
        return raw_json_response(raw_page(*page))

    async def count_shared_events(self, _request: web.Request, query: SharedFilter) -> int:
        """Count the events of a shared conversation.

        With the filters of the search; 0 for an invalid link.
        """
        wanted = to_query(query)
        view = await self._find(query.conversation_id)
        return 0 if view is None else await view.count(wanted)

    async def get_shared_events(self, _request: web.Request, query: SharedEventIds) -> web.Response:
        """Get events of a shared conversation by id.

        In the order of the ids, null for each that is not shown.
        """
        view = await self._find(query.conversation_id)
        found = [None] * len(query.id) if view is None else await view.find_many(query.id)
        return raw_json_response(raw_array(found))

    async def get_shared_event(
        self, _request: web.Request, conversation_id: str, event_id: str
    ) -> web.Response:
        """Get an event of a shared conversation.

        Null for one that is not shown.
        """
        view = await self._find(conversation_id)
        [found] = [None] if view is None else await view.find_many([event_id])
        return raw_json_response(found or b"null")

    async def get_shared_page(
        self, request: web.Request, share_id: str, query: PageQuery
    ) -> web.StreamResponse:
        """Show a shared conversation in a browser.

        One HTML file without scripts. If a proxy serves a published front end at this URL, that shows the
        conversation instead.
        """
        link = await self._links.find(share_id)
        if link is None:
            raise NotFound("This link does not exist, or is no longer valid")
        return await self._send_page(request, link, is_download=query.download)

    def _limited(self, handle: Handler) -> Handler:
        """Wrap a public handler: limit its rate by address, and exclude search engines."""

        @wraps(handle)
        async def handler(request: web.Request) -> web.StreamResponse:
            enforce(request, self._limit.take(client_of(request)))
            response = await handle(request)
            if not response.prepared:
                response.headers.update(_HEADERS)
            return response

        return handler

    async def _resolve(self, request: web.Request, text: str) -> str:
        user_id = request[PRINCIPAL].user_id
        found = await self._server.conversations.resolve(user_id, text)
        if found is None:
            raise NotFound("There is no such conversation")
        return found

    async def _find(self, link_id: str) -> SharedView | None:
        link = await self._links.find(link_id)
        if link is None:
            return None
        try:
            return await SharedView.open(self._server, link)
        except NotFound:
            # The conversation was just deleted, or has not started.
            return None

    async def _send_page(
        self, request: web.Request, link: Link, *, is_download: bool
    ) -> web.StreamResponse:
        from .page import POLICY  # noqa: PLC0415  # few ask for one

        view = await SharedView.open(self._server, link)
        headers = {
            **_HEADERS,
            hdrs.CONTENT_TYPE: f"{HTML}; charset=utf-8",
            "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'; sandbox",
        }
        if is_download:
            headers[hdrs.CONTENT_DISPOSITION] = 'attachment; filename="conversation.html"'
        response = web.StreamResponse(headers=headers)
        time_limit = request.app[CONFIG].server.request_seconds
        async for part in self._parts(view):
            if not response.prepared:
                await response.prepare(request)
            # A slow reader must not get data after the link was revoked.
            if link.id and await self._links.find(link.id) is None:
                raise ConnectionResetError("the link has ended")
            try:
                async with asyncio.timeout(time_limit):
                    await response.write(part)
            except TimeoutError as exc:
                raise ConnectionResetError("the client does not read on") from exc
        await response.write_eof()
        return response

    async def _parts(self, view: SharedView) -> AsyncIterator[bytes]:
        from .page import FOOT, articles, head  # noqa: PLC0415  # few ask for one

        shown = from_view(view)
        facts = (shown.llm_model, shown.selected_repository, f"{shown.created_at[:16]} UTC")
        yield head(shown.title or "Conversation", [one or "" for one in facts])
        page_id: str | None = None
        while True:
            events, page_id = await view.search(EventQuery(), page_id=page_id, limit=_PAGE)
            written = await asyncio.to_thread(articles, events)
            for start in range(0, len(written), _PIECE):
                yield written[start : start + _PIECE]
            if page_id is None:
                break
        yield FOOT


def answer_link(request: web.Request, link: Link) -> web.Response:
    """Return the response for a created link."""
    return json_response(from_link(request, link), status=201)


def from_link(request: web.Request, link: Link) -> Share:
    """Return the API's view of a link for its owner."""
    url = f"{links_of(request).base}/shared/conversations/{link.id}"
    return view_of(Share, link, url=url)


def from_view(view: SharedView) -> SharedConversation:
    """Return the API's view of a conversation for readers, without its events."""
    found, link = view.conversation, view.link
    # Fields are listed explicitly, since the others are not for readers.
    return SharedConversation(
        id=link.id,
        selected_repository=show_text(found.selected_repository, view.mask, link.redact),
        selected_branch=show_text(found.selected_branch, view.mask, link.redact),
        git_provider=found.git_provider,
        title=show_text(found.title, view.mask, link.redact),
        pr_number=list(found.pr_number),
        llm_model=found.llm_model,
        metrics=found.metrics,
        created_at=to_stored(found.created_at),
        updated_at=to_stored(found.updated_at),
    )


_EXAMPLE_SEARCH: Final = {"conversation_id": EXAMPLE_ID}


def _owner_routes(sharing: Sharing) -> Routes:
    routes = Routes("/api/v1")
    routes.add(
        "POST",
        "/shares",
        Share,
        status=201,
        effect=Effect(kind=Link, answer=answer_link),
        errors=(NotFound, Conflict),
        example={"conversation_id": EXAMPLE_ID, "redact": ["paths"]},
    )(sharing.post_share)
    routes.add("GET", "/shares", errors=(NotFound,))(sharing.get_shares)
    routes.add("DELETE", "/shares/{share_id}", errors=(NotFound,))(sharing.delete_share)
    routes.add(
        "GET",
        "/app-conversations/{conversation_id}/page",
        str,
        media=HTML,
        errors=(NotFound,),
        is_stream=True,
    )(sharing.get_conversation_page)
    return routes


def _reader_routes(sharing: Sharing) -> Routes:
    routes = Routes(scope=Scope.OPEN, errors=(TooManyRequests,))
    routes.add("GET", "/api/shared-conversations", example={"ids": [EXAMPLE_ID]})(
        sharing.get_shared_conversations
    )
    routes.add("GET", "/api/shared-events/search", Page[StoredEvent], example=_EXAMPLE_SEARCH)(
        sharing.search_shared_events
    )
    routes.add("GET", "/api/shared-events/count", example=_EXAMPLE_SEARCH)(
        sharing.count_shared_events
    )
    routes.add(
        "GET",
        "/api/shared-events",
        list[StoredEvent | None],
        errors=(ExportTooLarge,),
        example={"conversation_id": EXAMPLE_ID, "id": [EXAMPLE_ID]},
    )(sharing.get_shared_events)
    routes.add(
        "GET",
        "/api/shared-events/{conversation_id}/{event_id}",
        StoredEvent | None,
        path_types={"conversation_id": str},
    )(sharing.get_shared_event)
    routes.add(
        "GET",
        "/shared/conversations/{share_id}",
        str,
        media=HTML,
        errors=(NotFound, TooManyRequests),
        is_stream=True,
    )(sharing.get_shared_page)
    return routes
