"""The configuration schema: every key with its default, bounds and description.

Values come in four layers: defaults, the config file, `AGENTSVC_<SECTION>__<KEY>` variables and
the command line; later layers override earlier ones. `layers` reads and merges them.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from agentsvc.base import StartFailed
from agentsvc.config import layers
from agentsvc.config.conversations import ConversationsConfig, EventsConfig, ModelsConfig
from agentsvc.config.layers import ConfigSource
from agentsvc.config.sandboxes import ArchivesConfig, SandboxesConfig, SpecConfig
from agentsvc.plugin.egress import parse_policy

CONFIG_VARIABLE: Final = "AGENTSVC_CONFIG"
BOOTSTRAP_KEY_VARIABLE: Final = "AGENTSVC_BOOTSTRAP_KEY"
BOOTSTRAP_KEY_FILE_VARIABLE: Final = "AGENTSVC_BOOTSTRAP_KEY_FILE"
TRACE_PLUGINS_VARIABLE: Final = "AGENTSVC_TRACE_PLUGINS"
URL_VARIABLE: Final = "AGENTSVC_URL"
KEY_VARIABLE: Final = "AGENTSVC_API_KEY"
OTHER_VARIABLES: Final = frozenset(
    {
        CONFIG_VARIABLE,
        BOOTSTRAP_KEY_VARIABLE,
        BOOTSTRAP_KEY_FILE_VARIABLE,
        TRACE_PLUGINS_VARIABLE,
        URL_VARIABLE,
        KEY_VARIABLE,
    }
)
"""Variables with our prefix that are not config keys."""

RETIRED_KEYS: Final[Mapping[str, str]] = {
    "backends.process.own_network": 'a network of its own is the default; `network = "host"` in'
    " [backends.process] is what `own_network = false` meant",
    "server.max_keyless_sockets": "use `server.max_connections_per_address`, which bounds them, too",
}
"""Removed keys, each with its replacement; kept for one minor version."""

_URL = r"^(https?://[^/\s@]+(/\S*)?)?$"
_URL_EXPECTED = {"expected": "an http or https URL, or nothing"}
_WILDCARD = r"^(\*(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)+)?\Z"
_WILDCARD_EXPECTED = {"expected": "a wildcard such as `*.sandboxes.example.org`, or nothing"}
_ORIGIN = r"^(\*|https?://[^/\s@]+)$"
_ORIGINS_EXPECTED = {"expected": "a list of origins such as `https://example.com`"}
_HOST = r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9])?)\Z"
_HOSTS_EXPECTED = {"expected": "a list of host names such as `agents.example.org`"}
_NETWORK = r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
_NETWORKS_EXPECTED = {"expected": "a list of addresses or networks such as `10.0.0.0/8`"}
_PATH = {"path": True}


class LogLevel(StrEnum):
    """The minimum severity of log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `server` section: addresses, storage, request limits."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on"""
    port: Annotated[int, Meta(ge=0, le=65535)] = 3000
    """Port to listen on; 0 takes any free port"""
    data_dir: Annotated[str, Meta(extra=_PATH)] = ""
    """Directory for database, keys and sandboxes; empty means $XDG_DATA_HOME/agentsvc"""
    public_url: Annotated[str, Meta(pattern=_URL, extra=_URL_EXPECTED)] = ""
    """URL at which clients reach the server, with its path if it has one; empty to derive it from each
    request"""
    internal_url: Annotated[str, Meta(pattern=_URL, extra=_URL_EXPECTED)] = ""
    """URL at which sandboxes reach the server; empty means http://127.0.0.1 and the port"""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Meta(pattern=_NETWORK)], ...], Meta(extra=_NETWORKS_EXPECTED)
    ] = ()
    """Addresses or networks of proxies whose X-Forwarded-* or Forwarded headers are trusted for the
    address of the client and the URL of the server"""
    cors_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=_ORIGIN)], ...], Meta(extra=_ORIGINS_EXPECTED)
    ] = ()
    """Origins whose web pages may call the server from a browser; * for all"""
    allowed_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=_HOST)], ...], Meta(extra=_HOSTS_EXPECTED)
    ] = ()
    """Host names at which browsers may reach the server, in addition to those of its URLs, of this
    machine, and IP addresses; `*.` and a domain for all hosts below it, * for all"""
    device_login: bool = True
    """Let programs without a key request one at /oauth/device; a user with a key approves it"""
    login_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 604800.0
    """Time after which a browser has to log in again"""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**31)] = 10 * 1024 * 1024
    """Maximum size of a request body"""
    request_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Time limit of a request; streams are exempt"""
    idle_seconds: Annotated[float, Meta(gt=0)] = 75.0
    """Time limit for a connection to send the head of a request"""
    stall_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Time limit for a client that reads nothing of a response, or sends nothing of a body"""
    max_connections: Annotated[int, Meta(ge=8, le=100_000)] = 2000
    """Maximum number of concurrent connections, also limited to a quarter of the server's limit of
    open files: at most half of them without a valid key, three quarters with keys of sandboxes, and
    three quarters by one user"""
    max_connections_per_address: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Maximum number of concurrent connections without a valid key from one address, or from one client
    as named by a trusted proxy; 0 is no limit"""
    first_message_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Time limit for a WebSocket without a key to send one"""
    shutdown_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """Time limit for requests and tasks to finish at shutdown"""

    def own_urls(self) -> tuple[str, ...]:
        """Return the configured URLs of this server."""
        return tuple(filter(None, (self.public_url, self.internal_url)))


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `gateway` section: how clients reach the servers inside sandboxes."""

    start_seconds: Annotated[float, Meta(ge=0)] = 30.0
    """Longest time that a request waits for a starting sandbox"""
    connect_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Time limit for connecting to a port of a sandbox"""
    resume_on_traffic: bool = False
    """Resume a paused sandbox on a request for it, instead of refusing the request"""
    sandbox_domain: Annotated[
        str, Meta(pattern=_WILDCARD, max_length=190, extra=_WILDCARD_EXPECTED)
    ] = ""
    """Wildcard name such as *.sandboxes.example.org that resolves to the server, so that each work
    port and editor has an origin of its own; empty means that they are served below paths"""
    trust_editors: bool = False
    """Let a sandbox's editor share the server's origin if it has none of its own: whatever a sandbox
    serves there can then act as the logged-in browser"""


class LogConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `log` section."""

    level: LogLevel = LogLevel.INFO
    """Minimum severity of log lines: debug, info, warning or error"""
    format: LogFormat = LogFormat.TEXT
    """text for people or json for machines, one line each"""


class AuditConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `audit` section."""

    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 31_536_000.0
    """Age at which entries of the audit log are deleted; 0 is never"""


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `limits` section: limits beyond which requests get a 429; 0 is no limit."""

    requests_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 120_000
    """Requests per minute with one key; 0 is no limit"""
    refused_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 300
    """Requests per minute without a valid key from one address; 0 is no limit"""
    connections_per_sandbox: Annotated[int, Meta(ge=0, le=100_000)] = 128
    """Concurrent connections with the keys of one sandbox; 0 is no limit"""
    sandbox_requests_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 60_000
    """Requests per minute with the keys of one sandbox; further ones wait up to 10 seconds before
    they are refused; 0 is no limit"""
    report_bytes_per_minute: Annotated[int, Meta(ge=0, le=10**12)] = 256 * 1024 * 1024
    """Bytes per minute that one sandbox may report, in bursts of up to 64 MiB; more wait up to 10
    seconds before they are refused; 0 is no limit"""
    event_bytes_per_sandbox: Annotated[int, Meta(ge=0, le=2**50)] = 4 * 1024**3
    """Bytes of stored events of all conversations of one sandbox; 0 is no limit"""
    adopted_per_sandbox: Annotated[int, Meta(ge=0, le=10**6)] = 100
    """Conversations that one sandbox may report although the server did not start them; 0 is no
    limit"""


class IdempotencyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `idempotency` section."""

    keep_seconds: Annotated[float, Meta(ge=1, le=10**9)] = 86_400.0
    """How long a repeated request with the same `Idempotency-Key` gets the same response"""
    max_keys_per_user: Annotated[int, Meta(ge=1, le=10**9)] = 50_000
    """Maximum number of stored responses per user"""
    max_bytes_per_user: Annotated[int, Meta(ge=2**20, le=2**50)] = 268_435_456
    """Maximum size of the stored responses per user, in bytes"""


