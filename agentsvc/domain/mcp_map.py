"""Tool servers (MCP) in the newer API generation: one map from names to servers.

The three lists of `mcp` and this map represent the same servers. Fields that the lists do not have
are kept in the `ToolServerExtras` of a server, so that neither form loses data of the other.
"""

import base64
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agentsvc.base import (
    MASK,
    NO_CONTROL,
    InvalidRequest,
    Problems,
    Secret,
    SentSecret,
    convert,
    has_control,
    stated,
)
from agentsvc.domain.mcp import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_TIMEOUT_SECONDS,
    PROCESS_NAME,
    PROCESS_NAME_FORM,
    Arguments,
    Command,
    Loc,
    McpConfig,
    Server,
    ServerUrl,
    ShttpServer,
    SseServer,
    StdioServer,
    StdioServerBody,
    ToolServerExtras,
    Variables,
    checked_url,
    read_mcp_config,
    to_stdio_server,
)

_SERVERS_MAX: Final = 100
_BEARER: Final = "Bearer "
_WRAPPER: Final = "mcpServers"
_LISTS: Final = frozenset({"sse_servers", "stdio_servers", "shttp_servers"})
_PROCESS_FIELDS: Final = ("command", "args", "env", "cwd", "timeout", "keep_alive")
_REMOTE_FIELDS: Final = ("url", "transport", "headers", "timeout", "sse_read_timeout", "keep_alive")
"""The fields of a tool server that agent servers accept."""
_NAME = re.compile(r"[^\0-\x1f\x7f]{1,100}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")

type _Text = Annotated[str, Meta(max_length=4096)]
type _Value = Annotated[SentSecret, Meta(max_length=65536), stated(pattern=NO_CONTROL)]
type _HeaderName = Annotated[
    str, Meta(max_length=4096), stated(pattern=rf"\A(?:{_HEADER_NAME.pattern})?\Z")
]
type _Headers = Annotated[
    dict[Annotated[str, stated(pattern=rf"\A{_HEADER_NAME.pattern}\Z")], _Value],
    Meta(max_length=100),
]
type _Seconds = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)]


class ServerAuth(Struct, frozen=True, kw_only=True):
    """How requests to a tool server are authenticated."""

    strategy: Literal["none", "api_key", "bearer", "basic", "header"]
    """Which of the fields below are used, and how"""
    value: _Value | None = None
    """The key or token, for `api_key` and `bearer`; null: none"""
    header_name: _HeaderName | None = None
    """Header for the key, for `api_key`; null: `Authorization`"""
    username: Annotated[_Text, stated(pattern=NO_CONTROL)] = ""
    """User name, for `basic`"""
    password: _Value | None = None
    """Password, for `basic`; null: none"""
    headers: _Headers = {}
    """Headers by name, for `header`"""


class NamedServer(Struct, frozen=True, kw_only=True):
    """A tool server with a URL, or with a command if it is a process in the sandbox."""

    url: ServerUrl | None = None
    """http, https, ws or wss URL of the tool server; null if it is a process"""
    command: Command | None = None
    """Program of the server, without arguments; null if it has a URL"""
    transport: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    """Transport; null: `stdio` for a process, otherwise `streamable-http`"""
    args: Arguments | None = None
    """Arguments of the program; a text, of at most 4096 characters, is split as by a shell. Null:
    none"""
    env: Variables | None = None
    """Environment variables of the program by name, stars for a stored value; a text has the form
    `A=1,B=2`. Null: none"""
    cwd: _Text | None = None
    """Working directory of the program; null: that of the agent"""
    headers: _Headers | None = None
    """Headers of each call by name, stars for a stored value; null: none"""
    auth: ServerAuth | Annotated[_Value, stated(**{"not": {"const": "oauth"}})] | None = None
    """Authentication of requests: a bearer token as text, or an object with a `strategy`; null: none
    """
    timeout: _Seconds | None = None
    """Time limit of one call in seconds, up to 3600; null: 60"""
    sse_read_timeout: _Seconds | None = None
    """Seconds that its stream may pause, up to 3600; null: no limit"""
    description: _Text | None = None
    """Description for users; stored and returned only. Null: none"""
    icon: _Text | None = None
    """Icon for a front end; stored and returned only. Null: none"""
    keep_alive: bool | None = None
    """Whether the process is kept between two calls; null: the agent server's default"""
    enabled: bool = True
    """Whether agents get the server; false keeps it without using it"""


