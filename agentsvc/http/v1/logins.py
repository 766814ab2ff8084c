"""Handlers of browser logins; the login page itself belongs to the console."""

import contextlib
from datetime import timedelta
from typing import Annotated, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.accounts import Login, LoginProvider, LoginToken
from agentsvc.base import (
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Secret,
    SentSecret,
    ShownSecret,
    TooManyRequests,
    stated,
    view_of,
)
from agentsvc.http.keys import CONFIG, LOGIN_PROVIDERS, LOGINS, OPEN_CONNECTIONS, PRINCIPAL, user_of
from agentsvc.http.middleware.login_cookie import expired_cookie, is_foreign, make_cookie
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.sdk_versions import unmark
from agentsvc.http.urls import client_of, origin_of
from agentsvc.http.wire import SUCCESS, Success, Time, json_response, read_json

type Text = Annotated[SentSecret, msgspec.Meta(min_length=1, max_length=1000)]


_EITHER: Final = stated(
    oneOf=[
        {"required": [name], "properties": {name: {"type": "string"}}}
        for name in ("api_key", "token")
    ]
)


class LoginOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of a browser login: an API key, or the token of a login link."""

    api_key: Text | None = None
    """API key of the user, at most 1000 characters; null if `token` is given"""
    token: Text | None = None
    """Token of a login link, at most 1000 characters, valid for one login. Null if `api_key` is
    given"""


class LoginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A browser login; `client` is the browser's `User-Agent`."""

    id: str
    """Id of the login"""
    key_id: int
    """Number of the API key behind the login; the login ends when the key is revoked or expires"""
    client: str
    """`User-Agent` of the browser at the login"""
    is_current: bool
    """Whether the request was authenticated by this login"""
    created_at: Time
    last_used_at: Time
    """When the login was last used, accurate to a few minutes"""
    expires_at: Time
    """When the login expires and the browser has to log in again"""


class NewLogin(LoginInfo, frozen=True, kw_only=True):
    """A new login.

    It consists of a cookie and of `page_token`, which the page keeps in its own storage and sends
    as `X-Agentsvc-Login` with each request.
    """

    page_token: ShownSecret
    """Second half of the login, beside the cookie; the page keeps it in its own storage and sends
    it as `X-Agentsvc-Login`. Only this response contains it"""


class LinkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The token of a login link."""

    token: Text
    """Token of the login link, at most 1000 characters"""


class LinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a login link."""

    user_name: str
    """Name of the user that the link logs in"""


ROUTES: Final = Routes("/api/v1/logins")


@ROUTES.add(
    "POST",
    "",
    NewLogin,
    scope=Scope.OPEN,
    body=Annotated[LoginOrder, _EITHER],
    status=201,
    errors=(NotAllowed, NotAuthenticated, TooManyRequests),
    example={"api_key": "an API key"},
)
async def post_login(request: web.Request) -> web.Response:
    """Log a browser in with an API key or a login link, and set a cookie.

    For pages of this server. The cookie is one half of the login; the page keeps `page_token`, the
    other half, and sends it as `X-Agentsvc-Login`.
    """
    order = await read_json(request, LoginOrder)
    check_login(request)
    login, token = await _begin(request, order)
    await note_login(request, login)
    return answer_login(request, login, token)


def answer_login(request: web.Request, login: Login, token: LoginToken) -> web.Response:
    """Return the response to a new login: one half in the cookie, the other in the body."""
    shown = view_of(NewLogin, login, is_current=True, page_token=token.page.reveal())
    response = json_response(shown, status=201)
    lifetime = timedelta(seconds=request.app[CONFIG].server.login_seconds)
    cookie = make_cookie(origin_of(request), token.cookie, lifetime)
    response.headers.add(hdrs.SET_COOKIE, cookie)
    return response


@ROUTES.add(
    "POST",
    "/link",
    scope=Scope.OPEN,
    body=LinkOrder,
    errors=(NotAuthenticated, TooManyRequests),
    example={"token": "the token of a login link"},
)
async def post_link(request: web.Request) -> LinkInfo:
    """Get the user of a login link without using the link.

    The login page shows the name before it asks to log in; the link remains valid.
    """
    request.app[LOGINS].admit(client_of(request))
    order = await read_json(request, LinkOrder)
    return LinkInfo(user_name=await request.app[LOGINS].find_user_of_link(Secret(order.token)))


@ROUTES.add("GET", "/providers", scope=Scope.OPEN)
async def get_providers(request: web.Request) -> list[LoginProvider]:
    """List external login providers.

    For the login page; empty unless `sign_in.enabled` is set.
    """
    found = request.app.get(LOGIN_PROVIDERS)
    return list(found or ())


@ROUTES.add("GET", "")
async def get_logins(request: web.Request) -> list[LoginInfo]:
    """List your browser logins.

    Valid logins only, including the login of the request.
    """
    caller = request[PRINCIPAL]
    found = await request.app[LOGINS].list_of(caller.user_id)
    current = caller.login_id
    return [view_of(LoginInfo, login, is_current=login.id == current) for login in found]


@ROUTES.add("DELETE", "/current", Success, scope=Scope.READ)
async def delete_current_login(request: web.Request) -> web.Response:
    """Log this browser out.

    Ends the login of the request; a request with an API key has no login to end. The cookie is
    cleared in any case.
    """
    caller = request[PRINCIPAL]
    if caller.login_id is not None:
        # Another tab may have ended the login in the meantime.
        with contextlib.suppress(NotFound):
            await request.app[LOGINS].end(caller.user_id, caller.login_id)
        await request.app[OPEN_CONNECTIONS].close_revoked()
    response = json_response(SUCCESS)
    response.headers.add(hdrs.SET_COOKIE, expired_cookie(origin_of(request)))
    return response


@ROUTES.add("DELETE", "/{login_id}", scope=Scope.MANAGE, errors=(NotFound,))
async def delete_login(request: web.Request, login_id: str) -> Success:
    """Log out one of your browsers.

    The login is rejected from now on; its streams are closed.
    """
    await request.app[LOGINS].end(user_of(request), login_id)
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return SUCCESS


def check_login(request: web.Request) -> None:
    """Raise TooManyRequests or NotAllowed unless the request may attempt a login."""
    request.app[LOGINS].admit(client_of(request))
    if is_foreign(request):
        raise NotAllowed("A page of another origin cannot log a browser in")


def browser_of(request: web.Request) -> str:
    """Return the `User-Agent` of a request; empty if it is not printable."""
    client = request.headers.get(hdrs.USER_AGENT, "")
    return client if client.isprintable() else ""


async def note_login(request: web.Request, login: Login) -> None:
    """Set the principal of the request to that of a new login, for the audit log."""
    found = await request.app[LOGINS].find_good([login.id])
    if login.id in found:
        request[PRINCIPAL] = found[login.id]


async def _begin(request: web.Request, order: LoginOrder) -> tuple[Login, LoginToken]:
    client = browser_of(request)
    if order.api_key and not order.token:
        key, _ = unmark(order.api_key.strip())
        return await request.app[LOGINS].begin(key, client=client)
    if order.token and not order.api_key:
        return await request.app[LOGINS].begin_by_link(Secret(order.token), client=client)
    raise InvalidRequest("Input should have either `api_key` or `token`")
