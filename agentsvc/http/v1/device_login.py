"""Handlers of the login of programs that have no browser (RFC 8628), and its one web page."""

import html
from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.devices import Claim, ClaimState, Login
from agentsvc.errors import AgentsvcError, BadRequest
from agentsvc.http.keys import CONFIG, DEVICES, KEYRING, PRINCIPAL
from agentsvc.http.routes import Route, Scope
from agentsvc.http.v1.forms import read_form
from agentsvc.http.wire import json_response, read_query
from agentsvc.values import Secret

PREFIX: Final = "/oauth/device"

type Code = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What a program sends to start a login: nothing that is read."""


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """What a program tells its user, and how it asks for the key; times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program's question for its key."""

    device_code: Code


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a program."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105  # the kind of token, not a token


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a user decides on the login with a code; `approve` false refuses it."""

    user_code: Code
    approve: bool = True


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided."""

    message: str


class CodeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The code the page is opened with."""

    user_code: str = ""


class PageForm(msgspec.Struct, frozen=True, kw_only=True):
    """What the page sends."""

    user_code: Code
    api_key: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


_BEGINNING = msgspec.json.Decoder(Beginning | None)
_TOKEN_REQUEST = msgspec.json.Decoder(TokenRequest)
_DECISION = msgspec.json.Decoder(Decision, strict=False)
_PAGE_FORM = msgspec.json.Decoder(PageForm)


async def post_authorize(request: web.Request) -> web.Response:
    """POST /oauth/device/authorize."""
    if request.can_read_body:
        await read_form(request, _BEGINNING)
    login = await request.app[DEVICES].begin()
    return json_response(_from_login(login, request.app[CONFIG].server.public_url))


async def post_token(request: web.Request) -> web.Response:
    """POST /oauth/device/token."""
    asked = await read_form(request, _TOKEN_REQUEST)
    claim = await request.app[DEVICES].claim(Secret(asked.device_code))
    return json_response(_token(claim))


async def post_decision(request: web.Request) -> web.Response:
    """POST /oauth/device/verify-authenticated."""
    decision = await read_form(request, _DECISION)
    if decision.approve:
        await request.app[DEVICES].approve(request[PRINCIPAL].user_id, decision.user_code)
        return json_response(Decided(message="Device authorized"))
    await request.app[DEVICES].deny(decision.user_code)
    return json_response(Decided(message="Device refused"))


async def get_page(request: web.Request) -> web.Response:
    """GET /oauth/device/verify."""
    return _page(read_query(request, CodeQuery).user_code, "")


async def post_page(request: web.Request) -> web.Response:
    """POST /oauth/device/verify: what the page sends, with a key as the only proof."""
    form = await read_form(request, _PAGE_FORM)
    try:
        caller = await request.app[KEYRING].identify(form.api_key.strip())
        await request.app[DEVICES].approve(caller.user_id, form.user_code)
    except AgentsvcError as exc:
        message = "This API key is not valid" if exc.status == _UNAUTHORIZED else exc.message
        return _page(form.user_code, message, status=exc.status)
    return _page("", "The program is logged in. This page can be closed")


def _from_login(login: Login, public_url: str) -> Authorization:
    page = f"{public_url.rstrip('/')}{PREFIX}/verify"
    return Authorization(
        device_code=login.device_code.reveal(),
        user_code=login.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?user_code={login.user_code}",
        expires_in=round(login.lifetime.total_seconds()),
        interval=login.interval_seconds,
    )


def _token(claim: Claim) -> Token:
    """Return the key; raises BadRequest in the form of RFC 8628 if there is none."""
    if claim.key is not None:
        return Token(access_token=claim.key.reveal())
    text = _REASONS[claim.state]
    extra = {"error": claim.state.value, "error_description": text}
    if claim.interval_seconds:
        raise BadRequest(text, extra={**extra, "interval": claim.interval_seconds})
    raise BadRequest(text, extra=extra)


_UNAUTHORIZED: Final = 401
_REASONS: Final = {
    ClaimState.PENDING: "Nobody has confirmed the login yet",
    ClaimState.SLOW_DOWN: "The question comes too early",
    ClaimState.DENIED: "The login was refused",
    ClaimState.EXPIRED: "The device code has expired or is not known",
}

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log a program in - agentsvc</title>
</head>
<body>
<main>
<h1>Log a program in</h1>
<p role="status">{message}</p>
<p>A program asks for access to your account. Go on only if you have started it yourself and it
shows the same code.</p>
<form method="post" action="verify">
<p><label>Code <input name="user_code" value="{code}" required autocomplete="off"></label></p>
<p><label>Your API key <input name="api_key" type="password" required autocomplete="off"></label></p>
<p><button>Let it in</button></p>
</form>
<p>On the machine of the server this does the same: <code>agentsvc keys approve {code}</code></p>
</main>
</body>
</html>
"""
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def _page(code: str, message: str, *, status: int = 200) -> web.Response:
    text = _PAGE.format(code=html.escape(code[:20]), message=html.escape(message))
    return web.Response(text=text, status=status, content_type="text/html", headers=_PAGE_HEADERS)


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{PREFIX}/authorize",
        handler=post_authorize,
        scope=Scope.OPEN,
        rank="P2",
        summary="Start the login of a program",
        body=Beginning | None,
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/token",
        handler=post_token,
        scope=Scope.OPEN,
        rank="P2",
        summary="Ask for the key of a program's login",
        body=TokenRequest,
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/verify-authenticated",
        handler=post_decision,
        scope=Scope.USER,
        rank="P2",
        summary="Let a program in, or refuse it",
        body=Decision,
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/verify",
        handler=get_page,
        scope=Scope.OPEN,
        rank="P2",
        summary="Show the page on which a user lets a program in",
        query=CodeQuery,
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/verify",
        handler=post_page,
        scope=Scope.OPEN,
        rank="P2",
        summary="Let a program in from the page",
        body=PageForm,
    ),
)
