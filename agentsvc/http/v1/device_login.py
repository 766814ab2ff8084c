"""Handlers of the device login (RFC 8628) for programs without a browser, and its web page."""

from typing import Annotated, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.accounts import Claim, ClaimState, DeviceLogin, Principal
from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Secret,
    SentSecret,
    ShownSecret,
    TooManyRequests,
)
from agentsvc.http.keys import DEVICES, KEYRING, PRINCIPAL
from agentsvc.http.routes import FORM, HTML, JSON, Routes, Scope, check_scope
from agentsvc.http.sdk_versions import Version, mark, unmark, version_of_login
from agentsvc.http.urls import client_of, links_of
from agentsvc.http.v1.forms import read_form
from agentsvc.http.v1.pages import answer_page, answer_style

PREFIX: Final = "/oauth/device"

type Code = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """Request that starts a device login; its fields are ignored."""


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """Device authorization response of RFC 8628; times are in seconds."""

    device_code: ShownSecret
    """Code with which the program polls `/oauth/device/token`; a secret of the program"""
    user_code: str
    """Code that the user enters on the page to identify the program"""
    verification_uri: str
    """URL of the page on which the user enters the code"""
    verification_uri_complete: str
    """URL of the same page with the code filled in"""
    expires_in: int
    """Seconds until both codes expire"""
    interval: int
    """Minimum seconds between two polls for the key"""


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Device access token request of RFC 8628."""

    device_code: Annotated[SentSecret, msgspec.Meta(min_length=1, max_length=200)]
    """The `device_code` of the authorization, at most 200 characters"""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The API key that a device login issued."""

    access_token: ShownSecret
    """API key of the program; it is returned only once"""
    token_type: str = "Bearer"  # noqa: S105  # the kind of token, not a token
    """Authentication scheme: the key is sent as `Authorization: Bearer`"""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A user's approval or denial of a device login."""

    user_code: Code
    """Code that the program showed, at most 200 characters; dashes and case are ignored"""
    approve: bool = True
    """True approves the login, false denies it"""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of an approval or denial."""

    message: str
    """Confirmation, for people"""


class CodeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the page of the device login."""

    user_code: str = ""
    """Code to fill in on the page; empty: the user types it"""


class PageForm(Decision, frozen=True, kw_only=True):
    """Form of the page of the device login."""

    api_key: Annotated[SentSecret, msgspec.Meta(min_length=1, max_length=1000)]
    """API key of the user who approves or denies the login"""


_BEGINNING = msgspec.json.Decoder(Beginning | None)
_DECISION = msgspec.json.Decoder(Decision, strict=False)
_PAGE_FORM = msgspec.json.Decoder(PageForm, strict=False)

ROUTES: Final = Routes(PREFIX, scope=Scope.OPEN)


@ROUTES.add(
    "POST",
    "/authorize",
    body=Beginning | None,
    reads=(JSON, FORM),
    errors=(BadRequest, TooManyRequests),
    example={},
)
async def post_authorize(request: web.Request) -> Authorization:
    """Start a device login.

    The first step of RFC 8628. The program shows the URL and `user_code` to its user, then polls
    `/oauth/device/token` until the user has decided.
    """
    if request.can_read_body:
        await read_form(request, _BEGINNING)
    login = await request.app[DEVICES].begin(client_of(request))
    return _from_login(login, links_of(request).base)


@ROUTES.add(
    "POST",
    "/token",
    body=TokenRequest,
    reads=(JSON, FORM),
    errors=(BadRequest, TooManyRequests),
    example={"device_code": "the code of the answer to authorize"},
)
async def post_token(request: web.Request) -> Token:
    """Poll for the API key of a device login.

    The second step of RFC 8628. Without an approval the response is a 400 with an `error`:
    `authorization_pending`, `slow_down`, `expired_token` or `access_denied`.
    """
    request.app[DEVICES].admit(client_of(request))
    try:
        asked = await read_form(request, TokenRequest)
    except (InvalidRequest, BadRequest) as exc:
        raise _refusal("invalid_request", exc.message, detail=exc.detail) from exc
    claim = await request.app[DEVICES].claim(Secret(asked.device_code))
    return _token(claim, version_of_login(request.headers.get(hdrs.USER_AGENT, "")))


