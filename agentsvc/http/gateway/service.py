"""The gateway's handlers: authorize a request, find its target and proxy it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import Final

from aiohttp import WSCloseCode, hdrs, web
from multidict import CIMultiDict

from agentsvc.accounts import KEY_PREFIX
from agentsvc.base import AgentsvcError, NotAllowed, NotAuthenticated, NotFound
from agentsvc.http.gateway import rewriting as rewrite
from agentsvc.http.gateway import websocket_frames as frames
from agentsvc.http.gateway.authorization import Authorizer, GatewayCaller
from agentsvc.http.gateway.connection_pool import Pool
from agentsvc.http.gateway.http_proxy import forward
from agentsvc.http.gateway.older_clients import OlderClients
from agentsvc.http.gateway.request_lifetime import until_stop, with_client
from agentsvc.http.gateway.target import (
    PortRequest,
    ProxyTarget,
    RequestKeys,
    check,
    make_target,
    parse_port_request,
    request_keys_of,
    shown_login,
)
from agentsvc.http.gateway.websocket_proxy import Client, join
from agentsvc.http.middleware.authentication import keys_of
from agentsvc.http.middleware.websocket_auth import LARGEST_FIRST_BYTES, first_message_key
from agentsvc.http.port_origins import EDITOR_PORT
from agentsvc.http.routes import mark_for_sandbox
from agentsvc.http.server.connections import show_key
from agentsvc.http.urls import MOUNT, work_origin_of
from agentsvc.sandboxes import AGENT_PORT

_CLOSE_CODES: Final = ((NotAuthenticated, 4001), (NotAllowed, 4003), (NotFound, 4004))
_RUNTIME_PORTS: Final = {"work-1": "worker_1", "work-2": "worker_2", "vscode": EDITOR_PORT}
_HEALTH_PATHS: Final = frozenset({"/alive", "/health", "/ready"})
_SOCKETS: Final = "/sockets/"
_TERMINALS: Final = "/sockets/bash-events"
_FILES: Final = "/api/file/"


class Gateway:
    """Proxies requests to sandboxes."""

    def __init__(self, authorizer: Authorizer, *, connect_seconds: float) -> None:
        self.authorizer = authorizer
        self._older = OlderClients()
        self._pool = Pool(connect_seconds=connect_seconds)

    def close(self) -> None:
        """Close all idle connections."""
        self._pool.close()

    async def serve(
        self, request: web.Request, place: PortRequest, sandbox_id: str
    ) -> web.StreamResponse:
        """Proxy a request to a port of a sandbox."""
        check(request, place)
        shown = request_keys_of(request, place)
        if shown.is_empty and _may_show_key_later(request, place):
            return await self.serve_late(request, place, sandbox_id)
        if shown.is_empty and _is_health_check(request, place):
            caller = await self.authorizer.let_in(sandbox_id)
        else:
            caller = await self.authorizer.identify(shown, sandbox_id)
            _show_key(request, caller)
        target = await self._find_target(request, place, sandbox_id, caller)
        with self._in_use(request, place, sandbox_id, caller):
            if frames.is_upgrade(request):
                return await join(Client(request), target, self._pool.connect_seconds)
            return await forward(self._pool, request, target)

    async def serve_late(
        self, request: web.Request, place: PortRequest, sandbox_id: str | None
    ) -> web.StreamResponse:
        """Proxy a WebSocket whose first message has the key, which may also select the sandbox."""
        client = Client(request)
        response = await client.open(CIMultiDict())
        caller = await self._authenticate(client, place)
        if caller is None:
            return response
        try:
            _show_key(request, caller)
            wanted = sandbox_id or (caller.sandbox.id if caller.sandbox else "")
            target = await self._find_target(request, place, wanted, caller)
            # The handshake with the client was completed without extensions and subprotocols.
            target.headers.popall(hdrs.SEC_WEBSOCKET_EXTENSIONS, None)
            target.headers.popall(hdrs.SEC_WEBSOCKET_PROTOCOL, None)
            with self._in_use(request, place, wanted, caller):
                await join(client, target, self._pool.connect_seconds)
        except AgentsvcError as exc:
            await client.close(_close_code(exc), exc.message)
        return response

    async def _find_target(
        self, request: web.Request, place: PortRequest, sandbox_id: str, caller: GatewayCaller
    ) -> ProxyTarget:
        sandbox = await self.authorizer.get(caller, sandbox_id)
        is_use = _is_use(request, place)
        sandbox = await self.authorizer.wait_usable(sandbox, wakes_culled=is_use)
        target = make_target(request, sandbox, place, keys=caller.keys)
        return self._older.adapt(request, place, sandbox.id, target)

    @contextlib.contextmanager
    def _in_use(
        self, request: web.Request, place: PortRequest, sandbox_id: str, caller: GatewayCaller
    ) -> Iterator[None]:
        """Mark the sandbox as in use, and abort the connection if the caller loses access."""
        is_use = _is_use(request, place)
        using = self.authorizer.using(sandbox_id) if is_use else contextlib.nullcontext()
        with using, self.authorizer.held(caller, sandbox_id, lambda: _abort(request)):
            yield

    async def _authenticate(self, client: Client, place: PortRequest) -> GatewayCaller | None:
        """Identify a client by its first message; without a valid key, close it and return None."""
        try:
            async with with_client(client.request) as life:
                with until_stop(client.request, life):
                    key = await first_message_key(client.request, _first_text(client))
                    login = shown_login(client.request, place, page_part=key)
                    shown = RequestKeys(keys=(key,), sandbox_keys=(), others=(), login=login)
                    return await self.authorizer.identify(shown)
        except NotAuthenticated as exc:
            await client.close(_close_code(exc), exc.message)
            return None


GATEWAY: Final[web.AppKey[Gateway]] = web.AppKey("gateway", Gateway)


def mount_ports(app: web.Application) -> None:
    """Add the paths of sandbox ports to an application.

    They are not in the OpenAPI document, as the sandboxes define what is below them.
    """
    app.router.add_route("*", MOUNT + "/{sandbox_id}/{port}{path:.*}", get_port)


def mount_short_paths(app: web.Application) -> None:
    """Add short paths of sandbox ports: `/ID`, `/ID/work-1` and `/ID/vscode`."""
    app.router.add_route("*", "/{sandbox_id:[0-9a-f]{32}}{path:(/.*)?}", get_by_short_path)


async def get_port(request: web.Request) -> web.StreamResponse:
    """Handle `/sandboxes/{sandbox_id}/{port}/...`, with any method."""
    _, _, sandbox_id, port, *path = request.rel_url.raw_path.split("/", 4)
    query = request.rel_url.raw_query_string
    place = PortRequest(port=port, path="/" + "".join(path), query=query)
    return await request.app[GATEWAY].serve(request, place, sandbox_id)


async def get_by_short_path(request: web.Request) -> web.StreamResponse:
    """Handle `/ID/...`, with any method: a work port or the editor by name, or the agent server."""
    _, sandbox_id, *rest = request.rel_url.raw_path.split("/", 2)
    path = "".join(rest)
    first, _, inner = path.partition("/")
    port = _RUNTIME_PORTS.get(first, AGENT_PORT)
    place = PortRequest(
        port=port,
        path=f"/{path if port == AGENT_PORT else inner}",
        query=request.rel_url.raw_query_string,
        mount=f"/{sandbox_id}" if port == AGENT_PORT else f"/{sandbox_id}/{first}",
    )
    return await request.app[GATEWAY].serve(request, place, sandbox_id)


def divert(request: web.Request) -> Awaitable[web.StreamResponse | None] | None:
    """Proxy a request that its host, path or key directs to a sandbox; None for any other."""
    origin = work_origin_of(request)
    if origin is not None:
        mark_for_sandbox(request)
        sandbox_id, place = parse_port_request(request, origin)
        return request.app[GATEWAY].serve(request, place, sandbox_id)
    handler = request.match_info.handler
    if handler in (get_port, get_by_short_path):
        # The gateway authenticates by itself: skip the rest of the middleware.
        return handler(request)
    raw_path = request.rel_url.raw_path
    query = request.rel_url.raw_query_string
    if not rewrite.is_agent_path(raw_path) or not (query or _may_be_for_sandbox(request)):
        return None
    return _serve_root(
        request, PortRequest(port=AGENT_PORT, path=raw_path, query=query, is_at_root=True)
    )


async def _serve_root(request: web.Request, place: PortRequest) -> web.StreamResponse | None:
    gateway = request.app[GATEWAY]
    shown = request_keys_of(request, place)
    if shown.is_empty and _may_show_key_later(request, place):
        return await gateway.serve_late(request, place, None)
    sandbox = await gateway.authorizer.find_by_key(shown)
    return None if sandbox is None else await gateway.serve(request, place, sandbox.id)


def _may_be_for_sandbox(request: web.Request) -> bool:
    """Whether the headers may have a session key, or the first WebSocket message may."""
    keys = keys_of(request)
    has_other = bool(keys) and not all(key.startswith(KEY_PREFIX) for key in keys)
    return has_other or hdrs.UPGRADE in request.headers


def _show_key(request: web.Request, caller: GatewayCaller) -> None:
    """Count the connection for its user or sandbox; raises TooManyRequests."""
    if caller.principal is not None:
        show_key(request, user_id=caller.principal.user_id)
    elif caller.sandbox is not None:
        show_key(request, sandbox_id=caller.sandbox.id)


def _is_use(request: web.Request, place: PortRequest) -> bool:
    """Whether a request counts as use of the sandbox; reading or following the agent does not."""
    if place.port != AGENT_PORT:
        return True
    if frames.is_upgrade(request):
        return place.path.startswith(_TERMINALS)
    if place.path.startswith(_FILES):
        return True
    return request.method not in (hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS)


def _is_health_check(request: web.Request, place: PortRequest) -> bool:
    """Whether this is a health check, which agent servers answer without a key."""
    is_read = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
    return is_read and place.port == AGENT_PORT and place.path in _HEALTH_PATHS


def _may_show_key_later(request: web.Request, place: PortRequest) -> bool:
    """Whether the key may be in the first message of a WebSocket.

    Not if sandbox and client have to negotiate a subprotocol first, nor at a port's own origin,
    whose pages have a cookie.
    """
    if not frames.is_upgrade(request) or place.own_origin is not None:
        return False
    is_agents = place.port == AGENT_PORT and place.path.startswith(_SOCKETS)
    return is_agents or not (place.is_at_root or hdrs.SEC_WEBSOCKET_PROTOCOL in request.headers)


async def _first_text(client: Client) -> bytes:
    try:
        return await frames.read_text(client.reader, limit=LARGEST_FIRST_BYTES)
    except frames.InvalidFrame as exc:
        raise NotAuthenticated("The first message has no key") from exc
    except asyncio.IncompleteReadError as exc:
        raise ConnectionResetError("the client has gone") from exc


def _abort(request: web.Request) -> None:
    """Abort a connection: no close frame can be sent, as the stream may be inside a frame."""
    if request.transport is not None:
        request.transport.abort()


def _close_code(exc: AgentsvcError) -> int:
    codes = (code for kind, code in _CLOSE_CODES if isinstance(exc, kind))
    return next(codes, WSCloseCode.TRY_AGAIN_LATER)
