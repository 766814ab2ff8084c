"""What clients of both generations send inside of a body and the core reads by itself.

These types describe it, for the published description; nothing decodes into them, or checks what
they say of a text.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from agentsvc.mcp import MAX_TIMEOUT_SECONDS
from agentsvc.orders import Provider
from agentsvc.settings import AGENTS, SECURITY_ANALYZERS
from agentsvc.values import SentSecret, stated

_BASE_URL: Final = r"^(https?://[A-Za-z0-9._-]+(:[1-9][0-9]{0,3})?(/[!-~]*)?)?$"

type AgentName = Annotated[str, stated(enum=[*AGENTS, ""])]
type AnalyzerName = Annotated[str, stated(enum=[*SECURITY_ANALYZERS, ""])]
type BaseUrl = Annotated[str, stated(pattern=_BASE_URL)]
type Url = Annotated[str, stated(format="uri")]
type Command = Annotated[str, stated(maxLength=4096, pattern=r"\A[^\s\0]+\Z")]
type ShellWords = Annotated[
    str, stated(pattern=r"""\A(?:[^'"\\\0]|'[^'\0]*'|"(?:[^"\\\0]|\\[^\0])*"|\\[^\0])*\Z""")
]
type Variables = Annotated[
    SentSecret, stated(pattern=r"\A(?:[A-Za-z_][A-Za-z0-9_]*=[^,\0]*(?:,|\Z))*\Z")
]
type VariableName = Annotated[str, stated(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
type _Seconds = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)]


class SseServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server reached over server-sent events."""

    url: Url
    """http, https, ws or wss URL of the tool server, at most 8192 characters"""
    api_key: SentSecret | None = None
    """Key it is sent as `Authorization: Bearer`; null or empty: none, stars: the stored one"""


class ShttpServer(SseServer, frozen=True, kw_only=True):
    """A tool server reached over HTTP; the time a call may take is in seconds."""

    timeout: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] | None = None
    """Seconds one call may take, 1 to 3600; null: 60"""


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server that is a process in the sandbox; texts are split as a shell does."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\Z")]
    """What the server is called: 1 to 100 letters, digits, `_` and `-`"""
    command: Command
    """Program that is the server, without arguments"""
    args: list[str] | ShellWords = []
    """Its arguments; a text is split as a shell does"""
    env: dict[VariableName, SentSecret] | Variables = {}
    """Its environment variables by name, stars for a stored value; a text is written `A=1,B=2`"""


class McpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tool servers in three lists; a URL alone is a server without a key."""

    sse_servers: Annotated[list[SseServer | Url], Meta(max_length=100)] = []
    """Tool servers reached over server-sent events, at most 100"""
    stdio_servers: Annotated[list[StdioServer], Meta(max_length=100)] = []
    """Tool servers that are processes in the sandbox, at most 100"""
    shttp_servers: Annotated[list[ShttpServer | Url], Meta(max_length=100)] = []
    """Tool servers reached over HTTP, at most 100"""


class ServerAuth(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool server is told who calls."""

    strategy: Literal["none", "api_key", "bearer", "basic", "header"]
    """Which of the fields below are sent, and how"""
    value: SentSecret | None = None
    """The key or token, for `api_key` and `bearer`; null: none"""
    header_name: str | None = None
    """Header that has the key, for `api_key`; null: `Authorization`"""
    username: str = ""
    """User name, for `basic`"""
    password: SentSecret | None = None
    """Password, for `basic`; null: none"""
    headers: dict[str, SentSecret] = {}
    """Headers by name, for `header`"""


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server with a URL, or a command if it is a process in the sandbox."""

    url: Url | None = None
    """http or https URL of the tool server; null if it is a process"""
    command: Command | None = None
    """Program that is the server, without arguments; null if it has a URL"""
    transport: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    """How it is talked to; null: `stdio` for a process, else `streamable-http`"""
    args: list[str] | ShellWords | None = None
    """Arguments of the program; a text is split as a shell does. Null: none"""
    env: dict[VariableName, SentSecret] | Variables | None = None
    """Environment variables of the program by name, stars for a stored value; a text is written
    `A=1,B=2`. Null: none"""
    cwd: str | None = None
    """Directory the program works in; null: that of the agent"""
    headers: dict[str, SentSecret] | None = None
    """Headers of each call by name, stars for a stored value; null: none"""
    auth: ServerAuth | SentSecret | None = None
    """How the server is told who calls: a key alone, or an object with a `strategy`; null: not at
    all"""
    timeout: _Seconds | None = None
    """Seconds one call may take, up to 3600; null: 60"""
    sse_read_timeout: _Seconds | None = None
    """Seconds a stream of it may pause, up to 3600; null: no limit"""
    description: str | None = None
    """What it is for; kept and shown only. Null: nothing"""
    icon: str | None = None
    """Picture for a front end; kept and shown only. Null: none"""
    keep_alive: bool | None = None
    """Whether the process goes on between two calls; null: as the agent server does"""
    enabled: bool = True
    """Whether agents get it; false keeps it for later"""


class ProviderToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a git provider; an empty one keeps what is stored."""

    token: SentSecret | None = None
    """The token; empty, null or left out: the stored one stays"""
    host: str | None = None
    """Host of the provider, where it is not the usual one; null: the usual one, left out: unchanged
    """
    user_id: str | None = None
    """Name of the account, for providers that need it; null: none, left out: unchanged"""


class CustomSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret; an empty one keeps what is stored."""

    secret: SentSecret | None = None
    """The value, at most 64 KiB; empty, null or left out: the stored one stays"""
    description: str | None = None
    """What it is for, told to the agent; at most 4096 characters. Null: nothing, left out:
    unchanged"""


type ProviderName = Annotated[str, stated(enum=[provider.value for provider in Provider])]
type ProviderTokens = dict[ProviderName, ProviderToken | SentSecret]


class SecretsStore(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets and tokens by name; a text alone is the secret itself."""

    provider_tokens: ProviderTokens | None = None
    """Tokens by provider; null: no change"""
    custom_secrets: dict[VariableName, CustomSecret | SentSecret] | None = None
    """Secrets by name, which is that of an environment variable; null: no change"""


_EITHER = stated(
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
"""What makes a server: a URL, or a command that speaks over its own input and output."""
type ServerName = Annotated[str, stated(pattern=r"\A[^\0-\x1f\x7f]{1,100}\Z")]

type Secrets = SecretsStore | None
type McpLists = McpConfig | None
type McpServers = dict[ServerName, Annotated[NamedServer, _EITHER]] | None