_EITHER: Final = stated(
    anyOf=[
        {
            "required": ["url"],
            "properties": {
                "url": {"type": "string"},
                "transport": {"enum": ["http", "streamable-http", "sse", None]},
            },
        },
        {
            "required": ["command"],
            "properties": {
                "command": {"type": "string"},
                "transport": {"enum": ["stdio", None]},
            },
        },
    ]
)
"""The schema of a server: a URL, or a command that communicates over stdin and stdout."""
_PROCESSES: Final = stated(
    maxProperties=_SERVERS_MAX,
    patternProperties={"[^A-Za-z0-9_-]": {"properties": {"command": {"type": "null"}}}},
)
"""Servers that the agent server starts need a plain name."""

type _ServerName = Annotated[str, stated(pattern=rf"\A{_NAME.pattern}\Z")]
type NamedServers = Annotated[dict[_ServerName, Annotated[NamedServer, _EITHER]], _PROCESSES] | None


def read_mcp_map(raw: Any, *, loc: Sequence[str | int]) -> McpConfig | None:
    """Convert decoded JSON to tool servers; None for null or an empty map.

    Accepts the map itself, the map as the only member `mcpServers`, and the three lists of older
    clients. Raises InvalidRequest, located below `loc`. Stars in place of secrets are kept;
    `mcp.restore_secrets` replaces them.
    """
    where = tuple(loc)
    if not isinstance(raw, dict | None):
        raise InvalidRequest("Expected `object` or `null`", loc=where, kind="dict_type")
    if not raw:
        return None
    if raw.keys() <= _LISTS and all(isinstance(value, list) for value in raw.values()):
        return read_mcp_config(raw, loc=where)
    servers = raw.get(_WRAPPER, raw)
    where = (*where, _WRAPPER) if _WRAPPER in raw else where
    if not isinstance(servers, dict) or len(servers) > _SERVERS_MAX:
        raise InvalidRequest(f"Expected `object` of at most {_SERVERS_MAX} servers", loc=where)
    found: dict[str, Server] = {}
    problems = Problems()
    for name, item in servers.items():
        with problems.noted():
            found[name] = _to_server(name, item, (*where, name))
    problems.refuse()
    _refuse_duplicates(found, where)
    return McpConfig(
        sse_servers=tuple(one for one in found.values() if isinstance(one, SseServer)),
        stdio_servers=tuple(one for one in found.values() if isinstance(one, StdioServer)),
        shttp_servers=tuple(one for one in found.values() if isinstance(one, ShttpServer)),
    )


def show_mcp_map(config: McpConfig | None, *, is_revealed: bool = False) -> dict[str, Any]:
    """Return the map for clients, with secrets masked unless `is_revealed`."""
    named = _named_servers(config) if config else {}
    return {name: _from_server(server, is_revealed=is_revealed) for name, server in named.items()}


def to_agent(config: McpConfig) -> dict[str, dict[str, Any]]:
    """Return the map for the agent server, with secrets revealed; send it nowhere else.

    Disabled servers are omitted.
    """
    shown = show_mcp_map(config, is_revealed=True)
    return {name: _agent_fields(server) for name, server in shown.items() if server["enabled"]}


