"""The configuration schema: every key with its default, bounds and description.

Values come in four layers: defaults, the config file, `AGENTSVC_<SECTION>__<KEY>` variables and
the command line, each winning over the ones before it. How they are read is in `layers`.
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
"""Keys that are gone, each with what to use instead; kept for one minor version."""

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
    """The least serious lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


class ServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `server` section: addresses, storage, request limits."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on"""
    port: Annotated[int, Meta(ge=0, le=65535)] = 3000
    """Port to listen on; 0 takes any free one"""
    data_dir: Annotated[str, Meta(extra=_PATH)] = ""
    """Directory for database, keys and sandboxes; empty means $XDG_DATA_HOME/agentsvc"""
    public_url: Annotated[str, Meta(pattern=_URL, extra=_URL_EXPECTED)] = ""
    """URL at which clients reach the server, with its path if it has one; empty means what each
    request says"""
    internal_url: Annotated[str, Meta(pattern=_URL, extra=_URL_EXPECTED)] = ""
    """URL at which sandboxes reach the server; empty means http://127.0.0.1 and the port"""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Meta(pattern=_NETWORK)], ...], Meta(extra=_NETWORKS_EXPECTED)
    ] = ()
    """Addresses or networks of proxies whose X-Forwarded-* or Forwarded headers say where clients
    reach the server"""
    cors_origins: Annotated[
        tuple[Annotated[str, Meta(pattern=_ORIGIN)], ...], Meta(extra=_ORIGINS_EXPECTED)
    ] = ()
    """Origins whose web pages may call the server from a browser; * for every one"""
    allowed_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=_HOST)], ...], Meta(extra=_HOSTS_EXPECTED)
    ] = ()
    """Host names at which browsers may reach the server, beside those of its URLs and of this
    machine, and addresses; `*.` before one for all below it, * for every one"""
    device_login: bool = True
    """Let programs without a key ask for one at /oauth/device; a person with a key approves it"""
    login_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 604800.0
    """Time after which a browser has to log in again"""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**31)] = 10 * 1024 * 1024
    """Largest request body that is read"""
    request_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Longest time a request may take; streams are exempt"""
    idle_seconds: Annotated[float, Meta(gt=0)] = 75.0
    """Longest time a connection may take to send the head of a request"""
    stall_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Longest time a client may take nothing of an answer, or send nothing of a body"""
    max_connections: Annotated[int, Meta(ge=8, le=100_000)] = 2000
    """Most connections at a time, and at most a quarter of the files that the server may open: up to
    half of them without a good key, up to three quarters with keys of sandboxes, and as many of one
    user"""
    max_connections_per_address: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Most connections at a time of one address, or of one client that a trusted proxy names, which
    have shown no good key; 0 is no limit"""
    first_message_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Longest time a WebSocket without a key may take to send one"""
    shutdown_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """Time that requests and tasks get to end at shutdown"""

    def own_urls(self) -> tuple[str, ...]:
        """Return where this server is reached, as far as that is configured."""
        return tuple(filter(None, (self.public_url, self.internal_url)))


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `gateway` section: how clients reach the servers inside sandboxes."""

    start_seconds: Annotated[float, Meta(ge=0)] = 30.0
    """Longest time a request waits for a sandbox that is starting"""
    connect_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Longest time a connection to a port of a sandbox may take"""
    resume_on_traffic: bool = False
    """Resume a paused sandbox when a request for it comes, not refuse it"""
    sandbox_domain: Annotated[
        str, Meta(pattern=_WILDCARD, max_length=190, extra=_WILDCARD_EXPECTED)
    ] = ""
    """Names such as *.sandboxes.example.org that lead to the server, so that each work port and
    editor has an origin of its own; empty means that URLs have paths"""
    trust_editors: bool = False
    """Let a sandbox's editor have the server's origin where it has none of its own: what a sandbox
    serves there can do what a browser can that is logged in"""


class LogConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `log` section."""

    level: LogLevel = LogLevel.INFO
    """Least serious lines to write: debug, info, warning or error"""
    format: LogFormat = LogFormat.TEXT
    """text for people or json for machines, one line each"""


class AuditConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `audit` section."""

    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 31_536_000.0
    """Age at which entries of the audit log are deleted; 0 is never"""


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `limits` section: after which 429 is answered; 0 is no limit."""

    requests_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 120_000
    """Requests a minute with one key; 0 is no limit"""
    refused_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 300
    """Requests a minute without a good key from one address; 0 is no limit"""
    connections_per_sandbox: Annotated[int, Meta(ge=0, le=100_000)] = 128
    """Connections at a time with the keys of one sandbox; 0 is no limit"""
    sandbox_requests_per_minute: Annotated[int, Meta(ge=0, le=10**9)] = 60_000
    """Requests a minute with the keys of one sandbox; beyond it they wait up to 10 seconds before
    they are refused; 0 is no limit"""
    report_bytes_per_minute: Annotated[int, Meta(ge=0, le=10**12)] = 256 * 1024 * 1024
    """Bytes a minute that one sandbox may report, 64 MiB of them at once; more wait up to 10
    seconds before they are refused; 0 is no limit"""
    event_bytes_per_sandbox: Annotated[int, Meta(ge=0, le=2**50)] = 4 * 1024**3
    """Bytes of events that are stored of the conversations of one sandbox; 0 is no limit"""
    adopted_per_sandbox: Annotated[int, Meta(ge=0, le=10**6)] = 100
    """Conversations that one sandbox may report which the server has not started; 0 is no limit"""


class IdempotencyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `idempotency` section."""

    keep_seconds: Annotated[float, Meta(ge=1, le=10**9)] = 86_400.0
    """How long a request with an `Idempotency-Key` is answered the same again"""
    max_keys_per_user: Annotated[int, Meta(ge=1, le=10**9)] = 50_000
    """How many answers are kept for one user"""
    max_bytes_per_user: Annotated[int, Meta(ge=2**20, le=2**50)] = 268_435_456
    """How many bytes these answers may have"""


