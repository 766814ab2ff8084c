"""Configuration of sandboxes, specs and archives. See `config.schema`."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from agentsvc.domain import WhenFull
from agentsvc.plugin import Isolation, Network
from agentsvc.plugin.egress import parse_policy


def _expects(words: str, example: Any = None) -> Meta:
    """Return what messages say that a key takes, and what the default config file shows of it."""
    return Meta(extra={"expected": words} | ({"example": example} if example else {}))


class OnShutdown(StrEnum):
    """What becomes of running sandboxes when the server stops."""

    LEAVE = "leave"
    PAUSE = "pause"
    DELETE = "delete"


class MinimumIsolation(StrEnum):
    """How far sandboxes must be isolated at least."""

    DEFAULT = "default"
    """As far as their backend is made for."""
    NONE = "none"
    LANDLOCK = "landlock"
    BUBBLEWRAP = "bubblewrap"
    CONTAINER = "container"
    GVISOR = "gvisor"
    VM = "vm"

    @property
    def level(self) -> Isolation | None:
        """The level it names; None for that of the backend."""
        return None if self is MinimumIsolation.DEFAULT else Isolation(self.value)


class DefaultLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox may use whose spec does not say; 0 is no limit."""

    memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 4 * 1024**3
    disk_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 10 * 1024**3
    pids: Annotated[int, Meta(ge=0, le=2**22)] = 2048
    open_files: Annotated[int, Meta(ge=0, le=2**30)] = 65536


class SandboxesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sandboxes` section: which backend, how patient, what at shutdown."""

    default_backend: Annotated[str, Meta(min_length=1)] = "process"
    """Backend of specs that name none"""
    default_spec: str = ""
    """Spec of sandboxes that name none; empty means the first one"""
    isolation: MinimumIsolation = MinimumIsolation.DEFAULT
    """How far every sandbox must be isolated at least; a server that cannot hold them so does not
    start: default (what the backend is made for: bubblewrap for processes), none, landlock,
    bubblewrap, container, gvisor, vm"""
    limits: Annotated[
        DefaultLimits, _expects("a table such as `{ pids = 2048, memory_bytes = 4294967296 }`")
    ] = DefaultLimits()
    """What a sandbox may use whose spec does not say, as far as its backend can enforce it, and of
    memory at most half of this machine's; 0 is no limit"""
    sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Time between two looks at every sandbox"""
    start_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 120.0
    """Longest time a sandbox may take to become ready"""
    call_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """Longest time one call to a backend may take"""
    checkpoints: Annotated[int, Meta(ge=0, le=100)] = 10
    """Most checkpoints of the files of a sandbox, one before each message to its agent, which waits
    for it; 0 for none"""
    checkpoint_bytes: Annotated[int, Meta(ge=1)] = 1024**3
    """Most disk that the checkpoints of one sandbox may take"""
    model_hosts: tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...] = ()
    """Hosts that are not public and at which users' models may be, for sandboxes that are not
    `open` and for ports of a container's machine; as in allow_hosts"""
    max_running: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Most sandboxes that run at a time; 0 is no limit"""
    max_running_per_user: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Most that run at a time for one user; 0 is no limit"""
    max_memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Most memory that the running ones together may be limited to; 0 is no limit, and so counts a
    spec without one"""
    when_full: WhenFull = WhenFull.REJECT
    """What to do over these limits, where a request does not say: reject, queue, or pause_idle,
    which pauses the one idle longest"""
    max_queued: Annotated[int, Meta(ge=0, le=10**6)] = 100
    """Most sandboxes that may wait for room at a time"""
    pause_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Time without use after which a sandbox is paused; the next message to one of its
    conversations resumes it; 0 is never"""
    reclaim_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Time without use after which the memory of a paused sandbox is pushed out to swap, where this
    machine has any and the backend can; elsewhere it is paused; 0 is never"""
    hibernate_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Time without use after which memory and processes of a paused sandbox are kept on disk and
    take no memory, where the backend can; elsewhere as reclaim_after_seconds says; 0 is never"""
    stop_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Time without use after which a sandbox is stopped: it keeps its files and no memory, and is
    started again as a paused one is resumed; 0 is never"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Time without use after which a sandbox is deleted with its files; 0 is never"""
    min_available_memory: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """Available memory of this machine, or of the server's own limit, below which idle sandboxes on
    it rest one tier deeper, the longest unused first: paused, reclaimed, then on disk, as far as
    their backend can; 0 is off"""
    stop_under_pressure: bool = False
    """Whether those that can rest no deeper with their memory are stopped then, and keep their
    files only"""
    min_idle_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 60.0
    """Time without use after which a sandbox may be paused to make room"""
    pool_age_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 21600.0
    """Age at which a sandbox of a spec's `pool` is replaced"""
    orphan_grace_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 300.0
    """Age at which a sandbox of ours that no record knows is deleted"""
    on_shutdown: OnShutdown = OnShutdown.LEAVE
    """What happens to running sandboxes at shutdown: leave, pause or delete"""

    def __post_init__(self) -> None:
        """Refuse hosts that cannot be meant; the loader says where they stand."""
        parse_policy("allowlist", self.model_hosts)


class CapacityConfig(Struct, frozen=True, kw_only=True):
    """What every `backends.NAME` table may say: how much runs there at a time; 0 is no limit."""

    max_running: Annotated[int, Meta(ge=0, le=10**6)] = 0
    max_memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0


class ArchivesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `archives` section: workspaces that are saved in the data directory."""

    on_delete: bool = False
    """Save the workspace of a conversation that is deleted with its sandbox"""
    max_bytes: Annotated[int, Meta(ge=1024, le=2**50)] = 1024**3
    """Largest archive of one workspace, compressed"""
    max_unpacked_bytes: Annotated[int, Meta(ge=1024, le=2**50)] = 4 * 1024**3
    """Largest workspace that is saved; holes in sparse files do not count"""
    max_files: Annotated[int, Meta(ge=1, le=10**8)] = 200_000
    """Most files a workspace that is saved may have"""
    save_seconds: Annotated[float, Meta(gt=0)] = 900.0
    """Longest time that saving a workspace, or restoring it, may take"""
    keep_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 0.0
    """Age at which archives are deleted; 0 is never"""
    max_total_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """What all archives together may take; the oldest are deleted; 0 is no limit"""


class PortConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port that sandboxes of a spec listen on."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
    number: Annotated[int, Meta(ge=0, le=65535)] = 0
    awaited: bool = True


class SpecLimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sandboxes of a spec may use; nothing said is as in `sandboxes.limits`, 0 is no limit."""

    cpus: Annotated[float, Meta(gt=0, le=10**6)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] | None = None
    disk_bytes: Annotated[int, Meta(ge=0, le=2**60)] | None = None
    pids: Annotated[int, Meta(ge=0, le=2**22)] | None = None
    open_files: Annotated[int, Meta(ge=0, le=2**30)] | None = None


class IdleConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a sandbox of a spec that nobody uses; nothing said is as for all."""

    pause_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    reclaim_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    hibernate_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    stop_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None
    delete_after_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None


class SpecConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `specs.NAME` table: a template from which sandboxes are made."""

    id: Annotated[str, Meta(max_length=255)] = ""
    """Id that clients see; empty means the table's name"""
    backend: str = ""
    """Backend that runs it; empty means sandboxes.default_backend"""
    image: str = ""
    """Image, where the backend has images"""
    command: Annotated[
        tuple[str, ...] | None, _expects("a list of strings", ["agent-server", "--port", "8000"])
    ] = None
    """Command that starts the agent server; absent means the backend's own"""
    env: dict[str, str] = {}
    """Environment of the command"""
    working_dir: str = ""
    """Directory in which the agent works"""
    ports: Annotated[
        tuple[PortConfig, ...],
        _expects(
            'a list of tables such as `{ name = "agent", number = 8000 }`',
            [{"name": "agent", "number": 8000, "awaited": True}],
        ),
    ] = ()
    """Ports it listens on: name, number (0 lets the backend choose), awaited"""
    limits: Annotated[
        SpecLimitsConfig,
        _expects(
            "a table such as `{ cpus = 2.0, memory_bytes = 4294967296 }`",
            {"cpus": 2.0, "memory_bytes": 4 * 1024**3},
        ),
    ] = SpecLimitsConfig()
    """What it may use: cpus, memory_bytes, disk_bytes, pids, open_files; what is not said is as in
    sandboxes.limits, and 0 is no limit"""
    isolation: Isolation = Isolation.NONE
    """How far it must be isolated; see sandboxes.isolation"""
    network: Network = Network.OPEN
    """Where it may connect to: open, allowlist, or none but this server"""
    allow_hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...],
        _expects("a list of host names", ["pypi.org", "*.example.org"]),
    ] = ()
    """Hosts an `allowlist` lets through; "*." before one for all below it"""
    idle: Annotated[
        IdleConfig,
        _expects(
            "a table such as `{ pause_after_seconds = 1800.0 }`",
            {"pause_after_seconds": 1800.0, "delete_after_seconds": 0.0},
        ),
    ] = IdleConfig()
    """When one that nobody uses is paused, reclaimed, hibernated, stopped or deleted, in place of
    sandboxes.*: pause_after_seconds, reclaim_after_seconds, hibernate_after_seconds,
    stop_after_seconds, delete_after_seconds; 0 is never"""
    pool: Annotated[int, Meta(ge=0, le=100)] = 0
    """How many are started before anybody asks for one"""
    options: dict[str, Any] = {}
    """Anything more the backend understands"""
