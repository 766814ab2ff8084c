"""The server's runner, and answers to requests that cannot be parsed.

Some requests are refused below the application: by the parser, since they are not HTTP, or for
an `Expect` header nobody knows. aiohttp answers and logs these with the offending line, and the
offending line may hold a key. Here they get the one error shape with a fixed text, and one log
line that names the kind of problem only.
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
"""How many connections are accepted before those that are there have their turn."""
_BACKLOG: Final = 1024
"""How many may have come that are not let in yet; those who come to more than that try again later."""


class Runner:
    """Serves an application on connections that keep the limits.

    Requests get `grace_seconds` to end at a stop. `prefix` is the path below which clients find the
    server; a proxy may leave it in place. A sandbox has at most so many connections, and many
    callers come out of `shared` networks.
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
        """Where it listens."""
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
        """How many connections there are, without those that are being refused."""
        return len(self._limit)

    async def setup(self) -> None:
        """Start the application; nobody is let in yet."""
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
                # Only an unknown expectation is refused before the middleware.
                return _refuse(request, BadRequest(exc.reason), exc.status, exc)
            finally:
                if connection is not None:
                    connection.request = None

        def make_request(*parts: Any) -> web.BaseRequest:
            return _prepared(make_plain(*parts), self._prefix)

        server = _Server(
            handle,
            request_factory=make_request,
            access_log=None,
            # Until a request has come, aiohttp closes what is older than this.
            keepalive_timeout=self._limits.idle_seconds,
        )
        measures = self.app.get(MEASURES) or RequestMetrics()
        self._shared = Shared(server, self._limits, self._limit, measures)

    async def listen(self, listener: socket.socket) -> None:
        """Serve at a socket that has its address; it is taken over, and closed by the cleanup."""
        shared = self._shared
        if shared is None:
            raise RuntimeError("the application was not set up")
        listening = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(shared), sock=listener, backlog=_ACCEPTED_AT_ONCE
        )
        # To asyncio this is also how many it accepts in one turn; the system may hold more.
        listener.listen(_BACKLOG)
        self._listening.append(listening)
        self.addresses.append(listener.getsockname())

    async def cleanup(self) -> None:
        """Let nobody in any more, let requests end, and clean the application up."""
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            for listener in listening.sockets:
                loop.remove_reader(listener)
        # What is accepted already gets its transport, and then its protocol, which knows how to end.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for listening in self._listening:
            listening.close()
        if self._shared is not None:
            for transport in self._shared.refused:
                transport.abort()
            # Those who are in already have their requests begun.
            await asyncio.sleep(0)
            self._shared.server.pre_shutdown()
            await self.app.shutdown()
            await self._shared.server.shutdown(self._grace_seconds)
        await self.app.cleanup()


class _Server(web.Server):
    """Makes what speaks HTTP, for each connection."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        del options["request_factory"]
        self._of_each = options

    def __call__(self) -> web.RequestHandler:
        return _Handler(self, loop=asyncio.get_running_loop(), **self._of_each)


class _Handler(web.RequestHandler):
    """Speaks HTTP with one client, and answers what the parser has refused."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,  # it quotes the request
    ) -> web.StreamResponse:
        """Answer what the parser refused, or what failed outside the middleware."""
        has_gone = isinstance(exc, ConnectionError) and request.transport is None
        if request.writer.output_size > 0 or has_gone:
            raise ConnectionError("the response broke off") from exc
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            error = MalformedBody("The request is not well-formed HTTP")
            return _refuse(request, error, status, exc)
        response = _answer(request, AgentsvcError("Internal Server Error"), status)
        log.error("request failed with an unexpected error", exc_info=exc)
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a failure; that of a body nobody wanted is the client's, and may quote it."""
        failure = kw.get("exc_info")
        if isinstance(failure, HttpProcessingError | web.RequestPayloadError):
            log.debug("remaining request body refused", extra={"problem": type(failure).__name__})
        else:
            super().log_exception(*args, **kw)


def _prepared(request: web.BaseRequest, prefix: str) -> web.BaseRequest:
    """Return a request without what only says how it is to be taken."""
    sent = request.raw_path
    if prefix and request.rel_url.raw_path.startswith(f"{prefix}/"):
        request = request.clone(rel_url=_without(prefix, request.rel_url))
    request, version = unmark_request(request)
    awaits_continue = False
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        # aiohttp would say it before anybody has looked at the request. Those of an older version of
        # HTTP do not know the word.
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


def _without(prefix: str, url: yarl.URL) -> yarl.URL:
    """Return a URL without the path below which the server is."""
    path = url.raw_path.removeprefix(prefix)
    return yarl.URL.build(path=path, query_string=url.raw_query_string, encoded=True)


def _refuse(
    request: web.BaseRequest, error: AgentsvcError, status: int, exc: BaseException | None
) -> web.Response:
    response = _answer(request, error, status)
    facts = {"status": status, "code": error.code, "problem": type(exc).__name__}
    log.info("request refused", extra=facts)
    return response


def _answer(request: web.BaseRequest, error: AgentsvcError, status: int) -> web.Response:
    request_id = request.get(REQUEST_ID) or new_id()
    request[REQUEST_ID] = request_id
    CURRENT_REQUEST.set(request_id)
    response = raw_json_response(error_body(error, request_id), status=status)
    response.headers["X-Request-Id"] = request_id
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.force_close()
    return response
