"""Values of the backend contract: specs, orders, handles, reports.

Public: plugin authors import these from `agentsvc.plugin.backend`.
"""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base import Secret


class Capability(StrEnum):
    """An optional feature of a backend."""

    PAUSE = "pause"
    """pause() and resume() work and keep the files."""
    EXECUTE = "execute"
    """execute() works."""
    LOGS = "logs"
    """logs() works."""
    LIMITS = "limits"
    """Every field of Limits is enforced."""
    RESTART = "restart"
    """restart() works: a failed sandbox runs again on the same files."""
    STOP = "stop"
    """stop() works, and so does restart() of a stopped sandbox, of which only the files are kept."""
    RECLAIM = "reclaim"
    """reclaim() works unless `why_no_reclaim` returns a reason. Requires PAUSE."""
    HIBERNATE = "hibernate"
    """hibernate() works unless `why_no_hibernate` returns a reason. Requires PAUSE and STOP."""
    LAYERS = "layers"
    """keep_layer() works: sandboxes can start from a copy of a stopped one's files. Requires STOP."""
    COPIES = "copies"
    """`Order.copy_of` works: a sandbox can be created with a copy of another's files, which keeps running."""
    IMAGES = "images"
    """`Order.base` and build_image() work: a sandbox can run in an image chosen or built for it."""
    CHECKPOINTS = "checkpoints"
    """checkpoint() works: a sandbox can be rolled back to earlier files. Requires STOP."""
    SURVIVES_RESTART = "survives_restart"
    """Sandboxes outlive the server process."""


class Phase(StrEnum):
    """The state of a sandbox as last reported by its backend."""

    STARTING = "starting"
    """Accepted, not usable yet."""
    RUNNING = "running"
    """Every awaited port accepts connections."""
    PAUSED = "paused"
    """Uses no CPU; files are kept."""
    FAILED = "failed"
    """It exists and will not run again by itself."""
    GONE = "gone"
    """The control plane was reached and has no such sandbox."""


class Isolation(StrEnum):
    """How strongly a sandbox is isolated, from the weakest level to the strongest."""

    NONE = "none"
    """A directory and an environment of its own, and all rights of the account that runs it."""
    REMOTE = "remote"
    """Enforced by another service, which does not report its level; counts as none."""
    LANDLOCK = "landlock"
    """Landlock: no access to files outside, nor signals from Linux 6.12 on; processes are visible."""
    BUBBLEWRAP = "bubblewrap"
    """Namespaces of its own on the same kernel, no privileges, filtered system calls."""
    CONTAINER = "container"
    """The same with an image's file system, by a container engine."""
    GVISOR = "gvisor"
    """A user-space kernel of its own."""
    VM = "vm"
    """A virtual machine of its own."""

    def meets(self, floor: "Isolation") -> bool:
        """Return whether this level is at least as strong as `floor`."""
        return _STRENGTH[self] >= _STRENGTH[floor]


_STRENGTH: Final = {level: number for number, level in enumerate(Isolation)} | {Isolation.REMOTE: 0}


class Network(StrEnum):
    """Where a sandbox may connect to; the server reaches the sandbox in every case."""

    OPEN = "open"
    """Every address that this machine, or the container's network, reaches."""
    ALLOWLIST = "allowlist"
    """This server and the hosts in `allow_hosts`, and nothing else."""
    NONE = "none"
    """This server only."""


class PausedAs(StrEnum):
    """How a sandbox is paused: what is kept of it."""

    FROZEN = "frozen"
    """Memory and files; every process continues where it was."""
    RECLAIMED = "reclaimed"
    """The same, with most of the memory in swap, from which it is paged in on use."""
    ON_DISK = "on_disk"
    """Memory in a file: takes no RAM, and processes continue where they were, also after a reboot."""
    STOPPED = "stopped"
    """Files only; the command is started again."""


