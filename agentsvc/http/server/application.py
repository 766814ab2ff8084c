"""The server's runner, and responses to malformed requests.

Some requests are rejected before the application: malformed HTTP by the parser, and unknown
`Expect` headers. aiohttp responds with the offending line and logs it, but the line may hold a key.
Here they get the common error format with a fixed text, and a log line with only the kind of
problem.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import yarl
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from agentsvc.base import CURRENT_REQUEST, AgentsvcError, BadRequest, MalformedBody, new_id
from agentsvc.config import LimitsConfig, ServerConfig
from agentsvc.http.keys import AWAITS_CONTINUE, MEASURES, REQUEST_ID, SDK_VERSION, SENT_TARGET
from agentsvc.http.sdk_versions import unmark_request
from agentsvc.http.server.connection_limit import LOOPBACK, ConnectionLimit, Network
from agentsvc.http.server.connections import ClientConnection, Shared, connection_of
from agentsvc.http.server.metrics_registry import RequestMetrics
from agentsvc.http.urls import to_networks
from agentsvc.http.wire import error_body, raw_json_response

log = logging.getLogger(__name__)

_LIMITS: Final = ServerConfig()
_MAX_OF_SANDBOX: Final = LimitsConfig().connections_per_sandbox
_ACCEPTED_AT_ONCE: Final = 2
"""Connections accepted per turn of the event loop, so that existing ones are served, too."""
_BACKLOG: Final = 1024
"""Backlog of the listening socket: connections beyond it retry their handshake."""


class Runner:
    """Serves an application with connection limits.

    Requests get `grace_seconds` to finish at shutdown. `prefix` is the public path of the server,
    which a proxy may leave in place. `max_of_sandbox` limits the connections of each sandbox. `shared`
    are networks that many callers share.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        grace_seconds: float,
        prefix: str = "",
        limits: ServerConfig = _LIMITS,
        max_of_sandbox: int = _MAX_OF_SANDBOX,
        shared: Iterable[Network] = LOOPBACK,
    ) -> None:
        self.app = app
        self.addresses: list[Any] = []
        """The addresses of the listening sockets."""
        self._limits = limits
        self._limit = ConnectionLimit(
            most=limits.max_connections,
            max_of_origin=limits.max_connections_per_address,
            max_of_sandbox=max_of_sandbox,
            shared=shared,
            proxies=to_networks(limits.trusted_proxies),
        )
        self._grace_seconds = grace_seconds
        self._prefix = prefix
        self._shared: Shared | None = None
        self._listening: list[asyncio.Server] = []

    @property
    def connections(self) -> int:
        """Number of connections, without those being refused."""
        return len(self._limit)

    async def setup(self) -> None:
        """Start the application without listening."""
        runner = web.AppRunner(self.app, access_log=None)
        await runner.setup()
        plain = runner.server
        if plain is None:
            raise RuntimeError("the application did not start")
        serve, make_plain = plain.request_handler, plain.request_factory

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = connection_of(request)
            if connection is not None:
                connection.request = request
            try:
                return await serve(request)
            except web.HTTPClientError as exc:
                # Only an unknown `Expect` header is rejected before the middleware.
                return _refuse(request, BadRequest(exc.reason), exc.status, exc)
            finally:
                if connection is not None:
                    connection.request = None

        def make_request(*parts: Any) -> web.BaseRequest:
            return _normalized(make_plain(*parts), self._prefix)

        server = _Server(
            handle,
            request_factory=make_request,
            access_log=None,
            # aiohttp also closes a connection without a first request after this time.
            keepalive_timeout=self._limits.idle_seconds,
        )
        measures = self.app.get(MEASURES) or RequestMetrics()
        self._shared = Shared(server, self._limits, self._limit, measures)

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a bound socket; `cleanup` closes it."""
        shared = self._shared
        if shared is None:
            raise RuntimeError("the application was not set up")
        listening = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(shared), sock=listener, backlog=_ACCEPTED_AT_ONCE
        )
        # asyncio uses its backlog also as the number of accepts per turn; set the real one here.
        listener.listen(_BACKLOG)
        self._listening.append(listening)
        self.addresses.append(listener.getsockname())

    async def cleanup(self) -> None:
        """Stop accepting connections, let requests finish, and clean up the application."""
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            for listener in listening.sockets:
                loop.remove_reader(listener)
        # Accepted sockets get their transport and then their protocol, which can be shut down.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for listening in self._listening:
            listening.close()
        if self._shared is not None:
            for transport in self._shared.refused:
                transport.abort()
            # Let accepted connections begin their requests.
            await asyncio.sleep(0)
            self._shared.server.pre_shutdown()
            await self.app.shutdown()
            await self._shared.server.shutdown(self._grace_seconds)
        await self.app.cleanup()


class _Server(web.Server):
    """Creates the HTTP protocol of each connection."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        del options["request_factory"]
        self._protocol_options = options

    def __call__(self) -> web.RequestHandler:
        return _Handler(self, loop=asyncio.get_running_loop(), **self._protocol_options)


