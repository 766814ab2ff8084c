"""How requests reach the application, and what is answered to those that never do.

Some requests are refused below the application: by the parser, since they are not HTTP, or for
an `Expect` header nobody knows. aiohttp answers and logs these with the offending line, and the
offending line may hold a key. Here they get the one error shape with a fixed text, and one log
line that names the kind of problem only.
"""

import logging
import resource
import socket
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import yarl
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDictProxy

from agentsvc.config import LimitsConfig, ServerConfig
from agentsvc.errors import AgentsvcError, BadRequest, MalformedBody
from agentsvc.http.connection_limit import LOOPBACK, ConnectionLimit, Network
from agentsvc.http.connections import BoundedConnection, connection_options
from agentsvc.http.door import Door, Outside
from agentsvc.http.keys import AWAITS_CONTINUE, MEASURES, ON_LOST, REQUEST_ID, SDK_VERSION
from agentsvc.http.links import to_networks
from agentsvc.http.measures import Measures
from agentsvc.http.sdk_versions import unmark_request
from agentsvc.http.wire import error_body
from agentsvc.logs import CURRENT_REQUEST
from agentsvc.values import new_id

log = logging.getLogger(__name__)

_LIMITS: Final = ServerConfig()
_MOST_OF_SANDBOX: Final = LimitsConfig().connections_per_sandbox
_BACKLOG: Final = 1024
"""How many may have come that are not let in yet; those who come to more than that try again later."""
_OUTSIDE_SHARE: Final = 4


def make_runner(
    app: web.Application,
    *,
    grace_seconds: float,
    prefix: str = "",
    limits: ServerConfig = _LIMITS,
    most_of_sandbox: int = _MOST_OF_SANDBOX,
    shared: Iterable[Network] = LOOPBACK,
) -> "Runner":
    """Return what serves the application; requests get `grace_seconds` to end at a stop.

    `prefix` is the path below which clients find the server; a proxy may leave it in place. A
    sandbox has at most so many connections, and many callers come out of `shared` networks.
    """
    limit = ConnectionLimit(
        most=limits.max_connections,
        most_of_origin=limits.max_connections_per_address,
        most_of_sandbox=most_of_sandbox,
        shared=shared,
        proxies=to_networks(limits.trusted_proxies),
    )
    measures = app.get(MEASURES) or Measures()
    outside = Outside(_most_outside(limits))
    options = connection_options(limits, measures, limit, outside)
    runner = Runner(app, access_log=None, shutdown_timeout=grace_seconds, **options)
    runner.prefix = prefix
    runner.open_door = partial(Door, limit=limit, measures=measures, outside=outside)
    return runner


def _most_outside(limits: ServerConfig) -> int:
    """Return how many may be outside that files and connections are left for those inside."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2 * limits.max_connections
    return most if files == resource.RLIM_INFINITY else min(most, files // _OUTSIDE_SHARE)


class _Connection(BoundedConnection):
    """One client's connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; ones that are not HTTP end the body that is being read, too."""
        super().data_received(data)
        request = self._current_request
        if request is None or not self._messages or request.content.is_eof():
            return
        if not isinstance(self._messages[-1][0], RawRequestMessage):
            # aiohttp leaves the handler waiting for the rest of a body that it has given up.
            request.content.set_exception(web.RequestPayloadError("the rest is not HTTP"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell who serves a request, and wants to know, that the client has gone."""
        request = self._current_request
        tell = request.get(ON_LOST) if request is not None else None
        super().connection_lost(exc)
        if tell is not None:
            tell()

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
        log.error("request failed on a bug", exc_info=exc)
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a failure; that of a body nobody wanted is the client's, and may quote it."""
        failure = kw.get("exc_info")
        if isinstance(failure, HttpProcessingError | web.RequestPayloadError):
            log.debug("rest of a request refused", extra={"problem": type(failure).__name__})
        else:
            super().log_exception(*args, **kw)


class _Server(web.Server):
    """Makes a connection for each client."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Serves an application on connections of our own kind.

    An address has no limit of its own at sockets that are not given to `listen`.
    """

    __slots__ = ("open_door", "prefix")

    open_door: Callable[[socket.socket], Door]
    prefix: str

    async def listen(self, listener: socket.socket) -> None:
        """Serve at a socket that has its address; it is taken over, and closed by the cleanup."""
        await web.SockSite(self, self.open_door(listener), backlog=_BACKLOG).start()

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        serve = made.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await serve(request)
            except web.HTTPClientError as exc:
                # Only an unknown expectation is refused before the middleware.
                return _refuse(request, BadRequest(exc.reason), exc.status, exc)

        make_plain, prefix = made.request_factory, self.prefix

        def make_request(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
            message, version = unmark_request(message)
            request = make_plain(message, *rest)
            if version is not None:
                request[SDK_VERSION] = version
            return request

        def make(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
            if hdrs.EXPECT in message.headers:
                return _make_waiting(make_request, message, *rest)
            return make_request(message, *rest)

        def make_below(message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
            return make(_without(prefix, message), *rest)

        return _Server(handle, request_factory=make_below if prefix else make, **self._kwargs)


def _make_waiting(
    make_request: Callable[..., web.BaseRequest], message: RawRequestMessage, *rest: Any
) -> web.BaseRequest:
    """Make a request whose client waits for a word before it sends the body.

    aiohttp would say it before anybody has looked at the request.
    """
    if message.headers[hdrs.EXPECT].lower() != "100-continue":
        return make_request(message, *rest)
    headers = message.headers.copy()
    del headers[hdrs.EXPECT]
    request = make_request(message._replace(headers=CIMultiDictProxy(headers)), *rest)
    # Those of an older version do not know the word.
    request[AWAITS_CONTINUE] = message.version >= HttpVersion11
    return request


def _without(prefix: str, message: RawRequestMessage) -> RawRequestMessage:
    """Return a request without the path below which the server is; `path` stays as it was sent."""
    if not message.url.raw_path.startswith(f"{prefix}/"):
        return message
    url = yarl.URL.build(
        path=message.url.raw_path.removeprefix(prefix),
        query_string=message.url.raw_query_string,
        encoded=True,
    )
    return message._replace(url=url)


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
    response = web.Response(
        body=error_body(error, request_id), status=status, content_type="application/json"
    )
    response.headers["X-Request-Id"] = request_id
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.force_close()
    return response
