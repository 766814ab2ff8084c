"""Reads the two parts of a browser's login: a cookie, and a page token.

Cookies are not isolated by port: a browser sends them to every port of a host, and every port can
set them. So the cookie alone authorizes nothing. The page token is in the page's storage, which
belongs to one origin, and is sent in a header or as the first message of a WebSocket. A login
never authorizes a cross-origin request. If the server has a path prefix, the cookie is limited to
it.
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
"""Over TLS, browsers let no other host set a cookie with this prefix; it requires the path `/`."""
_FETCH_SITE: Final = "Sec-Fetch-Site"
_SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
_PORT_NUMBER = re.compile(r":([0-9]+)\Z")
_USUAL_PORTS: Final = {"http": 80, "https": 443}


def make_cookie(origin: Origin, token: Secret, lifetime: timedelta) -> str:
    """Return a Set-Cookie value for the cookie part of a login."""
    return _cookie(origin, token.reveal(), round(lifetime.total_seconds()))


def expired_cookie(origin: Origin) -> str:
    """Return a Set-Cookie value that deletes the login cookie."""
    return _cookie(origin, "", 0)


def login_token(request: web.Request, *, page_part: str = "") -> str:
    """Return the login token of a request, or an empty string.

    `page_part` is the page token from the first message of a WebSocket, instead of the header.
    Unsafe methods and WebSockets must prove by their headers that they are same-origin.
    """
    page_part = page_part or request.headers.get(LOGIN_HEADER, "").strip()
    if not page_part or hdrs.COOKIE not in request.headers:
        return ""
    origin = origin_of(request)
    cookie = request.cookies.get(_name_of(origin), "")
    token = join_parts(cookie, page_part)
    return token if cookie and token.isascii() and _is_same_origin(request, origin) else ""


def is_foreign(request: web.Request) -> bool:
    """Whether a browser's headers mark a request as cross-origin."""
    sender = request.headers.get(hdrs.ORIGIN)
    if sender is not None and not _equals_origin(sender, origin_of(request)):
        return True
    return request.headers.get(_FETCH_SITE, "none") not in ("same-origin", "none")


def _is_same_origin(request: web.Request, origin: Origin) -> bool:
    if is_foreign(request):
        return False
    is_safe = request.method in _SAFE and not wants_socket(request)
    sender = request.headers.get(hdrs.ORIGIN, "")
    is_marked_same = request.headers.get(_FETCH_SITE) == "same-origin"
    return is_safe or is_marked_same or _equals_origin(sender, origin)


def _equals_origin(sender: str, origin: Origin) -> bool:
    parts = _parse_origin(sender)
    return parts is not None and parts == _parse_origin(f"{origin.scheme}://{origin.host}")


def _parse_origin(url: str) -> tuple[str, str, int | None] | None:
    """Parse an origin into scheme, host and port; None if invalid, which equals no origin."""
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
    """Return the name of the cookie, which has the port: servers on one host must not share it."""
    number = _PORT_NUMBER.search(origin.host)
    suffix = f"-{number.group(1)}" if number else ""
    if origin.scheme != "https":
        return _NAME + suffix
    return (_SECURE_NAME if origin.prefix else _HOST_NAME) + suffix
