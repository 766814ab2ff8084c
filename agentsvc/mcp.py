"""Tool servers (MCP) an agent may use: what they are, how they are read, shown and handed over.

Reading takes what published clients send: plain URLs, shell-like argument strings and
`A=1,B=2` environments. Secrets are shown as stars, and stars that come back mean "unchanged".
"""

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from agentsvc.errors import InvalidRequest
from agentsvc.values import MASK, Secret, has_control

DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_TIMEOUT_SECONDS: Final = 3600

_SCHEMES = frozenset({"http", "https", "ws", "wss"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_QUOTED = re.compile(r"`([^`]*)`")

Loc = tuple[str | int, ...]


class Extras(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What only the newer form of a tool server can say, see `mcpmap`."""

    name: str = ""
    """How the user calls a server that is reached by its URL."""
    headers: dict[str, Secret] = {}
    timeout_seconds: float | None = None
    sse_read_timeout_seconds: float | None = None
    transport: str | None = None
    cwd: str | None = None
    description: str | None = None
    icon: str | None = None
    keep_alive: bool | None = None
    enabled: bool = True


class SseServer(Struct, frozen=True, kw_only=True):
    """A tool server reached over server-sent events."""

    url: str
    api_key: Secret | None = None
    extras: Extras | None = None
    """None in a change means that the stored ones stay."""


class ShttpServer(Struct, frozen=True, kw_only=True):
    """A tool server reached over streaming HTTP."""

    url: str
    api_key: Secret | None = None
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    extras: Extras | None = None


class StdioServer(Struct, frozen=True, kw_only=True):
    """A tool server that runs as a process inside the sandbox."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, Secret] = {}
    extras: Extras | None = None


type Server = SseServer | ShttpServer | StdioServer


class McpConfig(Struct, frozen=True, kw_only=True):
    """The tool servers of a user or of one conversation."""

    sse_servers: tuple[SseServer, ...] = ()
    stdio_servers: tuple[StdioServer, ...] = ()
    shttp_servers: tuple[ShttpServer, ...] = ()


# As clients send it

_Url = Annotated[str, Meta(max_length=8192)]
_Key = Annotated[str, Meta(max_length=65536)]
_Text = Annotated[str, Meta(max_length=65536)]
_List = Annotated[list[Any], Meta(max_length=100)]


class _SseWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: _Url
    api_key: _Key | None = None


class _ShttpWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: _Url
    api_key: _Key | None = None
    timeout: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] | None = None


class _StdioWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\Z")]
    command: Annotated[str, Meta(max_length=4096)]
    args: Annotated[list[_Text], Meta(max_length=1000)] | _Text = []
    env: Annotated[dict[str, _Text], Meta(max_length=1000)] | _Text = {}


class _ConfigWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sse_servers: _List = []
    stdio_servers: _List = []
    shttp_servers: _List = []


def read_mcp_config(raw: Any, *, loc: Sequence[str | int] = ("body", "mcp_config")) -> McpConfig:
    """Return the tool servers a decoded JSON value describes.

    Raises InvalidRequest, located below `loc`, for an unknown field, a URL without scheme or
    host, a second server of the same URL or name, and anything else that does not fit. Stars in
    place of secrets are kept as they are; `restore_secrets` replaces them.
    """
    where = tuple(loc)
    wire = _convert(raw, _ConfigWire, where)
    config = McpConfig(
        sse_servers=tuple(
            _to_sse(item, (*where, "sse_servers", index))
            for index, item in enumerate(wire.sse_servers)
        ),
        stdio_servers=tuple(
            _to_stdio(item, (*where, "stdio_servers", index))
            for index, item in enumerate(wire.stdio_servers)
        ),
        shttp_servers=tuple(
            _to_shttp(item, (*where, "shttp_servers", index))
            for index, item in enumerate(wire.shttp_servers)
        ),
    )
    _refuse_twice([server.url for server in config.sse_servers], "url", (*where, "sse_servers"))
    _refuse_twice([server.url for server in config.shttp_servers], "url", (*where, "shttp_servers"))
    _refuse_twice(
        [server.name for server in config.stdio_servers], "name", (*where, "stdio_servers")
    )
    return config


def show_mcp_config(config: McpConfig, *, is_revealed: bool = False) -> dict[str, Any]:
    """Return the JSON value clients read, with stars in place of secrets unless asked for them."""
    shown = Secret.reveal if is_revealed else str
    return {
        "sse_servers": [
            {"url": server.url, "api_key": shown(server.api_key) if server.api_key else None}
            for server in config.sse_servers
        ],
        "stdio_servers": [
            {
                "name": server.name,
                "command": server.command,
                "args": list(server.args),
                "env": {name: shown(value) for name, value in server.env.items()},
            }
            for server in config.stdio_servers
        ],
        "shttp_servers": [
            {
                "url": server.url,
                "api_key": shown(server.api_key) if server.api_key else None,
                "timeout": server.timeout_seconds,
            }
            for server in config.shttp_servers
        ],
    }


def restore_secrets(
    config: McpConfig,
    stored: McpConfig | None,
    *,
    loc: Sequence[str | int] = ("body", "mcp_config"),
) -> McpConfig:
    """Return the config with the stored secret wherever it has stars.

    A server is the same one if it has the same URL or, for a process, the same name; it keeps what
    the form it came in cannot say. Raises InvalidRequest for stars that stand for nothing.
    """
    old = stored or McpConfig()
    sse = {server.url: server for server in old.sse_servers}
    shttp = {server.url: server for server in old.shttp_servers}
    stdio = {server.name: server for server in old.stdio_servers}
    return McpConfig(
        sse_servers=tuple(
            _restored_remote(server, sse.get(server.url), (*loc, "sse_servers", index))
            for index, server in enumerate(config.sse_servers)
        ),
        stdio_servers=tuple(
            _restored_stdio(server, stdio.get(server.name), (*loc, "stdio_servers", index))
            for index, server in enumerate(config.stdio_servers)
        ),
        shttp_servers=tuple(
            _restored_remote(server, shttp.get(server.url), (*loc, "shttp_servers", index))
            for index, server in enumerate(config.shttp_servers)
        ),
    )


def to_agent(config: McpConfig) -> dict[str, dict[str, Any]]:
    """Return the map the agent server takes, secrets revealed; it goes nowhere else.

    Servers that are switched off are not in it.
    """
    return {
        name: _to_agent_server(server)
        for name, server in named_servers(config).items()
        if server.extras is None or server.extras.enabled
    }


def named_servers(config: McpConfig) -> dict[str, Server]:
    """Return every server under its name; those without one are called by kind and place."""
    named: dict[str, Server] = {stdio.name: stdio for stdio in config.stdio_servers}
    remote: list[tuple[str, SseServer | ShttpServer]] = [
        *((f"sse_{index}", sse) for index, sse in enumerate(config.sse_servers)),
        *((f"shttp_{index}", shttp) for index, shttp in enumerate(config.shttp_servers)),
    ]
    for usual_name, server in remote:
        name = server.extras.name if server.extras else ""
        named[_free_name(name or usual_name, named)] = server
    return named


def server_headers(server: SseServer | ShttpServer) -> dict[str, Secret]:
    """Return the headers a server is called with."""
    headers = dict(server.extras.headers) if server.extras else {}
    if server.api_key is not None:
        headers["Authorization"] = Secret(f"Bearer {server.api_key.reveal()}")
    return headers


def _to_agent_server(server: Server) -> dict[str, Any]:
    extras = server.extras or Extras()
    if isinstance(server, StdioServer):
        body: dict[str, Any] = {
            "command": server.command,
            "args": list(server.args),
            "env": {name: value.reveal() for name, value in server.env.items()},
        }
        optional = {"cwd": extras.cwd, "timeout": extras.timeout_seconds}
    else:
        body = {"url": server.url, "transport": transport_of(server), **_headers(server)}
        optional = {
            "timeout": timeout_of(server),
            "sse_read_timeout": extras.sse_read_timeout_seconds,
        }
    optional["keep_alive"] = extras.keep_alive
    return body | {name: value for name, value in optional.items() if value is not None}


def transport_of(server: SseServer | ShttpServer) -> str:
    """Return the name of the way a server is talked to."""
    if isinstance(server, SseServer):
        return "sse"
    return (server.extras.transport if server.extras else None) or "streamable-http"


def timeout_of(server: Server) -> float | None:
    """Return how many seconds a call to a server may take, or None if that is not set."""
    if isinstance(server, ShttpServer):
        return server.timeout_seconds
    return server.extras.timeout_seconds if server.extras else None


def _to_sse(raw: Any, loc: Loc) -> SseServer:
    wire = _convert(_as_server(raw), _SseWire, loc)
    return SseServer(url=_url(wire.url, loc), api_key=_secret(wire.api_key, loc))


def _to_shttp(raw: Any, loc: Loc) -> ShttpServer:
    wire = _convert(_as_server(raw), _ShttpWire, loc)
    return ShttpServer(
        url=_url(wire.url, loc),
        api_key=_secret(wire.api_key, loc),
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if wire.timeout is None else wire.timeout,
    )


def _to_stdio(raw: Any, loc: Loc) -> StdioServer:
    wire = _convert(raw, _StdioWire, loc)
    command = wire.command.strip()
    if not command:
        raise InvalidRequest("Command cannot be empty", loc=(*loc, "command"))
    if re.search(r"[\s\0]", command):
        raise InvalidRequest(
            "Command must be a single program without spaces; its arguments go into args",
            loc=(*loc, "command"),
        )
    return StdioServer(
        name=wire.name,
        command=command,
        args=_args(wire.args, (*loc, "args")),
        env=_env(wire.env, (*loc, "env")),
    )


def _as_server(raw: Any) -> Any:
    return {"url": raw} if isinstance(raw, str) else raw


def _url(text: str, loc: Loc) -> str:
    where = (*loc, "url")
    url = text.strip()
    if not url:
        raise InvalidRequest("URL cannot be empty", loc=where)
    if re.search(r"\s", url) or has_control(url):
        raise InvalidRequest("URL must not contain spaces or control characters", loc=where)
    try:
        parts = urlsplit(url)
        host, scheme, _ = parts.hostname, parts.scheme, parts.port
    except ValueError as exc:
        raise InvalidRequest("URL is not valid", loc=where, detail=str(exc)) from exc
    if not scheme:
        raise InvalidRequest("URL must include a scheme (http:// or https://)", loc=where)
    if scheme not in _SCHEMES:
        raise InvalidRequest("URL scheme must be http, https, ws, or wss", loc=where)
    if not host:
        raise InvalidRequest("URL must include a valid domain/host", loc=where)
    return url


def _args(given: list[str] | str, loc: Loc) -> tuple[str, ...]:
    try:
        args = shlex.split(given) if isinstance(given, str) else given
    except ValueError as exc:
        raise InvalidRequest(f"Arguments cannot be split: {exc}", loc=loc) from exc
    if any("\0" in arg for arg in args):
        raise InvalidRequest("Arguments must not contain NUL", loc=loc)
    return tuple(args)


def _env(given: dict[str, str] | str, loc: Loc) -> dict[str, Secret]:
    pairs = _env_pairs(given, loc) if isinstance(given, str) else given
    for name, value in pairs.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequest(
                "Environment names have letters, digits and `_`, and no digit in front",
                loc=(*loc, name),
            )
        if "\0" in value:
            raise InvalidRequest("Environment values must not contain NUL", loc=(*loc, name))
    return {name: Secret(value) for name, value in pairs.items()}


def _env_pairs(text: str, loc: Loc) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if name and not equals:
            raise InvalidRequest("Environment must look like `A=1,B=2`", loc=loc)
        if equals:
            pairs[name.strip()] = value
    return pairs


def _refuse_twice(ids: list[str], field: str, loc: Loc) -> None:
    seen: set[str] = set()
    for index, name in enumerate(ids):
        if name in seen:
            raise InvalidRequest(
                f"Another server of this list has the same {field}", loc=(*loc, index, field)
            )
        seen.add(name)


def _restored_remote[T: (SseServer, ShttpServer)](server: T, stored: T | None, loc: Loc) -> T:
    old_key = stored.api_key if stored else None
    old_extras = (stored.extras if stored else None) or Extras()
    extras = server.extras
    key = server.api_key
    if extras is None:
        extras = stored.extras if stored else None
    else:
        given = dict(extras.headers)
        if old_key and not key and _is_masked(given.get("Authorization")):
            # The stored key was shown as this header.
            key = given.pop("Authorization")
        headers = _restored_map(given, old_extras.headers, (*loc, "headers"))
        extras = msgspec.structs.replace(extras, headers=headers)
    return msgspec.structs.replace(
        server, api_key=_restored(key, old_key, (*loc, "api_key")), extras=extras
    )


def _restored_stdio(server: StdioServer, stored: StdioServer | None, loc: Loc) -> StdioServer:
    return msgspec.structs.replace(
        server,
        env=_restored_map(server.env, stored.env if stored else {}, (*loc, "env")),
        extras=stored.extras if stored and server.extras is None else server.extras,
    )


def _restored(given: Secret | None, stored: Secret | None, loc: Loc) -> Secret | None:
    if not _is_masked(given):
        return given
    if stored is None:
        raise InvalidRequest(f"`{MASK}` stands for a stored secret, and none is stored", loc=loc)
    return stored


def _restored_map(
    given: dict[str, Secret], stored: dict[str, Secret], loc: Loc
) -> dict[str, Secret]:
    restored = {
        name: _restored(value, stored.get(name), (*loc, name)) for name, value in given.items()
    }
    return {name: value for name, value in restored.items() if value is not None}


def _is_masked(value: Secret | None) -> bool:
    return value is not None and value.reveal() == MASK


def _secret(value: str | None, loc: Loc) -> Secret | None:
    if value and has_control(value):
        raise InvalidRequest("Key must not contain control characters", loc=(*loc, "api_key"))
    return Secret(value) if value else None


def _headers(server: SseServer | ShttpServer) -> dict[str, Any]:
    headers = {name: value.reveal() for name, value in server_headers(server).items()}
    return {"headers": headers} if headers else {}


def _free_name(name: str, taken: dict[str, Server]) -> str:
    while name in taken:
        name += "_"
    return name


def _convert[T](raw: Any, kind: type[T], loc: Loc) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as exc:
        raise _refusal(str(exc), loc) from exc


def _refusal(text: str, loc: Loc) -> InvalidRequest:
    """Return the error for a message of msgspec, with the place it names as a location."""
    message = _PATH.sub("", text)
    found = _PATH.search(text)
    steps = tuple(
        int(step["index"]) if step["index"] else step["name"]
        for step in _STEP.finditer(found["path"] if found else "")
    )
    named = _QUOTED.search(message)
    if message.startswith("Object missing") and named:
        return InvalidRequest("Field required", loc=(*loc, *steps, named[1]), kind="missing")
    if message.startswith("Object contains unknown") and named:
        return InvalidRequest(
            "Extra inputs are not permitted", loc=(*loc, *steps, named[1]), kind="extra_forbidden"
        )
    return InvalidRequest(message, loc=(*loc, *steps))