@ROUTES.add(
    "POST",
    "/verify-authenticated",
    scope=Scope.MANAGE,
    body=Decision,
    reads=(JSON, FORM),
    errors=(BadRequest, Conflict, NotFound),
    example={"user_code": "WDJB-MJHT"},
)
async def post_decision(request: web.Request) -> Decided:
    """Approve or deny a device login.

    For pages and programs in which the user is already authenticated.
    """
    decision = await read_form(request, _DECISION)
    await _decide(request, request[PRINCIPAL], decision)
    return Decided(message="Device authorized" if decision.approve else "Device refused")


@ROUTES.add("GET", "/verify", str, media=HTML, example={"user_code": "WDJB-MJHT"})
async def get_page(request: web.Request, query: CodeQuery) -> web.Response:
    """Show the page on which a user approves a device login.

    The user enters the code of the program and an API key.
    """
    return _page(query.user_code, "")


@ROUTES.add(
    "POST",
    "/verify",
    str,
    body=PageForm,
    reads=(FORM, JSON),
    media=HTML,
    errors=(BadRequest, Conflict, NotAllowed, NotAuthenticated, NotFound, TooManyRequests),
    example={"user_code": "WDJB-MJHT", "api_key": "an API key"},
)
async def post_page(request: web.Request) -> web.Response:
    """Approve or deny a device login from the page.

    The form of the page; the API key in it authenticates the user.
    """
    request.app[DEVICES].admit(client_of(request))
    form = await read_form(request, _PAGE_FORM)
    key, _ = unmark(form.api_key.strip())
    try:
        caller = await request.app[KEYRING].identify(key)
        request[PRINCIPAL] = caller
        check_scope(Scope.MANAGE, caller)
        await _decide(request, caller, form)
    except AgentsvcError as exc:
        message = "This API key is not valid" if exc.status == _UNAUTHORIZED else exc.message
        return _page(form.user_code, message, status=exc.status)
    outcome = "logged in" if form.approve else "refused"
    return _page("", f"The program is {outcome}. This page can be closed")


@ROUTES.add("GET", "/verify.css", str, media="text/css")
async def get_style(_request: web.Request) -> web.Response:
    """Get the style sheet of the device login page.

    The page links to it.
    """
    return answer_style()


async def _decide(request: web.Request, caller: Principal, decision: Decision) -> None:
    if decision.approve:
        await request.app[DEVICES].approve(caller.user_id, decision.user_code)
    else:
        await request.app[DEVICES].deny(decision.user_code)


def _from_login(login: DeviceLogin, base: str) -> Authorization:
    address = f"{base}{PREFIX}/verify"
    return Authorization(
        device_code=login.device_code.reveal(),
        user_code=login.user_code,
        verification_uri=address,
        verification_uri_complete=f"{address}?user_code={login.user_code}",
        expires_in=round(login.lifetime.total_seconds()),
        interval=login.interval_seconds,
    )


def _token(claim: Claim, version: Version | None) -> Token:
    """Return the key, marked with its client's version; otherwise raise the error of RFC 8628."""
    if claim.key is not None:
        return Token(access_token=mark(claim.key.reveal(), version))
    raise _refusal(claim.state.value, _REASONS[claim.state], interval=claim.interval_seconds)


def _refusal(error: str, text: str, *, interval: int = 0, detail: str = "") -> BadRequest:
    extra: dict[str, str | int] = {"error": error, "error_description": text}
    if interval:
        extra["interval"] = interval
    return BadRequest(text, detail=detail, extra=extra)


_UNAUTHORIZED: Final = 401
_REASONS: Final = {
    ClaimState.PENDING: "The user has not approved the login yet",
    ClaimState.SLOW_DOWN: "Polled too early: wait for the interval between two polls",
    ClaimState.DENIED: "The user has denied the login",
    ClaimState.EXPIRED: "The device code has expired or is unknown: start a new login",
}


def _page(code: str, message: str, *, status: int = 200) -> web.Response:
    shown = code[:20]
    return answer_page(status, message=message, code=shown, code_or_so=shown or "CODE")
