"""What surrounds every request: its id and log line, its errors, its caller.

`install` puts the parts in order around an application. This is the one place where an error
becomes a response and the one that reads a key header.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import Final

from aiohttp import BasicAuth, hdrs, web
from aiohttp.typedefs import Middleware

from agentsvc.auth import Principal
from agentsvc.config import LimitsConfig
from agentsvc.conversations.grants import Grant
from agentsvc.conversations.lookups import ProviderPass
from agentsvc.errors import (
    AgentsvcError,
    BadRequest,
    BodyTooLarge,
    CapacityExceeded,
    MalformedBody,
    MethodNotAllowed,
    NotAuthenticated,
    NotFound,
    TimedOut,
    TooManyRequests,
    UnknownHost,
)
from agentsvc.http.audit import note_change
from agentsvc.http.connections import ask_for_body, is_last
from agentsvc.http.doorstep import wants_socket
from agentsvc.http.hosts import EVERY, KnownHosts
from agentsvc.http.keys import (
    AWAITS_CONTINUE,
    CONVERSATIONS,
    GRANT,
    GRANTS,
    IS_FORWARDED,
    KEYRING,
    LOGINS,
    MEASURES,
    PASS,
    PRINCIPAL,
    REQUEST_ID,
    SANDBOX,
    SANDBOXES,
)
from agentsvc.http.limits import LIMITS, STATE, Limits, enforce, is_many
from agentsvc.http.links import address_of, is_from_proxy
from agentsvc.http.login_cookie import login_token
from agentsvc.http.measures import Measures, Refusal
from agentsvc.http.patience import BENCH, IS_HELD, SELDOM, Bench, Seldom, hold_back
from agentsvc.http.repeats import answer_once
from agentsvc.http.routes import KEY_PARAMETER, Handler, Scope, check_scope, is_page, route_of
from agentsvc.http.wire import error_body
from agentsvc.logs import CURRENT_REQUEST
from agentsvc.sandboxes import Sandbox
from agentsvc.values import monotonic, new_id, now

log = logging.getLogger(__name__)


class Activity:
    """When the server started and when it last had something to do."""

    def __init__(self) -> None:
        self.started_at = now()
        self._began = self._last = monotonic()
        self._cpu_began = time.process_time()

    def note(self) -> None:
        """Remember that a request came."""
        self._last = monotonic()

    @property
    def uptime_seconds(self) -> float:
        """How long the server has run."""
        return monotonic() - self._began

    @property
    def cpu_seconds(self) -> float:
        """How much of a processor's time was used since."""
        return time.process_time() - self._cpu_began

    @property
    def idle_seconds(self) -> float:
        """How long no request has come, health checks aside."""
        return monotonic() - self._last


ACTIVITY: Final[web.AppKey[Activity]] = web.AppKey("activity", Activity)

_KNOWN_HOSTS: Final[web.AppKey[KnownHosts]] = web.AppKey("known_hosts", KnownHosts)
_REQUEST_SECONDS: Final[web.AppKey[float]] = web.AppKey("request_seconds", float)
_CORS_ORIGINS: Final[web.AppKey[frozenset[str]]] = web.AppKey("cors_origins")
_ERROR_CODE: Final[web.RequestKey[str]] = web.RequestKey("error_code", str)
_HAS_BEGUN: Final[web.RequestKey[bool]] = web.RequestKey("has_begun", bool)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_EVERY_HOST: Final = KnownHosts(names=frozenset({EVERY}), domains=frozenset())
_HEALTH_PATHS: Final = frozenset({"/alive", "/health", "/ready"})
_RATES: Final = {"key": Refusal.KEY_RATE, "address": Refusal.ADDRESS_RATE}
_CHALLENGE: Final = 'Basic realm="agentsvc: any name, and an API key", charset="UTF-8"'
_EXPOSED: Final = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
_ALWAYS: Final = {
    "Cache-Control": "no-cache, no-store, must-revalidate, max-age=0",
    "Pragma": "no-cache",
    "Expires": "0",
    "X-Content-Type-Options": "nosniff",
}


_MOST_HELD: Final = 250
_NO_LIMITS: Final = LimitsConfig(requests_per_minute=0, refused_per_minute=0)