class V0Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `v0` section."""

    enabled: bool = True
    """Serve the older API below /api too, for clients that need it"""


class GitConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `git` section: git hosting services."""

    check_tokens: bool = True
    """Ask a git hosting service whether a token is good before keeping it"""
    api_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Longest time a git hosting service may take to answer"""
    private_hosts: tuple[Annotated[str, Meta(min_length=1, max_length=300)], ...] = ()
    """Hosts of git services at addresses that are not public, which the server asks for every user,
    as `allow_hosts` names them; for administrators it asks all. One on this machine's loopback
    interface needs its port, and sandboxes reach it"""

    def __post_init__(self) -> None:
        """Refuse hosts that cannot be meant; the loader says where they stand."""
        parse_policy("allowlist", self.private_hosts)


class PluginsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `plugins` section."""

    dirs: Annotated[tuple[str, ...], Meta(extra=_PATH)] = ()
    """Directories to load plugins from, relative to this file"""
    disable: tuple[str, ...] = ()
    """Names of plugins that are not even imported"""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration, checked."""

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
    """The settings of plugins by their names: what was set, without defaults."""
    backends: dict[str, dict[str, Any]] = {}
    specs: dict[str, SpecConfig] = {}


class Loaded(Struct, frozen=True, kw_only=True):
    """A configuration and where it came from."""

    config: Config
    origins: dict[str, ConfigSource]
    """For every key, dotted, the layer its value is from."""
    path: Path | None
    """The config file that was read, if one was."""
    sections: Mapping[str, type[Struct]] = {}
    """The sections of plugins: what is set in them is in `config.extensions`."""

    def tree(self) -> dict[str, Any]:
        """Return all values by section and key; raises StartFailed where a plugin's do not fit."""
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
    """Read all layers and return the checked configuration.

    `sections` are those of plugins, each with the struct of its keys. `file` is what the command line names; without it the file is looked for as `find_file` says.
    `overrides` maps dotted keys to values of the command line; None stands for an option not
    given. Raises StartFailed, naming key, value and source, at the first thing that is wrong.
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
    # Tables inside of them, too, are what was set; their plugin reads them.
    for name, table in msgspec.to_builtins(of_plugins).items():
        extensions[name] = {**extensions.get(name, {}), **table}
    try:
        config = _with_spec_ids(msgspec.convert(values, Config))
    except msgspec.ValidationError as exc:
        # Each key fits its type; this is what a section refuses by itself.
        why, _, section = str(exc).partition(" - at `$.")
        raise StartFailed(
            f"the section `{section.rstrip('`')}` cannot be used: {why}",
            hint="name hosts, addresses or networks, such as `models.example.org:8443`",
        ) from exc
    return Loaded(config=config, origins=found.origins, path=path, sections=own)


def settings_of[T: Struct](config: Config, plugin: str, kind: type[T]) -> T:
    """Return the settings of a plugin, with its defaults; raises StartFailed where they do not fit."""
    try:
        # Values from the environment are texts.
        return msgspec.convert(config.extensions.get(plugin, {}), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise StartFailed(
            f"The settings of the plugin `{plugin}` do not fit: {exc}",
            hint=f"its keys are: {', '.join(sorted(kind.__struct_fields__)) or 'none'}",
        ) from exc


def with_sections(sections: Mapping[str, type[Struct]]) -> type[Struct]:
    """Return what can be configured where plugins have these sections."""
    if not sections:
        return Config
    fields = [(name, kind, kind()) for name, kind in sections.items()]
    return msgspec.defstruct("Config", fields, bases=(Config,), kw_only=True)


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the config file to read, or None if there is none.

    The command line wins over `AGENTSVC_CONFIG`, and that over
    `$XDG_CONFIG_HOME/agentsvc/config.toml`. The working directory is not searched: what a server
    does must not depend on where it was started. A file that was named must exist.
    """
    if named is not None:
        return _existing(named, "--config")
    if variable := environ.get(CONFIG_VARIABLE):
        return _existing(Path(variable), CONFIG_VARIABLE)
    usual = config_dir(environ) / "config.toml"
    return usual if usual.is_file() or usual.is_dir() else None


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the user's usual place for configuration."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "agentsvc"


def data_dir(config: Config, environ: Mapping[str, str]) -> Path:
    """Return the data directory: the configured one, else the user's usual place for data."""
    if config.server.data_dir:
        return Path(config.server.data_dir)
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "agentsvc"


def _existing(path: Path, source: str) -> Path:
    if not path.is_file():
        hint = f"name an existing file, or leave {source} out to run with the defaults"
        raise StartFailed(f"the config file named by {source} does not exist: {path}", hint=hint)
    return path.absolute()


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG rules say that a relative path in these variables is to be ignored.
    named = Path(environ.get(variable) or ".")
    if named.is_absolute():
        return named
    try:
        return Path(environ.get("HOME") or Path.home()) / fallback
    except RuntimeError:
        # A user that the system does not know; Docker says the same of them.
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
