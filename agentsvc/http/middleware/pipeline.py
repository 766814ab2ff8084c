"""The middleware pipeline of every request: request id, access log, errors, authentication.

The order is that of the functions: `trace_request`, `answer`, `_check_sender`, the interceptors
(the gateway), `_check_caller`, the handler. Only this module converts exceptions to responses;
`authentication` identifies callers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final, NoReturn

from aiohttp import hdrs, web
from multidict import istr

from agentsvc.base import CURRENT_REQUEST, Throttle, errors, log_fast, monotonic, new_id, now
from agentsvc.config import Config
from agentsvc.http import keys
from agentsvc.http.middleware.audit import SAFE_METHODS, write_audit_entry
from agentsvc.http.middleware.authentication import has_good_key, identify
from agentsvc.http.middleware.host_names import known_hosts
from agentsvc.http.middleware.idempotency import HEADER as IDEMPOTENCY_HEADER
from agentsvc.http.middleware.idempotency import answer_once
from agentsvc.http.middleware.rate_limit import (
    LIMITS,
    STATE,
    Budget,
    RateLimits,
    SandboxAllowance,
    enforce,
    is_flood,
)
from agentsvc.http.request_problems import with_all_problems
from agentsvc.http.routes import Handler, Scope, check_scope, end_head, is_page, route_of
from agentsvc.http.server.connections import count_request, is_last, send_continue, show_key
from agentsvc.http.server.delayed_refusal import (
    IS_DELAYED,
    LINES_A_MINUTE,
    LOG_THROTTLE,
    REFUSAL_DELAY,
    RefusalDelay,
)
from agentsvc.http.server.metrics_registry import Refusal, RequestMetrics
from agentsvc.http.server.time_limit import TimeLimit
from agentsvc.http.urls import address_of, client_of, is_from_proxy
from agentsvc.http.wire import (
    BODY_LIMIT,
    CALLBACK_BODY_BYTES,
    ON_MORE_BODY,
    OnMoreBody,
    error_body,
    raw_json_response,
)

log = logging.getLogger(__name__)

type Interceptor = Callable[[web.Request], Awaitable[web.StreamResponse | None] | None]
"""Responds to a request in place of its handler, or returns None to leave it to the handler."""


class Activity:
    """Times of the server's start and of its last request."""

    def __init__(self) -> None:
        self.started_at = now()
        self._began = self._last = monotonic()
        self._cpu_began = time.process_time()

    def note(self) -> None:
        """Record the time of a request."""
        self._last = monotonic()

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the start of the server."""
        return monotonic() - self._began

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds used since the start."""
        return time.process_time() - self._cpu_began

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request, without health checks."""
        return monotonic() - self._last


ACTIVITY: Final[web.AppKey[Activity]] = web.AppKey("activity", Activity)

_KNOWS_HOST: Final[web.AppKey[Callable[[str], bool]]] = web.AppKey("knows_host")
_INTERCEPTORS: Final[web.AppKey[tuple[Interceptor, ...]]] = web.AppKey("before_callers")
_TIME_LIMIT: Final[web.AppKey[TimeLimit]] = web.AppKey("time_limit", TimeLimit)
_CORS_ORIGINS: Final[web.AppKey[frozenset[str]]] = web.AppKey("cors_origins")
_ERROR_CODE: Final[web.RequestKey[str]] = web.RequestKey("error_code", str)
_HAS_BEGUN: Final[web.RequestKey[bool]] = web.RequestKey("has_begun", bool)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEALTH_PATHS: Final = frozenset({"/alive", "/health", "/ready"})
_PAGE_CHALLENGE: Final = 'Basic realm="agentsvc: any name, and an API key", charset="UTF-8"'
_CHALLENGE: Final = 'Bearer realm="agentsvc"'
_EXPOSED: Final = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
_REQUEST_ID_HEADER: Final = istr("X-Request-Id")
_ALWAYS: Final = (
    (hdrs.CACHE_CONTROL, "no-cache, no-store, must-revalidate, max-age=0"),
    (hdrs.PRAGMA, "no-cache"),
    (hdrs.EXPIRES, "0"),
    (istr("X-Content-Type-Options"), "nosniff"),
)
_MAX_HOSTS: Final = 256


def install(
    app: web.Application, config: Config, *, before_callers: Sequence[Interceptor] = ()
) -> None:
    """Install the middleware in an application.

    The interceptors in `before_callers` run before authentication and may respond to a request.
    """
    server = config.server
    app[ACTIVITY] = Activity()
    app[keys.MEASURES] = RequestMetrics()
    app[LIMITS] = RateLimits(config.limits)
    # Delayed responses may occupy up to a quarter of the connections.
    app[REFUSAL_DELAY] = RefusalDelay(server.max_connections // 4)
    app[LOG_THROTTLE] = Throttle(LINES_A_MINUTE)
    app[_CORS_ORIGINS] = frozenset(server.cors_origins)
    app[_TIME_LIMIT] = TimeLimit(server.request_seconds)
    knows: Callable[[str], bool] = lru_cache(maxsize=_MAX_HOSTS)(known_hosts(config).knows)
    app[_KNOWS_HOST] = knows
    app[_INTERCEPTORS] = tuple(before_callers)
    app.middlewares.extend((trace_request, answer))
    app.on_response_prepare.append(_add_headers)


@web.middleware
async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Assign a request id, measure the request, and write its access log line at the end."""
    request_id = new_id()
    request[keys.REQUEST_ID] = request_id
    # Set explicitly, because look-ups of missing keys are slower.
    request[keys.IS_FORWARDED] = False
    CURRENT_REQUEST.set(request_id)
    if (task := asyncio.current_task()) is not None:
        # Log lines about the task then name its request.
        task.set_name(f"{request.method} {request.path} (request {request_id})")
    app = request.app
    if request.path not in _HEALTH_PATHS:
        app[ACTIVITY].note()
    measures = app[keys.MEASURES]
    measures.running += 1
    began = monotonic()
    status = 0
    try:
        response = await handler(request)
        status = response.status
    except web.HTTPException as exc:
        status = exc.status
        raise
    finally:
        measures.running -= 1
        _record(request, status, monotonic() - began)
    is_held = status >= HTTPStatus.BAD_REQUEST and request.get(IS_DELAYED, False)
    if is_held and not response.prepared and not await app[REFUSAL_DELAY].hold():
        # Too many responses are delayed already: close the connection instead.
        response.force_close()
    return response


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the handler's response, or convert its exception to an error response."""
    is_change = request.method not in SAFE_METHODS
    try:
        response = await _check_sender(request, handler)
    except Exception as exc:  # noqa: BLE001  # the last resort: unexpected exceptions are bugs
        try:
            response = _response_to(request, exc)
        except ConnectionError:
            if is_change:
                await write_audit_entry(request, None)
            raise
    if is_change:
        await write_audit_entry(request, response)
    if request.body_exists:
        _close_on_unread_body(request, response)
    return response