class _Handler(web.RequestHandler):
    """HTTP protocol of a connection, with our responses to malformed requests."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,  # it quotes the request
    ) -> web.StreamResponse:
        """Respond to a malformed request, or to a failure outside the middleware."""
        is_disconnected = isinstance(exc, ConnectionError) and request.transport is None
        if request.writer.output_size > 0 or is_disconnected:
            raise ConnectionError("the response was aborted") from exc
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            error = MalformedBody("The request is not well-formed HTTP")
            return _refuse(request, error, status, exc)
        response = _error_response(request, AgentsvcError("Internal Server Error"), status)
        log.error("request failed with an unexpected error", exc_info=exc)
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a failure; of a client's malformed body log only the kind, as errors quote it."""
        failure = kw.get("exc_info")
        if isinstance(failure, HttpProcessingError | web.RequestPayloadError):
            log.debug("remaining request body refused", extra={"problem": type(failure).__name__})
        else:
            super().log_exception(*args, **kw)


def _normalized(request: web.BaseRequest, prefix: str) -> web.BaseRequest:
    """Strip the path prefix, key suffixes and `Expect` from a request, and store them in it."""
    sent = request.raw_path
    if prefix and request.rel_url.raw_path.startswith(f"{prefix}/"):
        request = request.clone(rel_url=_without_prefix(prefix, request.rel_url))
    request, version = unmark_request(request)
    awaits_continue = False
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        # aiohttp would send `100 Continue` before the request is checked. HTTP/1.0 clients do not
        # know it.
        awaits_continue = request.version >= HttpVersion11
        headers = request.headers.copy()
        del headers[hdrs.EXPECT]
        request = request.clone(headers=headers)
    if request.raw_path != sent:
        request[SENT_TARGET] = sent
    request[AWAITS_CONTINUE] = awaits_continue
    if version is not None:
        request[SDK_VERSION] = version
    return request


def _without_prefix(prefix: str, url: yarl.URL) -> yarl.URL:
    """Remove the path prefix from a URL."""
    path = url.raw_path.removeprefix(prefix)
    return yarl.URL.build(path=path, query_string=url.raw_query_string, encoded=True)


def _refuse(
    request: web.BaseRequest, error: AgentsvcError, status: int, exc: BaseException | None
) -> web.Response:
    response = _error_response(request, error, status)
    fields = {"status": status, "code": error.code, "problem": type(exc).__name__}
    log.info("request refused", extra=fields)
    return response


def _error_response(request: web.BaseRequest, error: AgentsvcError, status: int) -> web.Response:
    request_id = request.get(REQUEST_ID) or new_id()
    request[REQUEST_ID] = request_id
    CURRENT_REQUEST.set(request_id)
    response = raw_json_response(error_body(error, request_id), status=status)
    response.headers["X-Request-Id"] = request_id
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.force_close()
    return response
