"""Authenticates requests by API key, session key or login cookie.

The only module that reads key headers.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import BasicAuth, hdrs, web
from multidict import istr

from agentsvc.accounts import Principal
from agentsvc.base import NotAuthenticated
from agentsvc.http import keys
from agentsvc.http.middleware.login_cookie import login_token
from agentsvc.http.middleware.websocket_auth import wants_socket
from agentsvc.http.routes import SERVICE_HEADER, Scope, is_page, query_keys, route_of

_SESSION_KEY: Final = istr("X-Session-API-Key")
_ACCESS_TOKEN: Final = istr("X-Access-Token")


async def identify(request: web.Request, scope: Scope) -> None:
    """Store the caller in the request; raises NotAuthenticated.

    A WebSocket without a key is left for its handler, which reads the key from the first message.
    """
    if scope is Scope.SANDBOX:
        find = request.app[keys.SANDBOXES].identify
        request[keys.SANDBOX] = await _first_valid(request, find, "Invalid session API key")
    elif scope is Scope.PASS:
        request[keys.PASS] = await _first_valid(request, request.app[keys.CALLBACKS].identify_pass)
    elif scope is Scope.MODEL:
        tokens = request.app[keys.MODEL_TOKENS]
        request[keys.MODEL_TOKEN] = await _first_valid(
            request, tokens.identify, "Invalid model token"
        )
    elif not _expects_key_message(request):
        request[keys.PRINCIPAL] = await _identify_user(request)


def keys_of(request: web.Request) -> tuple[str, ...]:
    """Return the distinct keys in a request's headers.

    A client may send a user's key in one header and a sandbox's in another.
    """
    headers = request.headers
    given = [headers.get(_SESSION_KEY, ""), headers.get(_ACCESS_TOKEN, "")]
    if hdrs.AUTHORIZATION in headers:
        scheme, _, token = headers[hdrs.AUTHORIZATION].partition(" ")
        if scheme.lower() == "bearer":
            given.insert(1, token)
    shown = [key.strip() for key in given if key and key.isascii()]
    return tuple(dict.fromkeys(filter(None, shown)))


async def find_caller(request: web.Request) -> Principal | None:
    """Return the user who calls an open route, or None without a valid key."""
    try:
        return await _identify_user(request)
    except NotAuthenticated:
        return None


async def has_good_key(request: web.Request) -> bool:
    """Whether a request has a valid key; cookies and passwords do not count: browsers add them."""
    app = request.app
    for key in dict.fromkeys((*keys_of(request), *query_keys(request), *_route_keys(request))):
        if await app[keys.SANDBOXES].find_by_key(key) is not None:
            return True
        for identify in (
            app[keys.KEYRING].identify_maker,
            app[keys.MODEL_TOKENS].identify,
            app[keys.CALLBACKS].identify_pass,
        ):
            with contextlib.suppress(NotAuthenticated):
                await identify(key)
                return True
    return False


def password_of(request: web.Request) -> tuple[str, ...]:
    """Return the password of HTTP Basic authentication, in which a browser sends a key."""
    if hdrs.AUTHORIZATION not in request.headers:
        return ()
    try:
        given = BasicAuth.decode(request.headers[hdrs.AUTHORIZATION], encoding="utf-8")
    except ValueError:
        return ()
    return (given.password,) if given.password.isascii() else ()


def _password(request: web.Request) -> tuple[str, ...]:
    """Return the password of HTTP Basic authentication, which only pages accept as a key."""
    return password_of(request) if is_page(request) else ()


def _query_keys(request: web.Request) -> list[str]:
    """Return the keys in the query if the route accepts them; queries are never logged."""
    route = route_of(request)
    takes_them = route is not None and route.takes_query_key
    return query_keys(request) if takes_them else []


def _expects_key_message(request: web.Request) -> bool:
    """Whether to expect the key in the first message of a WebSocket, as the request has none."""
    route = route_of(request)
    if route is None or not route.takes_query_key or not wants_socket(request):
        return False
    return not (keys_of(request) or _query_keys(request) or login_token(request))


def _route_keys(request: web.Request) -> tuple[str, ...]:
    """Return the key in the route's own key header."""
    route = route_of(request)
    key = request.headers.get(route.key_header, "").strip() if route and route.key_header else ""
    return (key,) if key and key.isascii() else ()


async def _identify_user(request: web.Request) -> Principal:
    keyring, route = request.app[keys.KEYRING], route_of(request)
    makes_keys = route is not None and route.key_header == SERVICE_HEADER
    for find in (keys_of, _password, _query_keys, _route_keys):
        is_maker = makes_keys and find is _route_keys
        for key in find(request):
            try:
                return await (keyring.identify_maker if is_maker else keyring.identify)(key)
            except NotAuthenticated:
                continue
    token = login_token(request)
    if not token:
        raise NotAuthenticated
    return await request.app[keys.LOGINS].identify(token)


async def _first_valid[T](
    request: web.Request, identify: Callable[[str], Awaitable[T]], *message: str
) -> T:
    """Return the identity of the first valid key in the headers; raises NotAuthenticated."""
    for key in keys_of(request):
        try:
            return await identify(key)
        except NotAuthenticated:
            continue
    raise NotAuthenticated(*message)
