"""Handlers of logins of browsers: by JSON for the console, and by the page of a login link."""

from datetime import timedelta
from typing import Annotated, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.errors import (
    BadRequest,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    TooManyRequests,
)
from agentsvc.http.keys import ADMITTED, CONFIG, LOGINS, MEASURES, PRINCIPAL
from agentsvc.http.links import address_of, links_of, origin_of
from agentsvc.http.login_cookie import expired_cookie, is_foreign, make_cookie
from agentsvc.http.measures import Refusal
from agentsvc.http.routes import FORM, HTML, JSON, LOGIN_PATH, Example, Route, Scope
from agentsvc.http.v1.forms import read_form
from agentsvc.http.v1.pages import FormPage
from agentsvc.http.wire import (
    SUCCESS,
    Success,
    Time,
    json_response,
    path_text,
    read_json,
    read_query,
)
from agentsvc.logins import Login
from agentsvc.values import Secret, to_stored

PREFIX: Final = "/api/v1/logins"

type Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class LoginOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser logs in with: an API key, or the token of a login link."""

    api_key: Text | None = None
    token: Text | None = None


class LoginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A login of a browser; `client` is what the browser says of itself."""

    id: str
    key_id: int
    client: str
    is_current: bool
    created_at: Time
    last_used_at: Time
    expires_at: Time


class LinkQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The token of the link the page is opened with."""

    token: str = ""


_ORDER = msgspec.json.Decoder(LoginOrder)


async def post_login(request: web.Request) -> web.Response:
    """POST /logins."""
    order = await read_json(request, _ORDER)
    login, token = await _begin(request, order)
    response = json_response(_from_login(login, login.id), status=201)
    _set_cookie(request, response, token)
    return response


async def get_logins(request: web.Request) -> web.Response:
    """GET /logins."""
    caller = request[PRINCIPAL]
    found = await request.app[LOGINS].list_of(caller.user_id)
    return json_response([_from_login(login, caller.login_id) for login in found])


async def delete_login(request: web.Request) -> web.Response:
    """DELETE /logins/{login_id}."""
    await request.app[LOGINS].end(request[PRINCIPAL].user_id, path_text(request, "login_id"))
    await request.app[ADMITTED].look()
    return json_response(SUCCESS)


async def delete_current_login(request: web.Request) -> web.Response:
    """DELETE /logins/current: ends the login of the request, if it has no key but one."""
    caller = request[PRINCIPAL]
    if caller.login_id is not None:
        await request.app[LOGINS].end(caller.user_id, caller.login_id)
        await request.app[ADMITTED].look()
    response = json_response(SUCCESS)
    response.headers.add(hdrs.SET_COOKIE, expired_cookie(origin_of(request)))
    return response


async def get_page(request: web.Request) -> web.Response:
    """GET /login."""
    return _page(read_query(request, LinkQuery).token, "")


async def post_page(request: web.Request) -> web.Response:
    """POST /login: what the page sends."""
    order = await read_form(request, _ORDER)
    try:
        _, token = await _begin(request, order)
    except NotAuthenticated as exc:
        request.app[MEASURES].refuse(Refusal.LOGIN)
        message = exc.message if order.token else "This API key is not valid"
        return _page("", message, status=exc.status)
    response = web.Response(status=303, content_type="text/html")
    response.headers[hdrs.LOCATION] = f"{links_of(request).base}/"
    _set_cookie(request, response, token)
    return response


async def get_style(_request: web.Request) -> web.Response:
    """GET /login.css."""
    return _PAGE.answer_style()


async def _begin(request: web.Request, order: LoginOrder) -> tuple[Login, Secret]:
    request.app[LOGINS].admit(address_of(request))
    if is_foreign(request):
        raise NotAllowed("A page of another origin cannot log a browser in")
    client = request.headers.get(hdrs.USER_AGENT, "")
    login, token = await _begin_any(request, order, client if client.isprintable() else "")
    found = await request.app[LOGINS].find_good([login.id])
    if login.id in found:
        # For the audit log, which tells who has logged in.
        request[PRINCIPAL] = found[login.id]
    return login, token


async def _begin_any(request: web.Request, order: LoginOrder, client: str) -> tuple[Login, Secret]:
    if order.api_key and not order.token:
        return await request.app[LOGINS].begin(order.api_key.strip(), client=client)
    if order.token and not order.api_key:
        return await request.app[LOGINS].begin_by_link(Secret(order.token), client=client)
    raise InvalidRequest("Input should have either `api_key` or `token`")


def _set_cookie(request: web.Request, response: web.Response, token: Secret) -> None:
    lifetime = timedelta(seconds=request.app[CONFIG].server.login_seconds)
    cookie = make_cookie(origin_of(request), token, lifetime)
    response.headers.add(hdrs.SET_COOKIE, cookie)


def _from_login(login: Login, current: str | None) -> LoginInfo:
    return LoginInfo(
        id=login.id,
        key_id=login.key_id,
        client=login.client,
        is_current=login.id == current,
        created_at=to_stored(login.created_at),
        last_used_at=to_stored(login.last_used_at),
        expires_at=to_stored(login.expires_at),
    )


_PAGE: Final = FormPage(title="Log in", style="login.css", referrer="same-origin")


def _page(token: str, message: str, *, status: int = 200) -> web.Response:
    if not token:
        return _PAGE.answer("login.html", message, status=status)
    return _PAGE.answer("login_link.html", message, status=status, token=token[:200])


ROUTES: Final = (
    Route(
        method="POST",
        path=PREFIX,
        handler=post_login,
        scope=Scope.OPEN,
        rank="P2",
        summary="Log a browser in with an API key or a login link; the answer sets a cookie",
        body=LoginOrder,
        answer=LoginInfo,
        status=201,
        errors=(NotAllowed, NotAuthenticated, TooManyRequests),
        example=Example(body={"api_key": "an API key"}),
    ),
    Route(
        method="GET",
        path=PREFIX,
        handler=get_logins,
        scope=Scope.READ,
        rank="P2",
        summary="List your logins of browsers",
        answer=list[LoginInfo],
    ),
    Route(
        method="DELETE",
        path=f"{PREFIX}/current",
        handler=delete_current_login,
        scope=Scope.READ,
        rank="P2",
        summary="Log this browser out",
        answer=Success,
        errors=(NotFound,),
    ),
    Route(
        method="DELETE",
        path=f"{PREFIX}/{{login_id}}",
        handler=delete_login,
        scope=Scope.MANAGE,
        rank="P2",
        summary="Log another browser of yours out",
        answer=Success,
        errors=(NotFound,),
    ),
    Route(
        method="GET",
        path=LOGIN_PATH,
        handler=get_page,
        scope=Scope.OPEN,
        rank="P2",
        summary="Show the page on which a browser logs in",
        query=LinkQuery,
        answer=str,
        media=HTML,
        example=Example(query={"token": "the token of a login link"}),
    ),
    Route(
        method="POST",
        path=LOGIN_PATH,
        handler=post_page,
        scope=Scope.OPEN,
        rank="P2",
        summary="Log a browser in from the page",
        body=LoginOrder,
        reads=(FORM, JSON),
        answer=str,
        status=303,
        media=HTML,
        errors=(BadRequest, NotAllowed, NotAuthenticated, TooManyRequests),
        example=Example(body={"api_key": "an API key"}),
    ),
    Route(
        method="GET",
        path=f"{LOGIN_PATH}.css",
        handler=get_style,
        scope=Scope.OPEN,
        rank="P2",
        summary="Show how that page looks",
        answer=str,
        media="text/css",
    ),
)
