"""Values of the backend contract: specs, orders, handles, reports.

Public: plugin authors import these by `agentsvc.plugin.backend`.
"""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base import Secret


class Capability(StrEnum):
    """What a backend can do beyond the basic verbs."""

    PAUSE = "pause"
    """pause() and resume() work and keep the files."""
    EXECUTE = "execute"
    """execute() works."""
    LOGS = "logs"
    """logs() works."""
    LIMITS = "limits"
    """Every field of Limits is enforced."""
    RESTART = "restart"
    """restart() works: a sandbox that has failed runs again on the same files."""
    STOP = "stop"
    """stop() works, and restart() for what was stopped: of a sandbox only its files are kept."""
    RECLAIM = "reclaim"
    """reclaim() works where `why_no_reclaim` says nothing. With pause."""
    HIBERNATE = "hibernate"
    """hibernate() works where `why_no_hibernate` says nothing. With pause and stop."""
    LAYERS = "layers"
    """keep_layer() works: new sandboxes can begin with a copy of the files of a stopped one. With stop."""
    COPIES = "copies"
    """`Order.copy_of` works: a new sandbox can begin with the files of another one, which goes on."""
    IMAGES = "images"
    """`Order.base` and build_image() work: sandboxes run in images that are chosen, or built, for them."""
    CHECKPOINTS = "checkpoints"
    """checkpoint() works: a sandbox can go back to the files it had before. With stop."""
    SURVIVES_RESTART = "survives_restart"
    """Sandboxes outlive the server process."""


class Phase(StrEnum):
    """What a backend saw when it looked at a sandbox."""

    STARTING = "starting"
    """Accepted, not usable yet."""
    RUNNING = "running"
    """Every awaited port answers connections."""
    PAUSED = "paused"
    """Uses no CPU, files kept."""
    FAILED = "failed"
    """It exists and will not run by itself."""
    GONE = "gone"
    """The control plane was reached and says it does not exist."""


class Isolation(StrEnum):
    """How far a sandbox is kept from everything else, from the weakest to the strongest."""

    NONE = "none"
    """A directory and an environment of its own, and the rights of whoever runs it."""
    REMOTE = "remote"
    """Somebody else's matter, who does not say; counts as none."""
    LANDLOCK = "landlock"
    """Files are out of reach, and signals from Linux 6.12 on; other processes can be seen."""
    BUBBLEWRAP = "bubblewrap"
    """Namespaces of its own on the same kernel, without privileges, with fewer system calls."""
    CONTAINER = "container"
    """The same with the file system of an image, by a container engine."""
    GVISOR = "gvisor"
    """A kernel of its own in user space."""
    VM = "vm"
    """A machine of its own."""

    def meets(self, floor: "Isolation") -> bool:
        """Say whether this is at least as strong as a floor."""
        return _STRENGTH[self] >= _STRENGTH[floor]


_STRENGTH: Final = {level: number for number, level in enumerate(Isolation)} | {Isolation.REMOTE: 0}


class Network(StrEnum):
    """Where a sandbox may connect to; it is reached from the server in each of them."""

    OPEN = "open"
    """Wherever this machine, or the network of the container, reaches."""
    ALLOWLIST = "allowlist"
    """To this server and to the hosts in `allow_hosts`, and to nothing else."""
    NONE = "none"
    """To this server only."""


class PausedAs(StrEnum):
    """What a paused sandbox still has."""

    FROZEN = "frozen"
    """Its memory: every process goes on where it was."""
    RECLAIMED = "reclaimed"
    """The same, and most of that memory is in swap, from where it comes back when it is used."""
    ON_DISK = "on_disk"
    """The same, in a file: it takes no memory, and goes on where it was, also on a machine started anew."""
    STOPPED = "stopped"
    """Its files only: its command is started anew."""


