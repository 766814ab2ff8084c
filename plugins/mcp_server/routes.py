"""The operation of the MCP server, and where clients find out how to log in."""

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
    """What a client needs to know to get a key for the MCP server (RFC 9728)."""

    resource: str
    """URL of the MCP server"""
    authorization_servers: list[str]
    """Where a key is had; empty where programs cannot ask for one"""
    scopes_supported: tuple[str, ...] = ("read", "run", "admin")
    """What keys may be for; `run` is enough for every tool"""
    bearer_methods_supported: tuple[str, ...] = ("header",)
    """Where a key is sent: as a bearer token in `Authorization`"""
    resource_name: str = "agentsvc"
    """Name of the server"""
    resource_documentation: str
    """Page for people"""


class AuthorizationServer(msgspec.Struct, frozen=True, kw_only=True):
    """How a program gets a key (RFC 8414): by the login of programs without a browser (RFC 8628)."""

    issuer: str
    """URL of this server"""
    device_authorization_endpoint: str
    """Where a login begins"""
    token_endpoint: str
    """Where the key is fetched"""
    grant_types_supported: tuple[str, ...] = ("urn:ietf:params:oauth:grant-type:device_code",)
    """The only way there is"""
    response_types_supported: list[str] = []
    """Always empty: there is no authorization by redirection"""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("none",)
    """Programs are not registered"""
    scopes_supported: tuple[str, ...] = ("read", "run", "admin")
    """What keys may be for"""


class McpServer(Extension[McpServerConfig]):
    """The server; it keeps nothing between two requests."""

    Config = McpServerConfig

    def routes(self) -> Iterable[Route]:
        """Return the operation, and the metadata."""
        routes = Routes()
        routes.add(
            "POST",
            PATH,
            Reply,
            scope=Scope.READ,
            body=Message,
            accepted="A notification was taken; there is nothing to answer",
            errors=(BadRequest, NotAllowed),
            example={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        )(self.post_message)
        for path in (_RESOURCE, f"{_RESOURCE}{PATH}"):
            routes.add("GET", path, scope=Scope.OPEN)(self.get_resource)
        routes.add("GET", _SERVER, scope=Scope.OPEN)(self.get_server)
        return routes

    def middlewares(self) -> Iterable[Middleware]:
        """Return what tells clients without a good key where they find the login."""
        return (self.challenge,)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Give the handlers what they need."""
        self._server = server
        yield

    @web.middleware
    async def challenge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Name the metadata in the answer to who has no good key."""
        response = await handler(request)
        if request.path.rstrip("/") == PATH and response.status == NotAuthenticated.status:
            where = f"{links_of(request).base}{_RESOURCE}{PATH}"
            value = f'Bearer realm="agentsvc", resource_metadata="{where}", scope="run"'
            response.headers[hdrs.WWW_AUTHENTICATE] = value
        return response

    async def get_resource(self, request: web.Request) -> ProtectedResource:
        """Say how a program gets a key for the MCP server.

        Where this server is and how a key is shown, for clients that log in by themselves.
        """
        base = links_of(request).base
        has_login = request.app[CONFIG].server.device_login
        return ProtectedResource(
            resource=f"{base}{PATH}",
            authorization_servers=[base] if has_login else [],
            resource_documentation=f"{base}/docs/guide/how-to/mcp",
        )

    async def get_server(self, request: web.Request) -> AuthorizationServer:
        """Say where a program logs in.

        A program shows its user a code, and gets a key when the user has let it in.
        """
        base = links_of(request).base
        return AuthorizationServer(
            issuer=base,
            device_authorization_endpoint=f"{base}/oauth/device/authorize",
            token_endpoint=f"{base}/oauth/device/token",
        )

    async def post_message(self, request: web.Request) -> web.Response:
        """Send a message of the Model Context Protocol.

        The streamable HTTP transport without sessions: each request is answered with one JSON
        message, so that clients go on after a restart. What a tool or resource needs of the scope of
        a key is as in the API.
        """
        _check_headers(request)
        message = await read_json(request, Message)
        request[AUDITED] = AuditNote(action="")
        if message.method is UNSET or message.id is UNSET:
            return web.Response(status=HTTPStatus.ACCEPTED)
        params = {} if message.params is UNSET else message.params
        # Not every server is asked, and what answers takes a while to import.
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