class V0Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `v0` section."""

    enabled: bool = True
    """Serve the older API below /api as well, for clients that need it"""


class GitConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `git` section: git hosting services."""

    check_tokens: bool = True
    """Check each token with its git hosting service before storing it"""
    api_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Time limit for a response of a git hosting service"""
    private_hosts: tuple[Annotated[str, Meta(min_length=1, max_length=300)], ...] = ()
    """Hosts of git services at private addresses that the server may call for every user, in the format
    of `allow_hosts`; for administrators it may call all. A host on this machine's loopback interface
    needs its port, and sandboxes can reach it"""

    def __post_init__(self) -> None:
        """Raise BadHost for invalid hosts; the loader reports the section."""
        parse_policy("allowlist", self.private_hosts)


class PluginsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `plugins` section."""

    dirs: Annotated[tuple[str, ...], Meta(extra=_PATH)] = ()
    """Directories to load plugins from, relative to this file"""
    disable: tuple[str, ...] = ()
    """Names of plugins that are not imported"""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration, validated."""

    server: ServerConfig = ServerConfig()
    gateway: GatewayConfig = GatewayConfig()
    log: LogConfig = LogConfig()
    sandboxes: SandboxesConfig = SandboxesConfig()
    conversations: ConversationsConfig = ConversationsConfig()
    models: ModelsConfig = ModelsConfig()
    archives: ArchivesConfig = ArchivesConfig()
    events: EventsConfig = EventsConfig()
    audit: AuditConfig = AuditConfig()
    limits: LimitsConfig = LimitsConfig()
    idempotency: IdempotencyConfig = IdempotencyConfig()
    git: GitConfig = GitConfig()
    v0: V0Config = V0Config()
    plugins: PluginsConfig = PluginsConfig()
    extensions: dict[str, dict[str, Any]] = {}
    """The configured settings of plugins by plugin name, without defaults."""
    backends: dict[str, dict[str, Any]] = {}
    specs: dict[str, SpecConfig] = {}


class Loaded(Struct, frozen=True, kw_only=True):
    """A configuration and its sources."""

    config: Config
    origins: dict[str, ConfigSource]
    """The layer of each value, by dotted key."""
    path: Path | None
    """The path of the config file, or None."""
    sections: Mapping[str, type[Struct]] = {}
    """The sections of plugins, whose values are in `config.extensions`."""

    def tree(self) -> dict[str, Any]:
        """Return all values by section and key; raises StartFailed if a plugin's are invalid."""
        found: dict[str, Any] = msgspec.to_builtins(self.config)
        for section, kind in self.sections.items():
            found[section] = msgspec.to_builtins(settings_of(self.config, section, kind))
        return found


