"""The operation of the MCP server, and where clients find out how to log in."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET

from agentsvc.base import AgentsvcError, BadRequest, NotAllowed, NotAuthenticated
from agentsvc.extension.agents import FILES, PENDING, Principal
from agentsvc.extension.server import VERSION, Extension, Middleware, Server
from agentsvc.extension.web import (
    AUDITED,
    CONFIG,
    PRINCIPAL,
    Audited,
    Example,
    Handler,
    Route,
    Scope,
    check_scope,
    json_response,
    links_of,
    read_json,
)

from .protocol import (
    INVALID_PARAMS,
    LATEST,
    METHOD_NOT_FOUND,
    VERSIONS,
    Message,
    Refused,
    Reply,
    refused_for,
    told,
)
from .resources import TEMPLATES, list_resources, read_resource
from .settings import McpServerConfig
from .tools import TOOLS, Services

PATH: Final = "/mcp"
_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_VERSION_HEADER: Final = "MCP-Protocol-Version"
_INSTRUCTIONS: Final = (
    "Each conversation is a software agent at work in a sandbox of its own. Start one with a task,"
    " collect it until `is_over`, and read its changes. Where `execution_status` is"
    " `waiting_for_confirmation`, read what it asks for and answer."
)


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


_MESSAGE = msgspec.json.Decoder(Message)


class McpServer(Extension[McpServerConfig]):
    """The server; it keeps nothing between two requests."""

    Config = McpServerConfig

    def routes(self) -> Iterable[Route]:
        """Return the operation, and the metadata."""
        yield Route(
            method="POST",
            path=PATH,
            handler=self.post_message,
            scope=Scope.READ,
            rank="P3",
            summary="Send a message of the Model Context Protocol",
            body=Message,
            answer=Reply,
            accepted="A notification was taken; there is nothing to answer",
            errors=(BadRequest, NotAllowed),
            example=Example(body={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        for path in (_RESOURCE, f"{_RESOURCE}{PATH}"):
            yield Route(
                method="GET",
                path=path,
                handler=self.get_resource,
                scope=Scope.OPEN,
                rank="P3",
                summary="Say how a program gets a key for the MCP server",
                answer=ProtectedResource,
            )
        yield Route(
            method="GET",
            path=_SERVER,
            handler=self.get_server,
            scope=Scope.OPEN,
            rank="P3",
            summary="Say where a program logs in",
            answer=AuthorizationServer,
        )

    def middlewares(self) -> Iterable[Middleware]:
        """Return what tells clients without a good key where they find the login."""
        return (self.challenge,)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Give the handlers what they need."""
        self._services = Services(
            server=server, messages=server.app[PENDING], files=server.app[FILES]
        )
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

    async def get_resource(self, request: web.Request) -> web.Response:
        """GET /.well-known/oauth-protected-resource.

        Where this server is and how a key is shown, for clients that log in by themselves.
        """
        base = links_of(request).base
        has_login = request.app[CONFIG].server.device_login
        return json_response(
            ProtectedResource(
                resource=f"{base}{PATH}",
                authorization_servers=[base] if has_login else [],
                resource_documentation=f"{base}/docs/guide/how-to/mcp",
            )
        )

    async def get_server(self, request: web.Request) -> web.Response:
        """GET /.well-known/oauth-authorization-server.

        A program shows its user a code, and gets a key when the user has let it in.
        """
        base = links_of(request).base
        return json_response(
            AuthorizationServer(
                issuer=base,
                device_authorization_endpoint=f"{base}/oauth/device/authorize",
                token_endpoint=f"{base}/oauth/device/token",
            )
        )

    async def post_message(self, request: web.Request) -> web.Response:
        """POST /mcp.

        The streamable HTTP transport without sessions: each request is answered with one JSON
        message, so that clients go on after a restart. What a tool or resource needs of the scope of
        a key is as in the API.
        """
        _check_headers(request)
        message = await read_json(request, _MESSAGE)
        caller = request[PRINCIPAL]
        request[AUDITED] = Audited(action="")
        if message.method is UNSET or message.id is UNSET:
            return web.Response(status=HTTPStatus.ACCEPTED)
        params = {} if message.params is UNSET else message.params
        try:
            result = await self._answer(request, caller, message.method, params)
        except Refused as exc:
            return json_response(Reply(id=message.id, error=exc.failure))
        return json_response(Reply(id=message.id, result=result))

    async def _answer(
        self, request: web.Request, caller: Principal, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        match method:
            case "initialize":
                return _initialized(params)
            case "ping":
                return {}
            case "tools/list":
                return {
                    "tools": [one.describe() for one in TOOLS.values() if _may(one.scope, caller)]
                }
            case "tools/call":
                return await self._call(request, caller, params)
            case "resources/templates/list":
                return {"resourceTemplates": list(TEMPLATES)}
            case "resources/list" | "resources/read":
                try:
                    return await self._read(caller, method, params)
                except AgentsvcError as exc:
                    raise refused_for(exc) from exc
            case _:
                raise Refused(METHOD_NOT_FOUND, f"There is no method `{method}`")

    async def _read(self, caller: Principal, method: str, params: dict[str, Any]) -> dict[str, Any]:
        name = "cursor" if method == "resources/list" else "uri"
        given = params.get(name)
        if not isinstance(given, str) and (name == "uri" or given is not None):
            raise Refused(INVALID_PARAMS, f"`{name}` should be a text")
        if name == "cursor":
            return await list_resources(self._services, caller, given)
        return await read_resource(self._services, caller, given or "")

    async def _call(
        self, request: web.Request, caller: Principal, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Use a tool: what goes wrong in it is told to the agent, which may mend it."""
        tool = TOOLS.get(params["name"]) if isinstance(params.get("name"), str) else None
        if tool is None:
            raise Refused(INVALID_PARAMS, "There is no such tool")
        arguments = params.get("arguments") or {}
        if tool.scope is not Scope.READ:
            request[AUDITED] = _audited(tool.name, arguments, HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            # As JSON has it: texts, numbers and nothing else.
            found = msgspec.to_builtins(await tool.call(self._services, caller, arguments))
        except AgentsvcError as exc:
            found, status = arguments, exc.status
            result = {"content": _text(f"{exc.code}: {told(exc)}"), "isError": True}
        else:
            status, text = HTTPStatus.OK, msgspec.json.encode(found).decode()
            result = {"content": _text(text), "structuredContent": found, "isError": False}
        if tool.scope is not Scope.READ:
            request[AUDITED] = _audited(tool.name, {**_object(arguments), **_object(found)}, status)
        return result


def _audited(tool: str, about: Any, status: int) -> Audited:
    chosen = str(_object(about).get("conversation_id") or "")[:64]
    subject = f"conversation_id={chosen}" if chosen else ""
    return Audited(action=f"MCP {tool}", subject=subject, status=status)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _initialized(params: dict[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else LATEST,
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": {"name": "agentsvc", "title": "agentsvc", "version": VERSION},
        "instructions": _INSTRUCTIONS,
    }


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


def _may(scope: Scope, caller: Principal) -> bool:
    try:
        check_scope(scope, caller)
    except NotAllowed:
        return False
    return True


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