async def _check_sender(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the Host header, answer preflights, and let interceptors respond."""
    app = request.app
    is_proxied = is_from_proxy(request)
    count_request(request, address_of(request) if is_proxied else None)
    host = request.headers.get(hdrs.HOST, "")
    if host and not is_proxied and not app[_KNOWS_HOST](host):
        await _check_unknown_host(request, host)
    if request.method == hdrs.METH_OPTIONS and _is_preflight(request):
        return _answer_preflight(request)
    for intercept in app[_INTERCEPTORS]:
        answering = intercept(request)
        if answering is not None and (response := await answering) is not None:
            return response
    return await _check_caller(request, handler)


async def _check_caller(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Authenticate and authorize the caller for the route's scope, and call the handler."""
    route = route_of(request)
    if route is None:
        failure = request.match_info.http_exception
        if request.method == hdrs.METH_OPTIONS and isinstance(failure, web.HTTPMethodNotAllowed):
            return _answer_options(failure)
        if failure is None:
            send_continue(request)
        return await handler(request)
    if route.scope is not Scope.OPEN:
        await identify(request, route.scope)
        if keys.PRINCIPAL in request:
            caller = request[keys.PRINCIPAL]
            show_key(request, user_id=caller.user_id)
            enforce(request, request.app[LIMITS].keys.take(caller.key_id))
            check_scope(route.scope, caller)
        else:
            await _apply_sandbox_limits(request)
    if IDEMPOTENCY_HEADER in request.headers:
        handler = partial(answer_once, handler=handler)
    with nullcontext() if route.is_stream else request.app[_TIME_LIMIT]:
        send_continue(request)
        try:
            return await handler(request)
        except errors.InvalidRequest as exc:
            raise await with_all_problems(request, exc) from exc.__cause__
        except errors.NotFound as exc:
            await _check_still_authenticated(request, exc)
            raise


async def _check_still_authenticated(request: web.Request, exc: errors.NotFound) -> None:
    """Raise NotAuthenticated if the caller's key or account was deleted during the request."""
    caller = request.get(keys.PRINCIPAL)
    if caller is not None and await request.app[keys.OPEN_CONNECTIONS].find(caller) is None:
        raise errors.NotAuthenticated from exc


def _close_on_unread_body(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after a response if the rest of the body is malformed or compressed."""
    body = request.content
    if body.exception() is not None:
        response.force_close()
    elif hdrs.CONTENT_ENCODING in request.headers and not body.is_eof():
        response.force_close()
        # aiohttp (3.14.5) would decompress the rest, which blocks the event loop.
        if request.transport is not None:
            request.transport.pause_reading()
        body.feed_eof()


async def _check_unknown_host(request: web.Request, host: str) -> None:
    """Raise UnknownHost for an unknown host name unless the request has a valid key.

    Health checks are exempt. Trusted proxies check host names themselves. The key must be valid,
    since a page at that host name can send any text as a key.
    """
    if request.path not in _HEALTH_PATHS and not await has_good_key(request):
        raise errors.UnknownHost(
            "The Host header is not a name of this server; set `server.public_url` or"
            " `server.allowed_hosts` to allow it",
            detail=host,
        )


def _is_preflight(request: web.Request) -> bool:
    """Whether a request is a CORS preflight of an allowed origin."""
    return bool(
        request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD) and _allowed_origin(request)
    )


def _answer_preflight(request: web.Request) -> web.Response:
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(
            hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*"
        ),
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    return web.Response(status=204, headers=headers)


def _answer_options(failure: web.HTTPMethodNotAllowed) -> web.Response:
    """Respond to OPTIONS with the allowed methods of a path."""
    allowed = sorted({*failure.allowed_methods, hdrs.METH_OPTIONS})
    return web.Response(status=204, headers={hdrs.ALLOW: ", ".join(allowed)})


def _response_to(request: web.Request, exc: Exception) -> web.Response:
    """Convert an exception to an error response.

    Raises redirections again, and ConnectionError if the response has begun or the client has
    disconnected.
    """
    if isinstance(exc, errors.NotAuthenticated | errors.UnknownHost):
        exc = _count_unauthenticated(request) or exc
    elif isinstance(exc, web.HTTPException) and exc.status < HTTPStatus.BAD_REQUEST:
        raise exc
    has_gone = isinstance(exc, ConnectionError) and request.transport is None
    if request.get(_HAS_BEGUN, False) or has_gone:
        _abort_response(request, exc)
    return _error_response(request, exc)


async def _apply_sandbox_limits(request: web.Request) -> None:
    """Count a request and its body for the limits of its sandbox; waits if they are exceeded."""
    sandbox_id = _sandbox_of(request)
    if not sandbox_id:
        return
    show_key(request, sandbox_id=sandbox_id)
    if keys.PASS not in request:
        # Sandboxes send larger bodies than users.
        request[BODY_LIMIT] = max(request.client_max_size, CALLBACK_BODY_BYTES)
    allowance = SandboxAllowance(request, sandbox_id)
    await allowance.spend(Budget.REQUESTS, 1)
    if keys.SANDBOX in request:
        # Wait before the body is read, so that it does not occupy memory meanwhile.
        announced = min(request.content_length or 0, CALLBACK_BODY_BYTES)
        await allowance.spend(Budget.BYTES, announced)
        wait: OnMoreBody = partial(allowance.spend, Budget.BYTES)
        request[ON_MORE_BODY] = wait


def _sandbox_of(request: web.Request) -> str:
    """Return the id of the authenticated sandbox, or an empty string."""
    if keys.SANDBOX in request:
        return request[keys.SANDBOX].id
    if keys.PASS in request:
        return request[keys.PASS].sandbox_id
    return request[keys.MODEL_TOKEN].sandbox_id if keys.MODEL_TOKEN in request else ""


def _count_unauthenticated(request: web.Request) -> errors.TooManyRequests | None:
    """Count an unauthenticated request; returns an error if its address has sent too many."""
    if keys.PRINCIPAL in request:
        return None
    state = request.app[LIMITS].addresses.take(client_of(request))
    request[IS_DELAYED] = state is not None and is_flood(state)
    try:
        enforce(request, state)
    except errors.TooManyRequests as exc:
        return exc
    return None


def _error_response(request: web.Request, failure: Exception) -> web.Response:
    error = failure if isinstance(failure, errors.AgentsvcError) else _to_error(failure)
    request[_ERROR_CODE] = error.code
    reason = _refusal_reason(request, error)
    if isinstance(error, errors.TooManyRequests) or reason is Refusal.SANDBOX_QUOTA:
        request[IS_DELAYED] = True
    _log_failure(error, failure)
    if reason is not None:
        request.app[keys.MEASURES].refuse(reason)
        _log_refusal(request, error, reason)
    body = error_body(error, request[keys.REQUEST_ID])
    response = raw_json_response(body, status=error.status)
    if error.retryable:
        response.headers[hdrs.RETRY_AFTER] = str(error.retry_after_seconds)
    if isinstance(error, errors.MalformedBody | errors.BodyTooLarge):
        # The rest of the body is not read, so the start of the next request is unknown.
        response.force_close()
    if isinstance(error, errors.MethodNotAllowed):
        response.headers[hdrs.ALLOW] = ", ".join(error.allowed)
    return response


def _refusal_reason(request: web.Request, error: errors.AgentsvcError) -> Refusal | None:
    """Return the reason to count an error as a refusal, or None for other errors."""
    if keys.REFUSAL_REASON in request:
        return request[keys.REFUSAL_REASON]
    match error:
        case errors.UnknownHost():
            return Refusal.HOST
        case errors.NotAuthenticated():
            route = route_of(request)
            # On open routes, only logins raise NotAuthenticated.
            is_login = route is not None and route.scope is Scope.OPEN
            return Refusal.LOGIN if is_login else Refusal.KEY
        case errors.QuotaExceeded() if keys.SANDBOX in request:
            return Refusal.SANDBOX_QUOTA
        case errors.TooManyRequests():
            return Refusal.OTHER_RATE
        case _:
            return None


def _to_error(failure: Exception) -> errors.AgentsvcError:
    """Convert an exception of aiohttp to an error; any other one is an internal error."""
    match failure:
        case web.HTTPNotFound():
            return errors.NotFound()
        case web.HTTPMethodNotAllowed():
            return errors.MethodNotAllowed(allowed={*failure.allowed_methods, hdrs.METH_OPTIONS})
        case web.HTTPRequestEntityTooLarge():
            return errors.BodyTooLarge("The body is too large")
        case web.HTTPClientError():
            return errors.BadRequest(failure.reason)
        case _:
            return errors.AgentsvcError("Internal Server Error")


def _log_failure(error: errors.AgentsvcError, failure: Exception) -> None:
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if is_ours and error is not failure:
        log.error("request failed with an unexpected error", exc_info=failure)
    elif error.detail:
        level = logging.WARNING if is_ours else logging.DEBUG
        log.log(level, "request refused", extra={"code": error.code, "reason": error.detail})


def _log_refusal(request: web.Request, error: errors.AgentsvcError, reason: Refusal) -> None:
    """Log the refusal of a sandbox's request, at most once a minute per sandbox."""
    sandbox_id = _sandbox_of(request)
    if sandbox_id and request.app[LOG_THROTTLE].admits(sandbox_id):
        extra = {"sandbox_id": sandbox_id, "why": str(reason), "reason": error.message}
        log.warning("request of a sandbox refused, its limit is reached", extra=extra)


def _abort_response(request: web.Request, failure: Exception) -> NoReturn:
    """Abort the connection if the client has disconnected or the response has begun."""
    if isinstance(failure, errors.AgentsvcError):
        extra = {"code": failure.code, "reason": failure.message}
        log.warning("response aborted", extra=extra)
    elif not isinstance(failure, ConnectionError):
        log.error("response aborted", exc_info=failure)
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the response was aborted") from failure


def _record(request: web.Request, status: int, seconds: float) -> None:
    """Measure a finished request by its route, and write its access log line.

    Unknown paths and methods share one label each, since clients can invent any number of them.
    """
    app, route = request.app, route_of(request)
    is_forwarded = request.get(keys.IS_FORWARDED, False)
    name = "sandbox" if is_forwarded else "none"
    app[keys.MEASURES].note(
        method=request.method if route or request.method in _METHODS else "other",
        route=name if route is None else route.path,
        status=status,
        seconds=None if is_forwarded or (route is not None and route.is_stream) else seconds,
    )
    is_refused = status >= HTTPStatus.BAD_REQUEST
    is_quiet = request.path in _HEALTH_PATHS or (
        is_refused
        and request.get(IS_DELAYED, False)
        and not app[LOG_THROTTLE].admits(client_of(request))
    )
    level = logging.DEBUG if is_quiet else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {
        "method": request.method,
        "path": request.rel_url.raw_path,
        "status": status,
        "duration_ms": round(seconds * 1000, 1),
    }
    if is_refused and _ERROR_CODE in request:
        fields["code"] = request[_ERROR_CODE]
    log_fast(log, level, "request", fields)


def _allowed_origin(request: web.Request) -> str:
    """Return the origin of a request if CORS allows it, or an empty string."""
    origin = request.headers.get(hdrs.ORIGIN, "")
    allowed = request.app[_CORS_ORIGINS]
    return origin if origin and (origin in allowed or "*" in allowed) else ""


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    if request.method == hdrs.METH_HEAD:
        end_head(request, response)
    headers = response.headers
    request[_HAS_BEGUN] = True
    headers[_REQUEST_ID_HEADER] = request.get(keys.REQUEST_ID, "")
    if STATE in request:
        headers.update(request[STATE].headers())
    if not request.get(keys.IS_FORWARDED, False):
        for name, value in _ALWAYS:
            headers.setdefault(name, value)
        if response.status == errors.NotAuthenticated.status:
            # Browsers prompt for a password if Basic is named, which only suits pages.
            challenge = _PAGE_CHALLENGE if is_page(request) else _CHALLENGE
            headers.setdefault(hdrs.WWW_AUTHENTICATE, challenge)
    if request.app[_CORS_ORIGINS]:
        headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin := _allowed_origin(request):
            headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"
            headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
    if request.get(keys.AWAITS_CONTINUE, False) or is_last(request):
        # A client that expects `100 Continue` may send its body anyway, which would then be parsed
        # as the next request.
        response.force_close()
        headers[hdrs.CONNECTION] = "close"
