"""Handlers of the console: the page at `/` and `/login`, and its static files.

They need no key: the files are the same for everybody, and the page requests all data from the API.
They are not operations of the API, so they are not in a table of routes.
"""

import asyncio
from typing import Final

from aiohttp import hdrs, web

from agentsvc.http.openapi.handlers import Document, answer_document
from agentsvc.http.routes import HTML, LOGIN_PATH
from agentsvc.http.web import read_console

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FOR_GOOD: Final = "public, max-age=31536000, immutable"


def mount_console(app: web.Application, *, prefix: str) -> None:
    """Add the routes of the page and its files; `prefix` is the path of the public URL, if any."""
    app.router.add_get("/", get_page)
    app.router.add_get(LOGIN_PATH, get_page)
    app.router.add_get("/console/{tag}/{path:.+}", get_part)
    if prefix:
        # The page uses relative URLs, which without the trailing slash resolve one level too high.
        app.router.add_get(prefix, _to_page)


async def get_page(request: web.Request) -> web.Response:
    """GET / and GET /login."""
    console = await asyncio.to_thread(read_console)
    page = Document(body=console.page, tag=console.tag)
    return answer_document(request, page, HTML, {**_HEADERS, hdrs.CACHE_CONTROL: "no-cache"})


async def get_part(request: web.Request) -> web.Response:
    """GET /console/{tag}/{path}: a static file; 404 for the tag of another version."""
    console = await asyncio.to_thread(read_console)
    part = console.parts.get(request.match_info["path"])
    if part is None or request.match_info["tag"] != console.tag:
        raise web.HTTPNotFound
    headers = {**_HEADERS, hdrs.CACHE_CONTROL: _FOR_GOOD, hdrs.VARY: hdrs.ACCEPT_ENCODING}
    body = part.body
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        body = part.packed
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=body, content_type=part.media, charset="utf-8", headers=headers)


async def _to_page(request: web.Request) -> web.Response:
    raise web.HTTPPermanentRedirect(f"{request.path}/")
