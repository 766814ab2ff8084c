"""Detection of tool servers (MCP) that fail to start in a new conversation.

The agent server continues without a tool server that does not start, and reports that only in its
own log. The agent's first event lists its tools: a tool server without any tool in that list is
tried once more; if it is a program, its standard error is written to a file. Failures of the check
itself are logged, and the tool server counts as working.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any, Final

import msgspec

from agentsvc.agentserver import AgentServer, decode_events
from agentsvc.base import AgentsvcError, Secret, without_secrets

log = logging.getLogger(__name__)

TRY_SECONDS: Final = 15.0
"""The time limit for a tool server to list its tools when it is tried."""

_COMMAND_SECONDS: Final = 10.0
_LINES: Final = 20
_MAX_CHARS: Final = 4000
_SHORTEST_SECRET: Final = 4
_MCP_TOOL: Final = "MCPToolDefinition"
_CAPTURE: Final = (
    'log=$1; shift; "$@" 2>"$log"; echo "The program ended with exit status $?" >>"$log"'
)

type Servers = Mapping[str, Mapping[str, Any]]
"""Tool servers by name, in the format of the agent server."""


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an agent, as listed in its first event."""

    kind: str = ""
    title: str | None = None


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    tools: list[ListedTool] = []


_event = msgspec.json.Decoder(_Event)


async def find_failures(
    agent: AgentServer, conversation_id: str, servers: Servers, *, has_begun: bool
) -> list[str]:
    """Return a message with the reason for each tool server that does not start.

    If the agent has begun, its tool list shows which servers to try; otherwise all are tried.
    """
    try:
        tried = await _without_tools(agent, conversation_id, servers) if has_begun else servers
        return await _try_all(agent, tried)
    except AgentsvcError as exc:
        log.info(
            "tool servers cannot be checked",
            extra={"conversation_id": conversation_id, "reason": str(exc)},
        )
        return []


async def _without_tools(agent: AgentServer, conversation_id: str, servers: Servers) -> Servers:
    async for page in agent.event_pages(conversation_id):
        for event in decode_events(_event, page):
            if event.kind == "SystemPromptEvent":
                return without_tools(servers, event.tools)
    return servers


def without_tools(servers: Servers, tools: Iterable[ListedTool]) -> Servers:
    """Return the servers without a tool in the list.

    With several servers, the name of a tool begins with that of its server.
    """
    names = [tool.title or "" for tool in tools if tool.kind == _MCP_TOOL]
    if len(servers) == 1:
        return {} if names else servers
    longest_first = sorted(servers, key=len, reverse=True)
    seen = {
        next((name for name in longest_first if tool.startswith(f"{name}_")), "") for tool in names
    }
    return {name: server for name, server in servers.items() if name not in seen}


async def _try_all(agent: AgentServer, servers: Servers) -> list[str]:
    if not servers:
        return []
    directory = ""
    if any("command" in server for server in servers.values()):
        made = await agent.run_command("mktemp -d", time_limit=_COMMAND_SECONDS)
        directory = made.stdout.strip()
    tries = (
        _check(agent, name, server, f"{directory}/{index}" if directory else "")
        for index, (name, server) in enumerate(servers.items())
    )
    try:
        problems = await asyncio.gather(*tries)
    finally:
        if directory:
            await agent.run_command(f"rm -rf {quote(directory)}", time_limit=_COMMAND_SECONDS)
    return [text for text in problems if text]


async def _check(agent: AgentServer, name: str, server: Mapping[str, Any], output: str) -> str:
    """Return why a tool server does not start; empty if it starts or cannot be checked."""
    is_captured = "command" in server and bool(output)
    try:
        problem = await agent.try_tool_server(
            name, _captured(server, output) if is_captured else server, time_limit=TRY_SECONDS
        )
        if problem is None:
            return ""
        lines = await _last_lines(agent, output) if is_captured else ""
    except AgentsvcError as exc:
        log.info("tool server cannot be checked", extra={"reason": str(exc)})
        return ""
    text = (
        f"The tool server `{name}` does not start, so the agent has none of its tools:"
        f" {problem.partition('\n')[0]}"
    )
    return _redact(f"{text}\nThe last lines of the program:\n{lines}" if lines else text, server)


def _captured(server: Mapping[str, Any], output: str) -> dict[str, Any]:
    """Wrap a program so that its standard error and its exit status are written to a file."""
    program = [server["command"], *server.get("args", ())]
    return {**server, "command": "sh", "args": ["-c", _CAPTURE, "sh", output, *program]}


async def _last_lines(agent: AgentServer, output: str) -> str:
    found = await agent.run_command(
        f"tail -n {_LINES} {quote(output)}", time_limit=_COMMAND_SECONDS
    )
    return found.stdout.strip()[-_MAX_CHARS:]


def _redact(text: str, server: Mapping[str, Any]) -> str:
    values = [value for part in ("env", "headers") for value in server.get(part, {}).values()]
    return without_secrets(text, [Secret(item) for item in values if len(item) >= _SHORTEST_SECRET])
