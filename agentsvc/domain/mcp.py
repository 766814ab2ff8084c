"""Tool servers (MCP) of agents: validation, masked display, and restoring of masked secrets.

Accepts what published clients send: plain URLs, shell-like argument strings and
`A=1,B=2` environments. Secrets are shown as stars; stars in a request mean "unchanged".
"""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from agentsvc.base import (
    MASK,
    NO_CONTROL,
    TOOL_SERVER_URL,
    InvalidRequest,
    Problems,
    Secret,
    SentSecret,
    convert,
    has_control,
    matching,
    stated,
    with_check,
)

DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_TIMEOUT_SECONDS: Final = 3600

_VARIABLES_MAX: Final = 1000

PROCESS_NAME: Final = r"\A[A-Za-z0-9_-]{1,100}\Z"
PROCESS_NAME_FORM: Final = "of 1 to 100 letters, digits, `_` and `-`"

_SCHEMES = frozenset({"http", "https", "ws", "wss"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Loc = tuple[str | int, ...]
_LOC: Final = ("body", "mcp_config")


class ToolServerExtras(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a tool server that only the newer form has, see `mcp_map`."""

    name: str = ""
    """The user's name for a server with a URL."""
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
    extras: ToolServerExtras | None = None
    """None in a change keeps the stored extras."""


class ShttpServer(Struct, frozen=True, kw_only=True):
    """A tool server reached over streaming HTTP."""

    url: str
    api_key: Secret | None = None
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    extras: ToolServerExtras | None = None


class StdioServer(Struct, frozen=True, kw_only=True):
    """A tool server that runs as a process inside the sandbox."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, Secret] = {}
    extras: ToolServerExtras | None = None


type Server = SseServer | ShttpServer | StdioServer


class McpConfig(Struct, frozen=True, kw_only=True):
    """The tool servers of a user or of one conversation."""

    sse_servers: tuple[SseServer, ...] = ()
    stdio_servers: tuple[StdioServer, ...] = ()
    shttp_servers: tuple[ShttpServer, ...] = ()


# Request bodies

_Key = Annotated[SentSecret, Meta(max_length=65536)]
_Text = Annotated[str, Meta(max_length=65536)]

type ServerUrl = Annotated[str, Meta(max_length=8192), stated(pattern=rf"\A{TOOL_SERVER_URL}\Z")]
type Command = Annotated[str, Meta(max_length=4096), stated(pattern=r"\A[^\s\0]+\Z")]
type Arguments = (
    Annotated[list[Annotated[_Text, stated(pattern=r"\A[^\0]*\Z")]], Meta(max_length=1000)]
    # Splitting takes microseconds per character.
    | Annotated[
        str,
        Meta(max_length=4096),
        stated(pattern=r"""\A(?:[^'"\\\0]|'[^'\0]*'|"(?:[^"\\\0]|\\[^\0])*"|\\[^\0])*\Z"""),
    ]
)
type Variables = (
    Annotated[
        dict[
            Annotated[str, stated(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")],
            Annotated[SentSecret, Meta(max_length=65536), stated(pattern=r"\A[^\0]*\Z")],
        ],
        Meta(max_length=_VARIABLES_MAX),
    ]
    | Annotated[_Key, stated(pattern=r"\A(?:[A-Za-z_][A-Za-z0-9_]*=[^,\0]*(?:,|\Z))*\Z")]
)


class SseServerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool server reached over server-sent events."""

    url: ServerUrl
    """http, https, ws or wss URL of the tool server, at most 8192 characters"""
    api_key: Annotated[_Key, stated(pattern=NO_CONTROL)] | None = None
    """Key that is sent as `Authorization: Bearer`; null or empty: none, stars: the stored one"""


class ShttpServerBody(SseServerBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool server reached over HTTP; its timeout is in seconds."""

    timeout: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] | None = None
    """Time limit of one call in seconds, 1 to 3600; null: 60"""


class StdioServerBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool server that runs as a process in the sandbox; texts are split as by a shell."""

    name: Annotated[str, matching(PROCESS_NAME, PROCESS_NAME_FORM)]
    """Name of the server: 1 to 100 letters, digits, `_` and `-`"""
    command: Command
    """Program of the server, without arguments"""
    args: Arguments = []
    """Its arguments; a text, of at most 4096 characters, is split as by a shell"""
    env: Variables = {}
    """Its environment variables by name, stars for a stored value; a text has the form `A=1,B=2`"""


def _check_sse(raw: Any, *, loc: Loc) -> None:
    _to_sse(raw if isinstance(raw, str) else convert(raw, SseServerBody, loc=loc), loc)


def _check_shttp(raw: Any, *, loc: Loc) -> None:
    _to_shttp(raw if isinstance(raw, str) else convert(raw, ShttpServerBody, loc=loc), loc)


def _check_stdio(raw: Any, *, loc: Loc) -> None:
    to_stdio_server(convert(raw, StdioServerBody, loc=loc), loc)


_LIST: Final = Meta(max_length=100, extra_json_schema={"uniqueItems": True})


class McpListsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tool servers in three lists; a URL alone is a server without a key.

    No two servers of a list may have the same URL, or the same name.
    """

    sse_servers: Annotated[
        list[Annotated[SseServerBody | ServerUrl, with_check(_check_sse)]], _LIST
    ] = []
    """Tool servers reached over server-sent events, at most 100"""
    stdio_servers: Annotated[list[Annotated[StdioServerBody, with_check(_check_stdio)]], _LIST] = []
    """Tool servers that run as processes in the sandbox, at most 100"""
    shttp_servers: Annotated[
        list[Annotated[ShttpServerBody | ServerUrl, with_check(_check_shttp)]], _LIST
    ] = []
    """Tool servers reached over HTTP, at most 100"""


def read_mcp_config(raw: Any, *, loc: Loc = _LOC) -> McpConfig:
    """Convert decoded JSON to tool servers, see `to_mcp_config`."""
    return _to_config(convert(raw, McpListsBody, loc=loc), loc)


def to_mcp_config(given: McpListsBody | None) -> McpConfig | None:
    """Convert a request body to tool servers; None for null.

    Raises InvalidRequest, located below `mcp_config`, for a URL without scheme or host, a second server with
    the same URL or name, and the like. Stars in place of secrets are kept; `restore_secrets` replaces
    them.
    """
    return None if given is None else _to_config(given, _LOC)


def _to_config(given: McpListsBody, loc: Loc) -> McpConfig:
    problems = Problems()
    config = McpConfig(
        sse_servers=_read_all(given.sse_servers, _to_sse, (*loc, "sse_servers"), problems),
        stdio_servers=_read_all(
            given.stdio_servers, to_stdio_server, (*loc, "stdio_servers"), problems
        ),
        shttp_servers=_read_all(given.shttp_servers, _to_shttp, (*loc, "shttp_servers"), problems),
    )
    problems.refuse()
    for name in McpConfig.__struct_fields__:
        _refuse_duplicates(getattr(config, name), (*loc, name))
    return config


def show_mcp_config(config: McpConfig, *, is_revealed: bool = False) -> dict[str, Any]:
    """Return tool servers as JSON for clients, with secrets masked unless `is_revealed`."""
    shown = Secret.reveal if is_revealed else str

    def remote(server: SseServer | ShttpServer) -> dict[str, Any]:
        return {"url": server.url, "api_key": shown(server.api_key) if server.api_key else None}

    return {
        "sse_servers": [remote(server) for server in config.sse_servers],
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
            {**remote(server), "timeout": server.timeout_seconds} for server in config.shttp_servers
        ],
    }


def restore_secrets(config: McpConfig, stored: McpConfig | None) -> McpConfig:
    """Return the config with stars replaced by the stored secrets.

    Servers match by URL or, for a process, by name; fields that the request's form does not have are
    kept. Raises InvalidRequest for stars without a stored secret.
    """
    old = stored or McpConfig()
    return McpConfig(
        **{
            name: _restored_all(getattr(config, name), getattr(old, name), (*_LOC, name))
            for name in McpConfig.__struct_fields__
        }
    )


def _read_all[B, T](
    items: list[B], read: Callable[[B, Loc], T], loc: Loc, problems: Problems
) -> tuple[T, ...]:
    """Convert the valid items of a list, and collect the problems of the others."""
    found: list[T] = []
    for index, item in enumerate(items):
        with problems.noted():
            found.append(read(item, (*loc, index)))
    return tuple(found)


def _to_sse(given: SseServerBody | str, loc: Loc) -> SseServer:
    body = SseServerBody(url=given) if isinstance(given, str) else given
    url, key = _url_and_key(body, loc)
    return SseServer(url=url, api_key=key)


def _to_shttp(given: ShttpServerBody | str, loc: Loc) -> ShttpServer:
    body = ShttpServerBody(url=given) if isinstance(given, str) else given
    url, key = _url_and_key(body, loc)
    seconds = DEFAULT_TIMEOUT_SECONDS if body.timeout is None else body.timeout
    return ShttpServer(url=url, api_key=key, timeout_seconds=seconds)


def _url_and_key(body: SseServerBody, loc: Loc) -> tuple[str, Secret | None]:
    """Return the validated URL and key of a server."""
    problems = Problems()
    url, key = "", None
    with problems.noted():
        url = checked_url(body.url, loc)
    with problems.noted():
        key = _secret(body.api_key, loc)
    problems.refuse()
    return url, key


def to_stdio_server(body: StdioServerBody, loc: Loc) -> StdioServer:
    """Convert a process server; raises InvalidRequest with all problems."""
    problems = Problems()
    made = StdioServer(name=body.name, command="")
    with problems.noted():
        made = msgspec.structs.replace(made, command=_command(body.command, (*loc, "command")))
    with problems.noted():
        made = msgspec.structs.replace(made, args=_args(body.args, (*loc, "args")))
    with problems.noted():
        made = msgspec.structs.replace(made, env=_env(body.env, (*loc, "env")))
    problems.refuse()
    return made


def _command(text: str, loc: Loc) -> str:
    command = text.strip()
    if not command:
        raise InvalidRequest("Command cannot be empty", loc=loc)
    if re.search(r"[\s\0]", command):
        raise InvalidRequest(
            "Command must be a single program without spaces; its arguments go into args", loc=loc
        )
    return command


def checked_url(text: str, loc: Loc) -> str:
    """Return the stripped URL of a server; raises InvalidRequest if it is invalid."""
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
    if not host or not re.fullmatch(TOOL_SERVER_URL, url):
        raise InvalidRequest("URL must include a valid domain/host", loc=where)
    return url


def _args(given: list[str] | str, loc: Loc) -> tuple[str, ...]:
    try:
        args = shlex.split(given) if isinstance(given, str) else given
    except ValueError as exc:
        text = "Arguments cannot be split: unterminated quotation or escape"
        raise InvalidRequest(text, loc=loc, detail=str(exc)) from exc
    if any("\0" in arg for arg in args):
        raise InvalidRequest("Arguments must not contain NUL", loc=loc)
    return tuple(args)


def _env(given: dict[str, str] | str, loc: Loc) -> dict[str, Secret]:
    pairs = _env_pairs(given, loc) if isinstance(given, str) else given
    problems = Problems()
    for name, value in pairs.items():
        if not _VARIABLE.fullmatch(name):
            text = "Environment names have letters, digits and `_`, and do not begin with a digit"
            problems.note(text, loc=(*loc, name))
        if "\0" in value:
            problems.note("Environment values must not contain NUL", loc=(*loc, name))
    problems.refuse()
    return {name: Secret(value) for name, value in pairs.items()}


def _env_pairs(text: str, loc: Loc) -> dict[str, str]:
    pairs: dict[str, str] = {}
    items = text.split(",", _VARIABLES_MAX)
    if len(items) > _VARIABLES_MAX:
        raise InvalidRequest(f"At most {_VARIABLES_MAX} variables", loc=loc)
    for item in items:
        name, equals, value = item.strip().partition("=")
        if name and not equals:
            raise InvalidRequest("Environment must look like `A=1,B=2`", loc=loc)
        if equals:
            pairs[name.strip()] = value
    return pairs


def _id_of(server: Server) -> tuple[str, str]:
    """Return the field that identifies a server in its list, and its value."""
    if isinstance(server, StdioServer):
        return "name", server.name
    return "url", server.url


def _refuse_duplicates(servers: Sequence[Server], loc: Loc) -> None:
    seen: set[str] = set()
    for index, server in enumerate(servers):
        field, value = _id_of(server)
        if value in seen:
            raise InvalidRequest(
                f"Another server of this list has the same {field}", loc=(*loc, index, field)
            )
        seen.add(value)


def _restored_all(given: Sequence[Any], stored: Sequence[Any], loc: Loc) -> tuple[Any, ...]:
    """Restore the masked secrets of all servers in a list."""
    known = {_id_of(server): server for server in stored}
    return tuple(
        (_restored_stdio if isinstance(server, StdioServer) else _restored_remote)(
            server, known.get(_id_of(server)), (*loc, index)
        )
        for index, server in enumerate(given)
    )


def _restored_remote[T: (SseServer, ShttpServer)](server: T, stored: T | None, loc: Loc) -> T:
    old_key = stored.api_key if stored else None
    old_extras = (stored.extras if stored else None) or ToolServerExtras()
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
