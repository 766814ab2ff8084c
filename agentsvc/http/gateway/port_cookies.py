"""The cookies that open a port at an origin of its own.

A page that was opened with the sandbox's key in its URL loads scripts and opens WebSockets without
it. At its own origin nobody else's page has that cookie sent: it holds for this one host only, and
a request that another origin makes is not opened by it. A browser sends it to every port of that host,
so it is not the sandbox's key, and opens nothing but what is at this one origin.
"""

import hmac
from typing import Final

from aiohttp import hdrs, web

from agentsvc.http.port_origins import LOCAL_DOMAIN, name_of
from agentsvc.http.urls import WorkOrigin

_NAME: Final = "agentsvc-sandbox"
_SECURE_NAME: Final = "__Host-agentsvc-sandbox"
"""Over TLS browsers let no other host set a cookie of this name."""
_FETCH_SITE: Final = "Sec-Fetch-Site"
_FETCH_MODE: Final = "Sec-Fetch-Mode"
_FETCH_DEST: Final = "Sec-Fetch-Dest"
_FRAMES: Final = frozenset({"frame", "iframe"})
_PAGES: Final = _FRAMES | {"document"}
_OWN_SITES: Final = frozenset({"same-origin", "none"})


def make_cookie(origin: WorkOrigin, key: str) -> str:
    """Return a Set-Cookie value that opens this origin, for this host only."""
    name, more = (_SECURE_NAME, "; Secure") if _is_secure(origin) else (_NAME, "")
    return f"{name}={port_token(origin, key)}; Path=/; HttpOnly; SameSite=Strict{more}"


def port_token(origin: WorkOrigin, key: str) -> str:
    """Return what opens one origin only, made of the key of its sandbox."""
    name = f"{origin.scheme}://{name_of(origin.host)}:{_number(origin.host)}"
    return hmac.new(key.encode(), name.encode(), "sha256").hexdigest()


def cookie_token(request: web.Request, origin: WorkOrigin) -> str:
    """Return what is in the cookie, if the request is one of the origin's own."""
    token = request.cookies.get(_SECURE_NAME if _is_secure(origin) else _NAME, "")
    return token if token.isascii() and _is_own(request, origin) else ""


def may_show_editor_key(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether the cookie of the editor itself counts, which browsers send for pages elsewhere, too.

    It does for the editor's own requests, and where somebody goes to it.
    """
    is_visit = request.method == hdrs.METH_GET and request.headers.get(_FETCH_MODE) == "navigate"
    return is_visit or _is_own(request, origin)


def is_page(request: web.Request) -> bool:
    """Whether a browser asks for a page to show, in a window or in another page."""
    return request.headers.get(_FETCH_DEST) in _PAGES


def is_framed(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether a page of another site shows the port, and its cookies have to be marked for that."""
    is_framed = request.headers.get(_FETCH_DEST) in _FRAMES
    return is_framed and (_is_secure(origin) or name_of(origin.host).endswith(f".{LOCAL_DOMAIN}"))


def _is_secure(origin: WorkOrigin) -> bool:
    return origin.scheme == "https"


def _is_own(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether no page of another origin makes this request: sandboxes are of the same site."""
    made_by = request.headers.get(hdrs.ORIGIN)
    if made_by is not None and not _is_same(made_by, origin):
        return False
    return request.headers.get(_FETCH_SITE, "none") in _OWN_SITES


def _is_same(made_by: str, origin: WorkOrigin) -> bool:
    _, _, host = made_by.partition("://")
    return name_of(host) == name_of(origin.host) and _number(host) == _number(origin.host)


def _number(host: str) -> str:
    return host.rpartition(":")[2] if ":" in host else ""
