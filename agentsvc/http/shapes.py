"""What clients of both generations send inside of a body and the core reads by itself.

These types describe it, for the published description; nothing decodes into them, or checks what
they say of a text.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.orders import Provider
from agentsvc.settings import AGENTS, SECURITY_ANALYZERS

_BASE_URL: Final = r"^(https?://[A-Za-z0-9._-]+(:[1-9][0-9]{0,3})?(/[!-~]*)?)?$"

type AgentName = Annotated[str, Meta(extra_json_schema={"enum": [*AGENTS, ""]})]
type AnalyzerName = Annotated[str, Meta(extra_json_schema={"enum": [*SECURITY_ANALYZERS, ""]})]
type BaseUrl = Annotated[str, Meta(extra_json_schema={"pattern": _BASE_URL})]


class SseServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server reached over server-sent events."""

    url: str
    api_key: str | None = None


class ShttpServer(SseServer, frozen=True, kw_only=True):
    """A tool server reached over HTTP; the time a call may take is in seconds."""

    timeout: int | None = None


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server that is a process in the sandbox; texts are split as a shell does."""

    name: str
    command: str
    args: list[str] | str = []
    env: dict[str, str] | str = {}


class McpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Tool servers in three lists; a URL alone is a server without a key."""

    sse_servers: list[SseServer | str] = []
    stdio_servers: list[StdioServer] = []
    shttp_servers: list[ShttpServer | str] = []


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server with a URL, or a command if it is a process in the sandbox."""

    url: str | None = None
    command: str | None = None
    transport: str | None = None
    args: list[str] | str | None = None
    env: dict[str, str] | str | None = None
    cwd: str | None = None
    headers: dict[str, str] | None = None
    auth: dict[str, str | dict[str, str] | None] | str | None = None
    timeout: float | None = None
    sse_read_timeout: float | None = None
    description: str | None = None
    icon: str | None = None
    keep_alive: bool | None = None
    enabled: bool = True


class ProviderToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token for a git provider; an empty one keeps what is stored."""

    token: str | None = None
    host: str | None = None
    user_id: str | None = None


class CustomSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret; an empty one keeps what is stored."""

    secret: str | None = None
    description: str | None = None


type ProviderTokens = dict[Provider, ProviderToken | str]


class SecretsStore(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets and tokens by name; a text alone is the secret itself."""

    provider_tokens: ProviderTokens | None = None
    custom_secrets: dict[str, CustomSecret | str] | None = None


type Secrets = SecretsStore | None
type McpLists = McpConfig | None
type McpServers = dict[str, NamedServer] | None
