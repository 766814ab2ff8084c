"""Handlers of the OpenAPI document and its viewer.

The document requires a key. The page is served from the static files in `viewer`, which are public
and load nothing from other servers.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.http.keys import CONFIG
from agentsvc.http.openapi import describe
from agentsvc.http.routes import HTML, JSON, Routes, Scope, mounted
from agentsvc.http.urls import prefix_of
from agentsvc.http.wire import encode

_VIEWER: Final = Path(__file__).parent / "viewer"
_HEADERS: Final = {
    hdrs.CACHE_CONTROL: "private, no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A response body that is the same for all callers; `tag` is its ETag."""

    body: bytes
    tag: str


class Description:
    """Cache of an application's OpenAPI document, which is generated on the first request."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._document: Document | None = None

    async def read(self, app: web.Application) -> Document:
        """Return the document of the application's mounted routes."""
        async with self._lock:
            if self._document is None:
                routes, prefix = mounted(app), prefix_of(app[CONFIG].server.public_url)
                self._document = await asyncio.to_thread(
                    lambda: to_document(encode(describe(routes, prefix=prefix)))
                )
            return self._document


DESCRIPTION: Final[web.AppKey[Description]] = web.AppKey("description", Description)


def install(app: web.Application) -> None:
    """Add the document cache to the application; `ROUTES` have to be mounted, too."""
    app[DESCRIPTION] = Description()


ROUTES: Final = Routes()
"""The routes of the document and its viewer."""


_CSS: Final = "text/css"
_SCRIPT: Final = "text/javascript"
_SVG: Final = "image/svg+xml"


@ROUTES.add("GET", "/openapi.json", dict[str, Any], is_page=True)
async def get_document(request: web.Request) -> web.Response:
    """Return the OpenAPI 3.1 document of all operations.

    It contains the operations that are enabled on this server, and changes only with a restart;
    its `ETag` supports conditional requests. A browser may send the key as the password of HTTP
    Basic authentication.
    """
    return answer_document(request, await request.app[DESCRIPTION].read(request.app), JSON)


@ROUTES.add("GET", "/docs", str, scope=Scope.OPEN, media=HTML)
async def get_page(request: web.Request) -> web.Response:
    """Return the viewer page of the OpenAPI document.

    The page asks for a key and shows `/openapi.json`. A trailing slash is redirected, because the
    page has relative URLs.
    """
    if request.path.endswith("/"):
        raise web.HTTPPermanentRedirect("../docs")
    return await _answer_file(request, "viewer.html", HTML)


@ROUTES.add("GET", "/docs/viewer.css", str, scope=Scope.OPEN, media=_CSS)
async def get_style(request: web.Request) -> web.Response:
    """Return the style sheet of the viewer page.

    Loaded by `/docs`.
    """
    return await _answer_file(request, "viewer.css", _CSS)


@ROUTES.add("GET", "/docs/viewer.js", str, scope=Scope.OPEN, media=_SCRIPT)
async def get_script(request: web.Request) -> web.Response:
    """Return the script of the viewer page.

    Loaded by `/docs`.
    """
    return await _answer_file(request, "viewer.js", _SCRIPT)


@ROUTES.add("GET", "/docs/icon.svg", str, scope=Scope.OPEN, media=_SVG)
async def get_icon(request: web.Request) -> web.Response:
    """Return the icon of the viewer page.

    Loaded by `/docs`.
    """
    return await _answer_file(request, "icon.svg", _SVG)


async def _answer_file(request: web.Request, name: str, media: str) -> web.Response:
    body = await asyncio.to_thread((_VIEWER / name).read_bytes)
    return answer_document(request, to_document(body), media)


def answer_document(
    request: web.Request, document: Document, media: str, more: Mapping[str, str] = _HEADERS
) -> web.Response:
    """Respond with a document, or with 304 if the client has its current version."""
    headers = {**more, hdrs.ETAG: f'"{document.tag}"'}
    known = {tag.value for tag in request.if_none_match or ()}
    if known & {document.tag, "*"}:
        return web.Response(status=304, headers=headers)
    charset = None if media == JSON else "utf-8"
    return web.Response(body=document.body, content_type=media, charset=charset, headers=headers)


def to_document(body: bytes) -> Document:
    """Create a document with the ETag of its body."""
    return Document(body=body, tag=hashlib.sha256(body).hexdigest()[:32])