def install(
    app: web.Application,
    *,
    cors_origins: Collection[str] = (),
    request_seconds: float = 120.0,
    hosts: KnownHosts = _EVERY_HOST,
    before_callers: Sequence[Middleware] = (),
    limits: LimitsConfig = _NO_LIMITS,
    most_held: int = _MOST_HELD,
) -> None:
    """Surround the application; `*` among the origins stands for every one.

    `before_callers` see a request before it is asked for its key. `most_held` answers to those who
    are turned away may be kept back at a time.
    """
    app[ACTIVITY] = Activity()
    app[MEASURES] = Measures()
    app[LIMITS] = Limits(limits)
    app[BENCH], app[SELDOM] = Bench(most_held), Seldom()
    app[_CORS_ORIGINS] = frozenset(cors_origins)
    app[_REQUEST_SECONDS] = request_seconds
    app[_KNOWN_HOSTS] = hosts
    app.middlewares.extend((hold_back, trace_request, close_on_bad_body, note_change))
    app.middlewares.extend((map_errors, check_host, answer_preflight))
    app.middlewares.extend((*before_callers, authenticate, limit_time, continue_body))
    app.middlewares.append(answer_once)
    app.on_response_prepare.extend((_add_headers, _close_if_last))


@web.middleware
async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id and write one access line when it is over."""
    request[REQUEST_ID] = new_id()
    CURRENT_REQUEST.set(request[REQUEST_ID])
    if request.path not in _HEALTH_PATHS:
        request.app[ACTIVITY].note()
    began = monotonic()
    status = 0
    request.app[MEASURES].running += 1
    try:
        response = await handler(request)
        status = response.status
    finally:
        _measure(request, status, monotonic() - began)
        _write_access_line(request, status, round((monotonic() - began) * 1000, 1))
    return response


@web.middleware
async def close_on_bad_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Say that the connection ends, where a body nobody read may not be what its headers say."""
    response = await handler(request)
    body = request.content
    is_coded = hdrs.CONTENT_ENCODING in request.headers
    is_bad = body.exception() is not None or (is_coded and not body.is_eof())
    if is_bad and not response.prepared:
        response.force_close()
    return response


@web.middleware
async def map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever is raised into a response of the one error shape."""
    try:
        return await handler(request)
    except NotAuthenticated as exc:
        failure: Exception = _count_stranger(request) or exc
    except AgentsvcError as exc:
        failure = exc
    except web.HTTPException as exc:
        if exc.status < web.HTTPBadRequest.status_code:
            raise
        failure = exc
    except Exception as exc:  # noqa: BLE001  # the last resort: whatever escapes is a bug
        failure = exc
    has_gone = isinstance(failure, ConnectionError) and request.transport is None
    if request.get(_HAS_BEGUN, False) or has_gone:
        return _break_off(request, failure)
    return _answer(request, failure)


@web.middleware
async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer nobody without a key under a name that is not the server's; raises UnknownHost.

    That somebody is alive is told to whoever asks. A trusted proxy decides for itself which names
    it passes on.
    """
    host = request.headers.get(hdrs.HOST, "")
    is_known = not host or request.app[_KNOWN_HOSTS].knows(host) or is_from_proxy(request)
    if not is_known and request.path not in _HEALTH_PATHS and not _shows_key(request):
        raise UnknownHost(
            "The server does not go by this name; `server.public_url` or `server.allowed_hosts`"
            " in its configuration can name it",
            detail=host,
        )
    return await handler(request)


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer the question a browser asks before a request from another origin."""
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
    if request.method != hdrs.METH_OPTIONS or not wanted or not _allowed_origin(request):
        return await handler(request)
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(
            hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*"
        ),
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    return web.Response(status=204, headers=headers)


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Attach who is calling, as the scope of the route demands; raises NotAuthenticated."""
    route = route_of(request)
    scope = Scope.OPEN if route is None else route.scope
    if scope is Scope.OPEN:
        return await handler(request)
    await _identify(request, scope)
    if PRINCIPAL in request:
        enforce(request, request.app[LIMITS].keys.take(request[PRINCIPAL].key_id))
        check_scope(scope, request[PRINCIPAL])
    return await handler(request)


def _count_stranger(request: web.Request) -> TooManyRequests | None:
    """Count a request without a good key; return what to answer if its address sends too many."""
    if PRINCIPAL in request:
        return None
    state = request.app[LIMITS].addresses.take(address_of(request))
    request[IS_HELD] = state is not None and is_many(state)
    try:
        enforce(request, state)
    except TooManyRequests as exc:
        return exc
    return None


async def _identify(request: web.Request, scope: Scope) -> None:
    """Attach who is calling, if that has to be known yet; raises NotAuthenticated."""
    if scope is Scope.SANDBOX:
        request[SANDBOX] = await _identify_sandbox(request)
    elif scope is Scope.PASS:
        request[PASS] = await _identify_pass(request)
    elif scope is Scope.MODEL:
        request[GRANT] = await _identify_grant(request)
    elif not _shows_key_later(request):
        request[PRINCIPAL] = await _identify_user(request)