class Cause(StrEnum):
    """Why a sandbox has failed, for programs; `Report.reason` is for people."""

    EXITED = "exited"
    """The command ended by itself."""
    SIGNALLED = "signalled"
    """A signal ended the command."""
    OUT_OF_MEMORY = "out_of_memory"
    """It, or what it runs, wanted more memory than it may use."""
    DISK_FULL = "disk_full"
    """It wanted more disk than it may use."""
    NOT_STARTED = "not_started"
    """It never got as far as its command."""
    LOST = "lost"
    """What held it was ended from outside."""
    HOST_RESTARTED = "host_restarted"
    """The machine, or the engine, was started anew."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox may use; None means no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    """Processes and threads together."""
    open_files: int | None = None
    """Of each process."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port that a sandbox offers.

    The name is lower case and may be used as `{port.NAME}` in the command and the environment.
    The number is the one inside the sandbox; 0 lets the backend choose. A sandbox is running
    when all its awaited ports answer.
    """

    name: str
    number: int = 0
    awaited: bool = True


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a sandbox to which it can go back."""

    id: str
    created_at: datetime


class IdleRules(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a sandbox that nobody uses, after so many seconds.

    None leaves it to whoever says it more generally, and 0 is never.
    """

    pause_after_seconds: float | None = None
    reclaim_after_seconds: float | None = None
    hibernate_after_seconds: float | None = None
    stop_after_seconds: float | None = None
    delete_after_seconds: float | None = None

    def over(self, general: "IdleRules") -> "IdleRules":
        """Return these rules, with the more general ones where they say nothing."""
        own = msgspec.structs.asdict(self)
        return msgspec.structs.replace(
            general, **{name: value for name, value in own.items() if value is not None}
        )


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a spec asks of sandboxes, and an order of one."""

    image: str = ""
    """Empty where the backend has no images."""
    base: str = ""
    """The image in whose file system it runs, with the agent server of `image`; empty for that itself."""
    command: tuple[str, ...] | None = None
    """None for the image's own."""
    env: dict[str, str] = {}
    working_dir: str = ""
    ports: tuple[Port, ...] = ()
    limits: Limits = Limits()
    options: dict[str, Any] = {}
    """For this kind of backend only, which has checked those of an order."""
    resource_factor: int = 1
    """How many times the usual size; a hint for backends that have sizes."""
    isolation: Isolation = Isolation.NONE
    """The floor: what isolates less must not run it."""
    network: Network = Network.OPEN
    allow_hosts: tuple[str, ...] = ()
    """Host names, `*.` before one for all below it, where the network is `allowlist`."""
    reaches: tuple[str, ...] = ()
    """`host:port` of what the agent needs in every network besides the server: known models."""
    models: tuple[str, ...] = ()
    """The same of models that only their user knows, and at public addresses only."""
    layer: str = ""
    """The layer with a copy of which its files begin; see `RuntimeBackend.keep_layer`."""
    copy_of: str = ""
    """The id of the sandbox with a copy of whose files its own begin, whether that runs or not. It is
    not stopped for that. `create` raises StillFetching meanwhile, OrderRejected where it is gone."""


class Spec(Asked, frozen=True, kw_only=True):
    """A template from which sandboxes are made."""

    id: str
    backend: str = ""
    """The instance name of its backend; empty for the default one."""
    idle: IdleRules = IdleRules()
    """What the server does with a sandbox that nobody uses; no matter of the backend's."""
    pool: int = 0
    """How many the server keeps ready for whoever asks; no matter of the backend's."""
    withholds_secrets: bool = False
    """Whether nothing that its user has stored gets in: no tokens of git hosts, no secrets, no tool
    servers; no matter of the backend's."""


class Order(Asked, frozen=True, kw_only=True):
    """What the server asks a backend to make."""

    sandbox_id: str
    """Chosen by the server: 32 characters of a-z and 0-9."""
    secret_env: dict[str, Secret] = {}
    """Never in argv, labels, handles, reports or logs."""


class ImageBuild(msgspec.Struct, frozen=True, kw_only=True):
    """What an image is built from."""

    context: Path
    """A tar archive with the files, to which the backend may add its own; it stays until it is built."""
    dockerfile: str
    """The text of the Dockerfile."""
    args: dict[str, str] = {}
    target: str = ""
    """The stage that is built; empty for the last one."""
    time_limit: float


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend needs to find one sandbox again; opaque to the server, which stores it."""

    sandbox_id: str
    version: int
    """Of `data`; the backend's own number."""
    data: dict[str, Any] = {}
    """JSON, at most 8 KiB, no secrets."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where one port of a sandbox is reached."""

    name: str
    """The Port's name."""
    port: int
    """The number inside the sandbox, the chosen one where the order said 0."""
    url: str
    """Where the server connects: `http`, `https`, or `http+unix` with a socket's quoted path as host."""
    public_url: str | None = None
    """Where the other side says that clients connect; ours are always given the gateway's URL."""
    needs_key: bool = False
    """Whether it is behind another gateway, which wants the sandbox's key in X-Session-API-Key."""
    is_carried: bool = False
    """Whether the way there leads through the backend itself, and ends when that is closed."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend saw when it looked at one sandbox."""

    phase: Phase
    reason: str = ""
    """One line for people: "image pull failed: …"."""
    endpoints: tuple[Endpoint, ...] = ()
    exit_code: int | None = None
    """Of the command; 128 + the signal's number if a signal ended it."""
    working_dir: str = ""
    """The workspace as an absolute path, as seen inside."""
    facts: dict[str, str] = {}
    """What a client may want to know; no secrets."""
    isolation: Isolation | None = None
    """What is in force for this sandbox; None says no more than that it is not known now."""
    paused_as: PausedAs | None = None
    """For a paused sandbox."""
    cause: Cause | None = None
    """For one that has failed, where it is known."""
    enforced: tuple[str, ...] | None = None
    """The fields of its order's limits that are really enforced; None if not known now."""
    session_key: Secret | None = None
    """The key its agent server takes, where the other side makes one; None for the ordered one."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox uses; None is not known."""

    cpu_seconds: float | None = None
    """Seconds of processor time since its command was last started; null: not known"""
    # Without what the kernel only keeps for it.
    memory_bytes: int | None = None
    """Bytes of memory in use; null: not known"""
    processes: int | None = None
    """Number of processes and threads; null: not known"""
    disk_bytes: int | None = None
    """Bytes its files take on the disk, as they were last counted; null: not known"""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox that a scan came across."""

    handle: Handle
    created_at: datetime


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that sandboxes of a backend do without, and what an operator can do about it."""

    subject: str
    """A word or two, such as `network`."""
    text: str
    remedy: str = ""
    """A command or an action, where there is one."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend could create a sandbox now."""

    ok: bool
    reason: str = ""
    facts: dict[str, str] = {}
    """Versions, free slots; shown to the operator."""
    advice: tuple[Advice, ...] = ()
    """What sandboxes do without on this machine, and how to change that; `agentsvc doctor` shows it."""


class Fences(msgspec.Struct, frozen=True, kw_only=True):
    """How sandboxes are held at a backend, here and now."""

    isolation: Isolation = Isolation.NONE
    reason: str = ""
    """Why it is not more, where more was to be expected: "bubblewrap is not installed"."""
    remedy: str = ""
    """What the operator can do for more isolation: "apt install bubblewrap"."""
    networks: frozenset[Network] = frozenset({Network.OPEN})
    network_remedy: str = ""
    """What the operator can do for a network that is missing."""
    limits: frozenset[str] = frozenset()
    """The fields of Limits that are enforced."""


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command run inside a sandbox ended."""

    exit_code: int | None
    """None when it was stopped at its time limit."""
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line a sandbox wrote."""

    at: datetime
    stream: str
    """"stdout" or "stderr"."""
    text: str
