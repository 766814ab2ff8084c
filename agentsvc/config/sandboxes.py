"""Configuration of sandboxes, specs and archives. See `config.schema`."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from agentsvc.domain import WhenFull
from agentsvc.plugin import Isolation, Network
from agentsvc.plugin.egress import parse_policy


def _expects(words: str, example: Any = None) -> Meta:
    """Return metadata of a key: its expected values for messages, an example for the config file."""
    return Meta(extra={"expected": words} | ({"example": example} if example else {}))


class OnShutdown(StrEnum):
    """What happens to running sandboxes when the server stops."""

    LEAVE = "leave"
    PAUSE = "pause"
    DELETE = "delete"


class MinimumIsolation(StrEnum):
    """The minimum isolation of sandboxes."""

    DEFAULT = "default"
    """The default isolation of the backend."""
    NONE = "none"
    LANDLOCK = "landlock"
    BUBBLEWRAP = "bubblewrap"
    CONTAINER = "container"
    GVISOR = "gvisor"
    VM = "vm"

    @property
    def level(self) -> Isolation | None:
        """The isolation level; None for the default of the backend."""
        return None if self is MinimumIsolation.DEFAULT else Isolation(self.value)


class DefaultLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a sandbox whose spec sets none; 0 is no limit."""

    memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 4 * 1024**3
    disk_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 10 * 1024**3
    pids: Annotated[int, Meta(ge=0, le=2**22)] = 2048
    open_files: Annotated[int, Meta(ge=0, le=2**30)] = 65536


class SandboxesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sandboxes` section: default backend, limits, time limits, idle rules, shutdown."""

    default_backend: Annotated[str, Meta(min_length=1)] = "process"
    """Backend of specs that name none"""
    default_spec: str = ""
    """Spec of sandboxes that name none; empty means the first one"""
    isolation: MinimumIsolation = MinimumIsolation.DEFAULT
    """Minimum isolation of every sandbox; a server that cannot provide it does not start:
    default (the backend's own level: bubblewrap for processes), none, landlock, bubblewrap, container,
    gvisor, vm"""
    limits: Annotated[
        DefaultLimits, _expects("a table such as `{ pids = 2048, memory_bytes = 4294967296 }`")
    ] = DefaultLimits()
    """Limits of a sandbox whose spec sets none, as far as its backend can enforce them, and at most half of
    this machine's memory; 0 is no limit"""
    sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Time between two sweeps over all sandboxes"""
    start_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 120.0
    """Time limit for a sandbox to become ready"""
    call_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """Time limit of one call to a backend"""
    checkpoints: Annotated[int, Meta(ge=0, le=100)] = 10
    """Maximum number of file checkpoints per sandbox, one before each message to its agent, which waits
    for it; 0 for none"""
    checkpoint_bytes: Annotated[int, Meta(ge=1)] = 1024**3
    """Maximum disk space of the checkpoints of one sandbox"""
    model_hosts: tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...] = ()
    """Hosts at private addresses that may serve users' models, for sandboxes whose network is not `open`
    and for ports of a container's machine; in the format of allow_hosts"""
    max_running: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Maximum number of running sandboxes; 0 is no limit"""
    max_running_per_user: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Maximum number of running sandboxes per user; 0 is no limit"""
    max_memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Maximum sum of the memory limits of running sandboxes; 0 is no limit; a spec without a memory limit
    counts as 0"""
    when_full: WhenFull = WhenFull.REJECT
    """What to do beyond these limits if a request does not say: reject, queue, or pause_idle, which
    pauses the sandbox that has been idle longest"""
    max_queued: Annotated[int, Meta(ge=0, le=10**6)] = 100
    """Maximum number of sandboxes that wait for capacity"""
    pause_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Idle time after which a sandbox is paused; the next message to one of its conversations resumes
    it; 0 is never"""
    reclaim_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Idle time after which the memory of a paused sandbox is moved to swap, if this machine has any
    and the backend supports it; otherwise it is only paused; 0 is never"""
    hibernate_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Idle time after which memory and processes of a paused sandbox are moved to disk, if the backend
    supports it; otherwise it is treated as by reclaim_after_seconds; 0 is never"""
    stop_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Idle time after which a sandbox is stopped: it keeps its files, uses no memory, and is started
    again when a paused one would be resumed; 0 is never"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Idle time after which a sandbox is deleted with its files; 0 is never"""
    min_available_memory: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Available memory of this machine, or within the server's own limit, below which its idle sandboxes
    are moved one tier deeper, the longest idle first: paused, reclaimed, then on disk, as far as their
    backend supports it; 0 is off"""
    stop_under_pressure: bool = False
    """Whether sandboxes that cannot go deeper with their memory are then stopped and keep only their
    files"""
    min_idle_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 60.0
    """Idle time after which a sandbox may be paused to make room"""
    pool_age_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 21600.0
    """Age at which a spare of a spec's `pool` is replaced"""
    orphan_grace_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 300.0
    """Age at which an orphan, a sandbox of this installation without a record, is deleted"""
    on_shutdown: OnShutdown = OnShutdown.LEAVE
    """What happens to running sandboxes at shutdown: leave, pause or delete"""

    def __post_init__(self) -> None:
        """Raise BadHost for invalid hosts; the loader reports the section."""
        parse_policy("allowlist", self.model_hosts)


class CapacityConfig(Struct, frozen=True, kw_only=True):
    """Keys of every `backends.NAME` table: limits of what runs at a time; 0 is no limit."""

    max_running: Annotated[int, Meta(ge=0, le=10**6)] = 0
    max_memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0


class ArchivesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `archives` section: workspaces saved in the data directory."""

    on_delete: bool = False
    """Save the workspace of a conversation that is deleted with its sandbox"""
    max_bytes: Annotated[int, Meta(ge=1024, le=2**50)] = 1024**3
    """Maximum compressed size of one archive"""
    max_unpacked_bytes: Annotated[int, Meta(ge=1024, le=2**50)] = 4 * 1024**3
    """Maximum size of a workspace that is saved; holes in sparse files do not count"""
    max_files: Annotated[int, Meta(ge=1, le=10**8)] = 200_000
    """Maximum number of files of a workspace that is saved"""
    save_seconds: Annotated[float, Meta(gt=0)] = 900.0
    """Time limit for saving or restoring a workspace"""
    keep_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Age at which archives are deleted; 0 is never"""
    max_total_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Maximum size of all archives together; the oldest are deleted; 0 is no limit"""


class PortConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port that sandboxes of a spec listen on."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
    number: Annotated[int, Meta(ge=0, le=65535)] = 0
    awaited: bool = True


class SpecLimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of sandboxes of a spec; absent ones are as in `sandboxes.limits`, 0 is no limit."""

    cpus: Annotated[float, Meta(gt=0, le=10**6)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] | None = None
    disk_bytes: Annotated[int, Meta(ge=0, le=2**60)] | None = None
    pids: Annotated[int, Meta(ge=0, le=2**22)] | None = None
    open_files: Annotated[int, Meta(ge=0, le=2**30)] | None = None


class IdleConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Idle rules of a spec; absent ones are as in `sandboxes`."""

    pause_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    reclaim_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    hibernate_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    stop_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None


class SpecConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `specs.NAME` table: a template for sandboxes."""

    id: Annotated[str, Meta(max_length=255)] = ""
    """Id for clients; empty means the table's name"""
    backend: str = ""
    """Backend that runs its sandboxes; empty means sandboxes.default_backend"""
    image: str = ""
    """Image, if the backend has images"""
    command: Annotated[
        tuple[str, ...] | None, _expects("a list of strings", ["agent-server", "--port", "8000"])
    ] = None
    """Command that starts the agent server; absent means the backend's own"""
    env: dict[str, str] = {}
    """Environment variables of the command"""
    working_dir: str = ""
    """Directory in which the agent works"""
    ports: Annotated[
        tuple[PortConfig, ...],
        _expects(
            'a list of tables such as `{ name = "agent", number = 8000 }`',
            [{"name": "agent", "number": 8000, "awaited": True}],
        ),
    ] = ()
    """Ports that sandboxes serve: name, number (0 lets the backend choose), awaited"""
    limits: Annotated[
        SpecLimitsConfig,
        _expects(
            "a table such as `{ cpus = 2.0, memory_bytes = 4294967296 }`",
            {"cpus": 2.0, "memory_bytes": 4 * 1024**3},
        ),
    ] = SpecLimitsConfig()
    """Limits: cpus, memory_bytes, disk_bytes, pids, open_files; absent ones are as in sandboxes.limits,
    and 0 is no limit"""
    isolation: Isolation = Isolation.NONE
    """Minimum isolation; see sandboxes.isolation"""
    network: Network = Network.OPEN
    """Where its sandboxes may connect to: open, allowlist, or none but this server"""
    allow_hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...],
        _expects("a list of host names", ["pypi.org", "*.example.org"]),
    ] = ()
    """Hosts that the network `allowlist` permits; "*." and a domain for all hosts below it"""
    idle: Annotated[
        IdleConfig,
        _expects(
            "a table such as `{ pause_after_seconds = 1800.0 }`",
            {"pause_after_seconds": 1800.0, "delete_after_seconds": 0.0},
        ),
    ] = IdleConfig()
    """Idle times after which its sandboxes are paused, reclaimed, hibernated, stopped or deleted, instead
    of sandboxes.*: pause_after_seconds, reclaim_after_seconds, hibernate_after_seconds,
    stop_after_seconds, delete_after_seconds; 0 is never"""
    pool: Annotated[int, Meta(ge=0, le=100)] = 0
    """Number of spares that are started before anybody asks for one"""
    options: dict[str, Any] = {}
    """Further options of the backend"""