class Cause(StrEnum):
    """Why a sandbox has failed, for programs; `Report.reason` is for humans."""

    EXITED = "exited"
    """The command exited by itself."""
    SIGNALLED = "signalled"
    """A signal terminated the command."""
    OUT_OF_MEMORY = "out_of_memory"
    """The sandbox exceeded its memory limit."""
    DISK_FULL = "disk_full"
    """The sandbox exceeded its disk limit."""
    NOT_STARTED = "not_started"
    """The command was never started."""
    LOST = "lost"
    """The process that holds the sandbox was killed from outside."""
    HOST_RESTARTED = "host_restarted"
    """The machine or the container engine was restarted."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a sandbox; None means no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    """Processes and threads together."""
    open_files: int | None = None
    """Per process."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port that a sandbox serves.

    The name is lower case and may be used as `{port.NAME}` in the command and the environment.
    The number is the one inside the sandbox; 0 lets the backend choose. A sandbox is running
    when all its awaited ports accept connections.
    """

    name: str
    number: int = 0
    awaited: bool = True


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a sandbox's files to which it can be rolled back."""

    id: str
    created_at: datetime


class IdleRules(msgspec.Struct, frozen=True, kw_only=True):
    """When an unused sandbox is paused, reclaimed, hibernated, stopped or deleted, in seconds.

    None inherits the more general rule; 0 means never.
    """

    pause_after_seconds: float | None = None
    reclaim_after_seconds: float | None = None
    hibernate_after_seconds: float | None = None
    stop_after_seconds: float | None = None
    delete_after_seconds: float | None = None

    def over(self, general: "IdleRules") -> "IdleRules":
        """Return these rules, with `general` for the fields that are None."""
        own = msgspec.structs.asdict(self)
        return msgspec.structs.replace(
            general, **{name: value for name, value in own.items() if value is not None}
        )


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a spec and an order have in common."""

    image: str = ""
    """Empty if the backend has no images."""
    base: str = ""
    """The image whose file system is used, with the agent server of `image`; empty to use `image`."""
    command: tuple[str, ...] | None = None
    """None for the image's own command."""
    env: dict[str, str] = {}
    working_dir: str = ""
    ports: tuple[Port, ...] = ()
    limits: Limits = Limits()
    options: dict[str, Any] = {}
    """Options of this backend type only; those of an order have been validated by the backend."""
    resource_factor: int = 1
    """A multiple of the usual size; a hint for backends that have sizes."""
    isolation: Isolation = Isolation.NONE
    """The minimum isolation; a backend that isolates less must reject the order."""
    network: Network = Network.OPEN
    allow_hosts: tuple[str, ...] = ()
    """Host names, or `*.` and a domain for all hosts below it, if the network is `allowlist`."""
    reaches: tuple[str, ...] = ()
    """`host:port` of what the agent needs in every network besides the server: configured models."""
    models: tuple[str, ...] = ()
    """`host:port` of models that users configured; reached at public addresses only."""
    layer: str = ""
    """The layer to create the files from; see `RuntimeBackend.keep_layer`."""
    copy_of: str = ""
    """The id of the sandbox to copy the files from, running or not; it is not stopped for that.
    `create` raises StillFetching while files are copied, OrderRejected if that sandbox is gone."""


class Spec(Asked, frozen=True, kw_only=True):
    """A template for sandboxes."""

    id: str
    backend: str = ""
    """The instance name of its backend; empty for the default one."""
    idle: IdleRules = IdleRules()
    """When the server culls an unused sandbox; ignored by backends."""
    pool: int = 0
    """How many spares the server keeps in the warm pool; ignored by backends."""
    withholds_secrets: bool = False
    """Whether sandboxes get none of their user's stored secrets: no tokens of git hosts, no secrets,
    no tool servers; ignored by backends."""


class Order(Asked, frozen=True, kw_only=True):
    """A request of the server to create one sandbox."""

    sandbox_id: str
    """Chosen by the server: 32 characters of a-z and 0-9."""
    secret_env: dict[str, Secret] = {}
    """Must not appear in argv, labels, handles, reports or logs."""


class ImageBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The input of an image build."""

    context: Path
    """A tar archive of the build context, kept until the build ends; the backend may add files."""
    dockerfile: str
    """The text of the Dockerfile."""
    args: dict[str, str] = {}
    target: str = ""
    """The stage to build; empty for the last one."""
    time_limit: float


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend needs to find one sandbox again; opaque to the server, which stores it."""

    sandbox_id: str
    version: int
    """The version of the format of `data`; the backend's own number."""
    data: dict[str, Any] = {}
    """JSON, at most 8 KiB, no secrets."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one port of a sandbox."""

    name: str
    """The Port's name."""
    port: int
    """The number inside the sandbox; the chosen number if the order said 0."""
    url: str
    """The URL for the server: `http`, `https`, or `http+unix` with the socket's quoted path as host."""
    public_url: str | None = None
    """The URL for clients as another service reports it; our clients always get the gateway's URL."""
    needs_key: bool = False
    """Whether it is behind another gateway, which requires the sandbox's key in X-Session-API-Key."""
    is_carried: bool = False
    """Whether the connection runs through the backend, and breaks when the backend is closed."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one sandbox as seen by its backend."""

    phase: Phase
    reason: str = ""
    """One line for humans: "image pull failed: …"."""
    endpoints: tuple[Endpoint, ...] = ()
    exit_code: int | None = None
    """The command's exit code; 128 + the signal's number if a signal terminated it."""
    working_dir: str = ""
    """The absolute path of the workspace inside the sandbox."""
    facts: dict[str, str] = {}
    """Further details for clients, as texts by name; no secrets."""
    isolation: Isolation | None = None
    """The isolation in force for this sandbox; None if it is unknown now."""
    paused_as: PausedAs | None = None
    """Set for a paused sandbox."""
    cause: Cause | None = None
    """Set for a failed sandbox, if the cause is known."""
    enforced: tuple[str, ...] | None = None
    """The fields of the order's limits that are enforced; None if unknown now."""
    session_key: Secret | None = None
    """The agent server's key, if another service generated it; None for the one in the order."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that a sandbox uses; None means unknown."""

    cpu_seconds: float | None = None
    """Seconds of CPU time since its command was last started; null: not known"""
    # Without the kernel's caches.
    memory_bytes: int | None = None
    """Bytes of memory in use; null: not known"""
    processes: int | None = None
    """Number of processes and threads; null: not known"""
    disk_bytes: int | None = None
    """Bytes of disk its files take, as last measured; null: not known"""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox in the result of a scan."""

    handle: Handle
    created_at: datetime


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that sandboxes of a backend lack on this machine, and how an operator can enable it."""

    subject: str
    """One or two words, such as `network`."""
    text: str
    remedy: str = ""
    """A command or an action, if there is one."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend could create a sandbox now."""

    ok: bool
    reason: str = ""
    facts: dict[str, str] = {}
    """Versions, free slots; shown to the operator."""
    advice: tuple[Advice, ...] = ()
    """Missing features of sandboxes on this machine, with remedies; shown by `agentsvc doctor`."""


class Fences(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation, networks and limits that a backend enforces on this machine now."""

    isolation: Isolation = Isolation.NONE
    reason: str = ""
    """Why isolation is weaker than one would expect: "bubblewrap is not installed"."""
    remedy: str = ""
    """What the operator can do for stronger isolation: "apt install bubblewrap"."""
    networks: frozenset[Network] = frozenset({Network.OPEN})
    network_remedy: str = ""
    """What the operator can do to enable a missing network."""
    limits: frozenset[str] = frozenset()
    """The fields of Limits that are enforced."""


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command in a sandbox."""

    exit_code: int | None
    """None if it was killed at its time limit."""
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a sandbox's log."""

    at: datetime
    stream: str
    """"stdout" or "stderr"."""
    text: str