@web.middleware
async def limit_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """End what takes too long, streams aside; raises TimedOut."""
    route = route_of(request)
    if route is None or route.is_stream:
        return await handler(request)
    limit = asyncio.timeout(request.app[_REQUEST_SECONDS])
    try:
        async with limit:
            return await handler(request)
    except TimeoutError as exc:
        if limit.expired():
            raise TimedOut("The request took too long") from exc
        raise


@web.middleware
async def continue_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell a client that waits for it to send its body, now that it may."""
    if request.match_info.http_exception is None:
        ask_for_body(request)
    return await handler(request)


def keys_of(request: web.Request) -> tuple[str, ...]:
    """Return the keys a request carries, in whichever header, each once.

    A client may send a user's key in one header and a sandbox's in another.
    """
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    given = (
        request.headers.get("X-Session-API-Key", ""),
        token if scheme.lower() == "bearer" else "",
        request.headers.get("X-Access-Token", ""),
    )
    stripped = (key.strip() for key in given)
    return tuple(dict.fromkeys(key for key in stripped if key and key.isascii()))


def _shows_key(request: web.Request) -> bool:
    """Whether a request has a key that no browser adds by itself."""
    return bool(keys_of(request) or request.query.get(KEY_PARAMETER))


def password_of(request: web.Request) -> tuple[str, ...]:
    """Return the key a browser sends as a password, once a page has asked it for one."""
    try:
        given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
    except ValueError:
        return ()
    return (given.password,) if given.password.isascii() else ()


def _password(request: web.Request) -> tuple[str, ...]:
    """Return the key a browser sends as a password, which counts on pages only."""
    return password_of(request) if is_page(request) else ()


def _query_keys(request: web.Request) -> list[str]:
    """Return the keys in the query, which count where the route says so; they are never logged."""
    route = route_of(request)
    takes_them = route is not None and route.takes_query_key
    return request.query.getall(KEY_PARAMETER, []) if takes_them else []


def _shows_key_later(request: web.Request) -> bool:
    """Whether the key may be the first message of a WebSocket, since there is none yet."""
    route = route_of(request)
    takes_them = route is not None and route.takes_query_key and wants_socket(request)
    is_shown = keys_of(request) or _query_keys(request) or login_token(request)
    return takes_them and not is_shown


def _own_keys(request: web.Request) -> tuple[str, ...]:
    """Return the key in the header that the route has for it."""
    route = route_of(request)
    key = request.headers.get(route.key_header, "").strip() if route and route.key_header else ""
    return (key,) if key and key.isascii() else ()


async def _identify_user(request: web.Request) -> Principal:
    for key in (*keys_of(request), *_password(request), *_query_keys(request), *_own_keys(request)):
        try:
            return await request.app[KEYRING].identify(key)
        except NotAuthenticated:
            continue
    token = login_token(request)
    if not token:
        raise NotAuthenticated
    return await request.app[LOGINS].identify(token)


async def _identify_sandbox(request: web.Request) -> Sandbox:
    for key in keys_of(request):
        try:
            return await request.app[SANDBOXES].identify(key)
        except NotAuthenticated:
            continue
    raise NotAuthenticated("Invalid session API key")


async def _identify_pass(request: web.Request) -> ProviderPass:
    for key in keys_of(request):
        try:
            return await request.app[CONVERSATIONS].reports.identify_pass(key)
        except NotAuthenticated:
            continue
    raise NotAuthenticated


async def _identify_grant(request: web.Request) -> Grant:
    for key in keys_of(request):
        try:
            return await request.app[GRANTS].identify(key)
        except NotAuthenticated:
            continue
    raise NotAuthenticated("Invalid model token")


def _answer(request: web.Request, failure: Exception) -> web.Response:
    error = failure if isinstance(failure, AgentsvcError) else _foreseen(failure)
    request[_ERROR_CODE] = error.code
    if _is_flood(request, error):
        request[IS_HELD] = True
    _write_failure(error, failure)
    reason = _refusal_of(request, error)
    if reason is not None:
        request.app[MEASURES].refuse(reason)
    response = web.Response(
        body=error_body(error, request[REQUEST_ID]),
        status=error.status,
        content_type="application/json",
    )
    if error.retryable:
        response.headers[hdrs.RETRY_AFTER] = str(error.retry_after_seconds)
    if isinstance(error, MalformedBody | BodyTooLarge):
        # What is left of the body is of no use, and may hide where the next request begins.
        response.force_close()
    if isinstance(error, NotAuthenticated) and is_page(request):
        response.headers[hdrs.WWW_AUTHENTICATE] = _CHALLENGE
    if isinstance(failure, web.HTTPMethodNotAllowed):
        response.headers[hdrs.ALLOW] = failure.headers[hdrs.ALLOW]
    return response


def _is_flood(request: web.Request, error: AgentsvcError) -> bool:
    """Whether a caller that is turned away has come too often."""
    is_crowd = isinstance(error, CapacityExceeded) and wants_socket(request)
    return is_crowd or isinstance(error, TooManyRequests)


def _refusal_of(request: web.Request, error: AgentsvcError) -> Refusal | None:
    """Return why a caller was turned away, if that is what an error says."""
    match error:
        case UnknownHost():
            return Refusal.HOST
        case NotAuthenticated():
            route = route_of(request)
            # Where no key is asked for, what was not good was a login.
            is_login = route is not None and route.scope is Scope.OPEN
            return Refusal.LOGIN if is_login else Refusal.KEY
        case TooManyRequests():
            state = request.get(STATE)
            is_over = state is not None and state.retry_seconds > 0
            return _RATES[state.name] if state and is_over else Refusal.OTHER_RATE
        case _:
            return None


def _foreseen(failure: Exception) -> AgentsvcError:
    """Return the error class for what aiohttp raised; a bug is an internal error."""
    match failure:
        case web.HTTPNotFound():
            return NotFound()
        case web.HTTPMethodNotAllowed():
            return MethodNotAllowed("Method Not Allowed")
        case web.HTTPRequestEntityTooLarge():
            return BodyTooLarge("The body is too large")
        case web.HTTPClientError():
            return BadRequest(failure.reason)
        case _:
            return AgentsvcError("Internal Server Error")


def _write_failure(error: AgentsvcError, failure: Exception) -> None:
    is_ours = error.status >= web.HTTPInternalServerError.status_code
    if is_ours and error is not failure:
        log.error("request failed on a bug", exc_info=failure)
    elif error.detail:
        level = logging.WARNING if is_ours else logging.DEBUG
        log.log(level, "request refused", extra={"code": error.code, "reason": error.detail})


def _break_off(request: web.Request, failure: Exception) -> web.StreamResponse:
    """End a connection whose client has gone, or whose response had begun: there is no other answer."""
    if not isinstance(failure, ConnectionError):
        log.error("response broke off", exc_info=failure)
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the response broke off") from failure


def _measure(request: web.Request, status: int, seconds: float) -> None:
    """Count a request by its route; whatever a client makes up is one route, and one method."""
    measures, route = request.app[MEASURES], route_of(request)
    measures.running -= 1
    is_forwarded = request.get(IS_FORWARDED, False)
    name = "sandbox" if is_forwarded else "none"
    measures.note(
        method=request.method if route or request.method in _METHODS else "other",
        route=name if route is None else route.path,
        status=status,
        seconds=None if is_forwarded or (route is not None and route.is_stream) else seconds,
    )


def _write_access_line(request: web.Request, status: int, duration_ms: float) -> None:
    is_dull = request.path in _HEALTH_PATHS or (
        request.get(IS_HELD, False) and not request.app[SELDOM].is_due(address_of(request))
    )
    level = logging.DEBUG if is_dull else logging.INFO
    extra = {
        "method": request.method,
        "path": request.rel_url.raw_path,
        "status": status,
        "duration_ms": duration_ms,
    }
    if _ERROR_CODE in request:
        extra["code"] = request[_ERROR_CODE]
    log.log(level, "request", extra=extra)


def _allowed_origin(request: web.Request) -> str:
    """Return the origin of the request if it may read the answer, else an empty text."""
    origin = request.headers.get(hdrs.ORIGIN, "")
    allowed = request.app[_CORS_ORIGINS]
    return origin if origin and (origin in allowed or "*" in allowed) else ""


async def _close_if_last(request: web.Request, response: web.StreamResponse) -> None:
    """Say that the connection ends where no other request would be taken.

    A client that waits to be told to send its body may send it all the same, and then the body
    would be taken for the next request.
    """
    if request.get(AWAITS_CONTINUE, False) or is_last(request):
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    request[_HAS_BEGUN] = True
    response.headers["X-Request-Id"] = request.get(REQUEST_ID, "")
    if STATE in request:
        response.headers.update(request[STATE].headers())
    for name, value in {} if request.get(IS_FORWARDED, False) else _ALWAYS.items():
        response.headers.setdefault(name, value)
    origin = _allowed_origin(request)
    if request.app[_CORS_ORIGINS]:
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if origin:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
