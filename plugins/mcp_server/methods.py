"""The methods of the protocol. Imported on first use."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import AgentsvcError, NotAllowed
from agentsvc.extension.agents import Principal
from agentsvc.extension.server import VERSION, Server
from agentsvc.extension.web import AUDITED, PRINCIPAL, AuditNote, Scope, check_scope

from .protocol import (
    INVALID_PARAMS,
    LATEST,
    METHOD_NOT_FOUND,
    VERSIONS,
    RequestFailed,
    error_text,
    failure_of,
)
from .resources import TEMPLATES, list_resources, read_resource
from .tools import TOOLS

_INSTRUCTIONS: Final = (
    "Each conversation is a software agent that works in its own sandbox. Start one with a task,"
    " collect it until `is_over`, and read its changes. If `execution_status` is"
    " `waiting_for_confirmation`, read the actions that it asks for and answer."
)


async def answer(
    request: web.Request, server: Server, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    """Return the result of a request; raises RequestFailed."""
    caller = request[PRINCIPAL]
    match method:
        case "initialize":
            return _initialized(params)
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [one.describe() for one in TOOLS.values() if _may(one.scope, caller)]}
        case "tools/call":
            return await _call(request, server, params)
        case "resources/templates/list":
            return {"resourceTemplates": list(TEMPLATES)}
        case "resources/list" | "resources/read":
            try:
                return await _read(server, caller, method, params)
            except AgentsvcError as exc:
                raise failure_of(exc) from exc
        case _:
            raise RequestFailed(METHOD_NOT_FOUND, f"There is no method `{method}`")


async def _read(
    server: Server, caller: Principal, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    name = "cursor" if method == "resources/list" else "uri"
    given = params.get(name)
    if not isinstance(given, str) and (name == "uri" or given is not None):
        raise RequestFailed(INVALID_PARAMS, f"`{name}` should be a string")
    if name == "cursor":
        return await list_resources(server, caller, given)
    return await read_resource(server, caller, given or "")


async def _call(request: web.Request, server: Server, params: dict[str, Any]) -> dict[str, Any]:
    """Call a tool; its errors are results, so that the agent can correct the call."""
    tool = TOOLS.get(params["name"]) if isinstance(params.get("name"), str) else None
    if tool is None:
        raise RequestFailed(INVALID_PARAMS, "There is no such tool")
    arguments = params.get("arguments") or {}
    if tool.scope is not Scope.READ:
        request[AUDITED] = _audited(tool.name, arguments, HTTPStatus.INTERNAL_SERVER_ERROR)
    try:
        # Plain JSON types, for the audit note and the response.
        found = msgspec.to_builtins(await tool.call(server, request[PRINCIPAL], arguments))
    except AgentsvcError as exc:
        found, status = arguments, exc.status
        result = {"content": _text(f"{exc.code}: {error_text(exc)}"), "isError": True}
    else:
        status, text = HTTPStatus.OK, msgspec.json.encode(found).decode()
        result = {"content": _text(text), "structuredContent": found, "isError": False}
    if tool.scope is not Scope.READ:
        request[AUDITED] = _audited(tool.name, {**_object(arguments), **_object(found)}, status)
    return result


def _audited(tool: str, fields: Any, status: int) -> AuditNote:
    chosen = str(_object(fields).get("conversation_id") or "")[:64]
    subject = f"conversation_id={chosen}" if chosen else ""
    return AuditNote(action=f"MCP {tool}", subject=subject, status=status)


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


def _may(scope: Scope, caller: Principal) -> bool:
    try:
        check_scope(scope, caller)
    except NotAllowed:
        return False
    return True


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
