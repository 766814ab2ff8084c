"""Cookies that authorize requests to a port at its own origin.

A page that was opened with the session key in its URL loads scripts and opens WebSockets without
the key. The cookie is valid for one host, and requests that other origins make are not authorized
by it. Browsers send it to every TCP port of the host, so it holds a token derived from the session
key that is valid only for this origin.
"""

import hmac
from typing import Final

from aiohttp import hdrs, web

from agentsvc.http.port_origins import LOCAL_DOMAIN, name_of
from agentsvc.http.urls import WorkOrigin

_NAME: Final = "agentsvc-sandbox"
_SECURE_NAME: Final = "__Host-agentsvc-sandbox"
"""Over TLS, browsers let no other host set a cookie with this prefix."""
_FETCH_SITE: Final = "Sec-Fetch-Site"
_FETCH_MODE: Final = "Sec-Fetch-Mode"
_FETCH_DEST: Final = "Sec-Fetch-Dest"
_FRAMES: Final = frozenset({"frame", "iframe"})
_PAGES: Final = _FRAMES | {"document"}
_OWN_SITES: Final = frozenset({"same-origin", "none"})


def make_cookie(origin: WorkOrigin, key: str) -> str:
    """Return a Set-Cookie value with the token of an origin, limited to its host."""
    name, more = (_SECURE_NAME, "; Secure") if _is_secure(origin) else (_NAME, "")
    return f"{name}={port_token(origin, key)}; Path=/; HttpOnly; SameSite=Strict{more}"


def port_token(origin: WorkOrigin, key: str) -> str:
    """Derive the token of an origin from the session key of its sandbox."""
    name = f"{origin.scheme}://{name_of(origin.host)}:{_number(origin.host)}"
    return hmac.new(key.encode(), name.encode(), "sha256").hexdigest()


def cookie_token(request: web.Request, origin: WorkOrigin) -> str:
    """Return the token in the cookie; empty unless the request is same-origin."""
    token = request.cookies.get(_SECURE_NAME if _is_secure(origin) else _NAME, "")
    return token if token.isascii() and _is_same_origin(request, origin) else ""


def may_show_editor_key(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether to accept the editor's own cookie, which browsers also send for other origins' pages.

    Accepted for same-origin requests and for navigation to the editor.
    """
    is_visit = request.method == hdrs.METH_GET and request.headers.get(_FETCH_MODE) == "navigate"
    return is_visit or _is_same_origin(request, origin)


def is_page(request: web.Request) -> bool:
    """Whether a browser requests a document, in a window or in a frame."""
    return request.headers.get(_FETCH_DEST) in _PAGES


def is_framed(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether the port is shown in a frame and can set cookies with `SameSite=None; Secure`."""
    is_framed = request.headers.get(_FETCH_DEST) in _FRAMES
    return is_framed and (_is_secure(origin) or name_of(origin.host).endswith(f".{LOCAL_DOMAIN}"))


def _is_secure(origin: WorkOrigin) -> bool:
    return origin.scheme == "https"


def _is_same_origin(request: web.Request, origin: WorkOrigin) -> bool:
    """Whether a request is same-origin; all sandboxes are same-site, so that is not enough."""
    sender = request.headers.get(hdrs.ORIGIN)
    if sender is not None and not _equals_origin(sender, origin):
        return False
    return request.headers.get(_FETCH_SITE, "none") in _OWN_SITES


def _equals_origin(sender: str, origin: WorkOrigin) -> bool:
    _, _, host = sender.partition("://")
    return name_of(host) == name_of(origin.host) and _number(host) == _number(origin.host)


def _number(host: str) -> str:
    return host.rpartition(":")[2] if ":" in host else ""