def load(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
    *,
    sections: Mapping[str, type[Struct]] | None = None,
) -> Loaded:
    """Read all layers and return the validated configuration.

    `sections` are those of plugins, each with the struct of its keys. `file` is the option of the command
    line; without it `find_file` searches for the file. `overrides` maps dotted keys to values from the
    command line; None means that the option was not given. Raises StartFailed for the first error,
    naming key, value and source.
    """
    path = find_file(file, environ)
    own = sections or {}
    found = layers.read(
        with_sections(own),
        file=path,
        environ=environ,
        other_variables=OTHER_VARIABLES,
        overrides=overrides,
        retired=RETIRED_KEYS,
    )
    values = dict(found.values)
    of_plugins = {name: values.pop(name) for name in own if name in values}
    values["extensions"] = extensions = dict(values.get("extensions", {}))
    # Nested tables, too, stay as configured: their plugin parses them.
    for name, table in msgspec.to_builtins(of_plugins).items():
        extensions[name] = {**extensions.get(name, {}), **table}
    try:
        config = _with_spec_ids(msgspec.convert(values, Config))
    except msgspec.ValidationError as exc:
        # Each key is valid by its type; this error is from a section's own validation.
        why, _, section = str(exc).partition(" - at `$.")
        raise StartFailed(
            f"the section `{section.rstrip('`')}` is invalid: {why}",
            hint="name hosts, addresses or networks, such as `models.example.org:8443`",
        ) from exc
    return Loaded(config=config, origins=found.origins, path=path, sections=own)


def settings_of[T: Struct](config: Config, plugin: str, kind: type[T]) -> T:
    """Return the settings of a plugin with defaults; raises StartFailed if they are invalid."""
    try:
        # Values from environment variables are strings.
        return msgspec.convert(config.extensions.get(plugin, {}), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise StartFailed(
            f"The settings of the plugin `{plugin}` are invalid: {exc}",
            hint=f"its keys are: {', '.join(sorted(kind.__struct_fields__)) or 'none'}",
        ) from exc


def with_sections(sections: Mapping[str, type[Struct]]) -> type[Struct]:
    """Return the configuration struct extended by the sections of plugins."""
    if not sections:
        return Config
    fields = [(name, kind, kind()) for name, kind in sections.items()]
    return msgspec.defstruct("Config", fields, bases=(Config,), kw_only=True)


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the config file to read, or None if there is none.

    `--config` takes precedence over `AGENTSVC_CONFIG`, and that over
    `$XDG_CONFIG_HOME/agentsvc/config.toml`. The working directory is not searched, so that a server
    does not depend on where it was started. A named file must exist.
    """
    if named is not None:
        return _existing(named, "--config")
    if variable := environ.get(CONFIG_VARIABLE):
        return _existing(Path(variable), CONFIG_VARIABLE)
    usual = config_dir(environ) / "config.toml"
    return usual if usual.is_file() or usual.is_dir() else None


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the user's default directory for configuration."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "agentsvc"


def data_dir(config: Config, environ: Mapping[str, str]) -> Path:
    """Return the data directory: the configured one, or the user's default directory for data."""
    if config.server.data_dir:
        return Path(config.server.data_dir)
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "agentsvc"


def _existing(path: Path, source: str) -> Path:
    if not path.is_file():
        hint = f"name an existing file, or leave {source} out to run with the defaults"
        raise StartFailed(f"the config file named by {source} does not exist: {path}", hint=hint)
    return path.absolute()


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG specification requires relative paths in these variables to be ignored.
    named = Path(environ.get(variable) or ".")
    if named.is_absolute():
        return named
    try:
        return Path(environ.get("HOME") or Path.home()) / fallback
    except RuntimeError:
        # The current user has no passwd entry; Docker falls back to "/", too.
        return Path("/") / fallback


def _with_spec_ids(config: Config) -> Config:
    specs = {
        name: msgspec.structs.replace(spec, id=spec.id or name)
        for name, spec in config.specs.items()
    }
    owners: dict[str, str] = {}
    for name, spec in specs.items():
        if spec.id in owners:
            raise StartFailed(
                f"`specs.{owners[spec.id]}` and `specs.{name}` have the same id: `{spec.id}`",
                hint=f"give `specs.{name}` another id",
            )
        owners[spec.id] = name
    return msgspec.structs.replace(config, specs=specs)
