"""The two parts of a browser's login in a request: a cookie, and what the page itself sends.

Cookies know no ports: a browser sends them to every port of a host, and lets every port set them. So a
cookie alone opens nothing. The other part is in the page's own storage, which belongs to one origin, and
comes in a header or as the first message of a WebSocket. Requests that other origins make count in no
case. Where the server is below a path, so is the cookie.
"""

import re
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from agentsvc.accounts import join_parts
from agentsvc.base import Secret
from agentsvc.http.middleware.websocket_auth import wants_socket
from agentsvc.http.routes import LOGIN_HEADER
from agentsvc.http.urls import Origin, origin_of

_NAME: Final = "agentsvc-login"
_SECURE_NAME: Final = "__Secure-agentsvc-login"
_HOST_NAME: Final = "__Host-agentsvc-login"
"""Over TLS browsers let nobody else set a cookie of this name; it cannot be below a path."""
_FETCH_SITE: Final = "Sec-Fetch-Site"
_SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
_PORT_NUMBER = re.compile(r":([0-9]+)\Z")
_USUAL_PORTS: Final = {"http": 80, "https": 443}


def make_cookie(origin: Origin, token: Secret, lifetime: timedelta) -> str:
    """Return a Set-Cookie value for the cookie's part of a login."""
    return _cookie(origin, token.reveal(), round(lifetime.total_seconds()))


def expired_cookie(origin: Origin) -> str:
    """Return a Set-Cookie value that has the browser forget its login."""
    return _cookie(origin, "", 0)


def login_token(request: web.Request, *, page_part: str = "") -> str:
    """Return the token of the login that a request shows, or an empty text if it shows none.

    `page_part` is what came in the first message of a WebSocket instead of the header. What changes
    something, and a WebSocket, has to say that a page of this server asks for it.
    """
    page_part = page_part or request.headers.get(LOGIN_HEADER, "").strip()
    if not page_part or hdrs.COOKIE not in request.headers:
        return ""
    origin = origin_of(request)
    cookie = request.cookies.get(_name_of(origin), "")
    token = join_parts(cookie, page_part)
    return token if cookie and token.isascii() and _is_own(request, origin) else ""


def is_foreign(request: web.Request) -> bool:
    """Whether a browser says that a page of another origin makes a request."""
    made_by = request.headers.get(hdrs.ORIGIN)
    if made_by is not None and not _is_same(made_by, origin_of(request)):
        return True
    return request.headers.get(_FETCH_SITE, "none") not in ("same-origin", "none")


def _is_own(request: web.Request, origin: Origin) -> bool:
    if is_foreign(request):
        return False
    is_safe = request.method in _SAFE and not wants_socket(request)
    made_by = request.headers.get(hdrs.ORIGIN, "")
    is_said_own = request.headers.get(_FETCH_SITE) == "same-origin"
    return is_safe or is_said_own or _is_same(made_by, origin)


def _is_same(made_by: str, origin: Origin) -> bool:
    parts = _parts(made_by)
    return parts is not None and parts == _parts(f"{origin.scheme}://{origin.host}")


def _parts(url: str) -> tuple[str, str, int | None] | None:
    """Return what makes an origin; None for what is none, which is not the same as anything."""
    try:
        parts = urlsplit(url)
        port = parts.port or _USUAL_PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def _cookie(origin: Origin, value: str, seconds: int) -> str:
    path = f"{origin.prefix}/"
    rest = f"Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
    secure = "; Secure" if origin.scheme == "https" else ""
    return f"{_name_of(origin)}={value}; {rest}{secure}"


def _name_of(origin: Origin) -> str:
    """Return the name of the cookie; servers at several ports of a host have one each."""
    number = _PORT_NUMBER.search(origin.host)
    suffix = f"-{number.group(1)}" if number else ""
    if origin.scheme != "https":
        return _NAME + suffix
    return (_SECURE_NAME if origin.prefix else _HOST_NAME) + suffix