def _agent_fields(shown: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a server that the agent server accepts, as far as they are set."""
    names = _PROCESS_FIELDS if "command" in shown else _REMOTE_FIELDS
    is_set = {name: shown[name] is not None for name in names}
    is_set["headers"] = bool(shown.get("headers"))
    return {name: shown[name] for name in names if is_set[name]}


def _to_server(name: str, raw: Any, loc: Loc) -> Server:
    if not _NAME.fullmatch(name):
        raise InvalidRequest("A name has 1 to 100 printable characters", loc=loc)
    wire = convert(raw, NamedServer, loc=loc)
    if wire.command is not None and wire.transport in (None, "stdio"):
        return _to_stdio(name, wire, loc)
    if wire.url is not None and wire.transport != "stdio":
        return _to_remote(name, wire, loc)
    raise InvalidRequest("A server has a `url`, or a `command` if it is a process", loc=loc)


def _to_stdio(name: str, wire: NamedServer, loc: Loc) -> StdioServer:
    if not re.fullmatch(PROCESS_NAME, name):
        raise InvalidRequest(
            f"Expected `string` {PROCESS_NAME_FORM}", loc=loc, kind="string_pattern_mismatch"
        )
    body = StdioServerBody(
        name=name, command=wire.command or "", args=wire.args or [], env=wire.env or {}
    )
    extras = _extras(wire, timeout_seconds=wire.timeout, cwd=wire.cwd)
    return msgspec.structs.replace(to_stdio_server(body, loc), extras=extras)


def _to_remote(name: str, wire: NamedServer, loc: Loc) -> Server:
    headers = _headers(wire, loc)
    key = _bearer(headers)
    url = checked_url(wire.url or "", loc)
    if wire.transport == "sse":
        extras = _extras(wire, name=name, headers=headers, timeout_seconds=wire.timeout)
        return SseServer(url=url, api_key=key, extras=extras)
    return ShttpServer(
        url=url,
        api_key=key,
        timeout_seconds=math.ceil(wire.timeout or DEFAULT_TIMEOUT_SECONDS),
        extras=_extras(wire, name=name, headers=headers, transport=wire.transport),
    )


def _extras(wire: NamedServer, **given: Any) -> ToolServerExtras:
    return ToolServerExtras(
        sse_read_timeout_seconds=wire.sse_read_timeout,
        description=wire.description,
        icon=wire.icon,
        keep_alive=wire.keep_alive,
        enabled=wire.enabled,
        **given,
    )


def _headers(wire: NamedServer, loc: Loc) -> dict[str, Secret]:
    """Return the headers of a server, including those for authentication."""
    headers = {**(wire.headers or {}), **_auth_headers(wire.auth, loc)}
    problems = Problems()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or has_control(value):
            problems.note("This is not a valid HTTP header", loc=(*loc, "headers", name))
    problems.refuse()
    # One spelling, so that `_bearer` finds the key.
    return {
        "Authorization" if name.lower() == "authorization" else name: Secret(value)
        for name, value in headers.items()
    }


def _auth_headers(auth: ServerAuth | str | None, loc: Loc) -> dict[str, str]:
    if isinstance(auth, str):
        if auth == "oauth":
            raise InvalidRequest(
                "Tool servers with OAuth are not supported; use a token", loc=(*loc, "auth")
            )
        auth = ServerAuth(strategy="bearer", value=auth)
    if auth is None:
        return {}
    match auth.strategy:
        case "none":
            return {}
        case "header":
            return auth.headers
        case "basic":
            return {"Authorization": _basic(auth)}
        case "api_key" | "bearer":
            return _key_header(auth)


def _key_header(auth: ServerAuth) -> dict[str, str]:
    if not auth.value:
        return {}
    if auth.header_name and auth.strategy == "api_key":
        return {auth.header_name: auth.value}
    return {"Authorization": MASK if auth.value == MASK else _BEARER + auth.value}


def _basic(auth: ServerAuth) -> str:
    if auth.password == MASK:
        return MASK
    pair = f"{auth.username}:{auth.password or ''}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _bearer(headers: dict[str, Secret]) -> Secret | None:
    """Pop the bearer token from the headers; stars stay, because they may mean any header."""
    value = headers.get("Authorization", Secret("")).reveal()
    if not value.startswith(_BEARER):
        return None
    del headers["Authorization"]
    return Secret(value.removeprefix(_BEARER).strip())


def _refuse_duplicates(found: dict[str, Server], loc: Loc) -> None:
    seen: set[tuple[type, str]] = set()
    for name, server in found.items():
        if isinstance(server, StdioServer):
            continue
        if (type(server), server.url) in seen:
            raise InvalidRequest("Another server has the same URL", loc=(*loc, name, "url"))
        seen.add((type(server), server.url))


def _from_server(server: Server, *, is_revealed: bool) -> dict[str, Any]:
    show = Secret.reveal if is_revealed else str
    extras = server.extras or ToolServerExtras()
    if isinstance(server, StdioServer):
        body: dict[str, Any] = {
            "transport": "stdio",
            "command": server.command,
            "args": list(server.args),
            "env": {name: show(value) for name, value in server.env.items()},
            "cwd": extras.cwd,
        }
    else:
        headers = dict(extras.headers)
        if server.api_key is not None:
            headers["Authorization"] = Secret(f"{_BEARER}{server.api_key.reveal()}")
        usual = "sse" if isinstance(server, SseServer) else "streamable-http"
        body = {
            "transport": extras.transport or usual,
            "url": server.url,
            "headers": {name: show(value) for name, value in headers.items()},
        }
    own = server.timeout_seconds if isinstance(server, ShttpServer) else extras.timeout_seconds
    return body | {
        "timeout": own,
        "sse_read_timeout": extras.sse_read_timeout_seconds,
        "description": extras.description,
        "icon": extras.icon,
        "keep_alive": extras.keep_alive,
        "enabled": extras.enabled,
    }


def _named_servers(config: McpConfig) -> dict[str, Server]:
    """Return every server by name; a server without one is named by its kind and index."""
    named: dict[str, Server] = {stdio.name: stdio for stdio in config.stdio_servers}
    lists: list[tuple[str, Sequence[SseServer | ShttpServer]]] = [
        ("sse", config.sse_servers),
        ("shttp", config.shttp_servers),
    ]
    for kind, servers in lists:
        for index, server in enumerate(servers):
            name = (server.extras.name if server.extras else "") or f"{kind}_{index}"
            while name in named:
                name += "_"
            named[name] = server
    return named
