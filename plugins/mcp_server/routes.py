"""The endpoint of the MCP server, and the metadata by which clients find the login."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from agentsvc.base import BadRequest, NotAllowed, NotAuthenticated
from agentsvc.extension.server import Extension, Middleware, Server
from agentsvc.extension.web import (
    AUDITED,
    CONFIG,
    AuditNote,
    Handler,
    Route,
    Routes,
    Scope,
    json_response,
    links_of,
    read_json,
)

from .config import McpServerConfig
from .protocol import VERSIONS, Message, Reply, RequestFailed

PATH: Final = "/mcp"
_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_VERSION_HEADER: Final = "MCP-Protocol-Version"


class ProtectedResource(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata by which a client gets a key for the MCP server (RFC 9728)."""

    resource: str
    """URL of the MCP server"""
    authorization_servers: list[str]
    """URLs of servers that issue keys; empty if programs cannot request one"""
    scopes_supported: tuple[str, ...] = ("read", "run", "admin")
    """Scopes of keys; `run` is enough for every tool"""
    bearer_methods_supported: tuple[str, ...] = ("header",)
    """How to send a key: as a bearer token in `Authorization`"""
    resource_name: str = "agentsvc"
    """Name of the server"""
    resource_documentation: str
    """URL of the documentation"""


class AuthorizationServer(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata for getting a key (RFC 8414): by the device login (RFC 8628)."""

    issuer: str
    """URL of this server"""
    device_authorization_endpoint: str
    """URL that starts a login"""
    token_endpoint: str
    """URL that returns the key"""
    grant_types_supported: tuple[str, ...] = ("urn:ietf:params:oauth:grant-type:device_code",)
    """The only supported grant type"""
    response_types_supported: list[str] = []
    """Always empty: there is no authorization by redirects"""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("none",)
    """Programs are not registered"""
    scopes_supported: tuple[str, ...] = ("read", "run", "admin")
    """Scopes of keys"""


class McpServer(Extension[McpServerConfig]):
    """The server extension; it has no state between requests."""

    Config = McpServerConfig

    def routes(self) -> Iterable[Route]:
        """Return the routes of the endpoint and of the metadata."""
        routes = Routes()
        routes.add(
            "POST",
            PATH,
            Reply,
            scope=Scope.READ,
            body=Message,
            accepted="The notification was accepted; there is no response",
            errors=(BadRequest, NotAllowed),
            example={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        )(self.post_message)
        for path in (_RESOURCE, f"{_RESOURCE}{PATH}"):
            routes.add("GET", path, scope=Scope.OPEN)(self.get_resource)
        routes.add("GET", _SERVER, scope=Scope.OPEN)(self.get_server)
        return routes

    def middlewares(self) -> Iterable[Middleware]:
        """Return the middleware that tells clients without a valid key where the login is."""
        return (self.challenge,)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Store the server for the handlers."""
        self._server = server
        yield

    @web.middleware
    async def challenge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Add the URL of the metadata to a 401 response."""
        response = await handler(request)
        if request.path.rstrip("/") == PATH and response.status == NotAuthenticated.status:
            where = f"{links_of(request).base}{_RESOURCE}{PATH}"
            value = f'Bearer realm="agentsvc", resource_metadata="{where}", scope="run"'
            response.headers[hdrs.WWW_AUTHENTICATE] = value
        return response

    async def get_resource(self, request: web.Request) -> ProtectedResource:
        """Return how a program gets a key for the MCP server.

        Metadata for clients that log in automatically.
        """
        base = links_of(request).base
        has_login = request.app[CONFIG].server.device_login
        return ProtectedResource(
            resource=f"{base}{PATH}",
            authorization_servers=[base] if has_login else [],
            resource_documentation=f"{base}/docs/guide/how-to/mcp",
        )

    async def get_server(self, request: web.Request) -> AuthorizationServer:
        """Return where a program logs in.

        A program shows a code to its user, and gets a key when the user has approved it.
        """
        base = links_of(request).base
        return AuthorizationServer(
            issuer=base,
            device_authorization_endpoint=f"{base}/oauth/device/authorize",
            token_endpoint=f"{base}/oauth/device/token",
        )

    async def post_message(self, request: web.Request) -> web.Response:
        """Send a message of the Model Context Protocol.

        The streamable HTTP transport without sessions: the response to each request is one JSON
        message, so that clients continue after a restart. Tools and resources require the same scopes of
        keys as the API.
        """
        _check_headers(request)
        message = await read_json(request, Message)
        request[AUDITED] = AuditNote(action="")
        if message.method is UNSET or message.id is UNSET:
            return web.Response(status=HTTPStatus.ACCEPTED)
        params = {} if message.params is UNSET else message.params
        # Imported on demand in a thread: not every server is used by MCP, and the module is slow to import.
        await asyncio.to_thread(importlib.import_module, ".methods", __package__)
        from .methods import answer  # noqa: PLC0415

        try:
            result = await answer(request, self._server, message.method, params)
        except RequestFailed as exc:
            return json_response(Reply(id=message.id, error=exc.failure))
        return json_response(Reply(id=message.id, result=result))


def _check_headers(request: web.Request) -> None:
    """Raise BadRequest for an unknown revision, and NotAllowed for a page of another origin."""
    version = request.headers.get(_VERSION_HEADER)
    if version is not None and version not in VERSIONS:
        raise BadRequest(f"The revisions of the protocol are {', '.join(VERSIONS)}")
    origin = request.headers.get(hdrs.ORIGIN)
    allowed = request.app[CONFIG].server.cors_origins
    if origin and "*" not in allowed and origin not in (*allowed, _origin(request)):
        raise NotAllowed(
            "Pages of this origin may not use the MCP server; see `server.cors_origins`"
        )


def _origin(request: web.Request) -> str:
    return "/".join(links_of(request).base.split("/")[:3])
