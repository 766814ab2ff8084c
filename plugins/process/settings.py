"""Configuration of the process backend."""

from enum import StrEnum
from typing import Annotated

import msgspec

from . import users

type Positive = Annotated[float, msgspec.Meta(gt=0)]


class OpenNetwork(StrEnum):
    """What `network = "open"` means for a sandbox that bubblewrap holds."""

    OWN = "own"
    HOST = "host"


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.process]` table."""

    path: str = ""
    """PATH in a sandbox; empty for the server's own, without the server's virtual environment."""
    pass_env: tuple[str, ...] = ()
    """Names of variables of the server's environment that sandboxes see, too, such as proxies."""
    temp_dir: str = ""
    """Where the sandboxes' temporary directories go; a short path. Empty for the system's."""
    use_bubblewrap: bool = True
    """Whether bubblewrap holds sandboxes where it works."""
    uids: str = "1900000000-1900065535"
    """Of which numbers each sandbox that bubblewrap holds for root gets one, as its user outside;
    nobody else may have them. Empty to run them as root there."""
    network: OpenNetwork = OpenNetwork.OWN
    """What a sandbox that bubblewrap holds has where its spec says `open`: a network namespace of its
    `own`, with the rest of the world beyond it, or that of the `host` with all that listens there. In the
    latter, other sandboxes can take its work ports, though not the port of its agent server."""
    use_landlock: bool = True
    """Whether Landlock confines sandboxes where bubblewrap does not hold them, and the kernel has it."""
    readable: tuple[str, ...] = ()
    """Directories that held sandboxes may read besides the system and the server's Python."""
    use_overlayfs: bool = True
    """Whether sandboxes that begin with a prepared environment lie over its files, where the kernel lets
    the server mount that. Elsewhere each has a copy."""
    use_cgroups: bool = True
    """Whether to use control groups where they can be used. Without them signals pause sandboxes,
    and of the limits only `disk_bytes` and `open_files` are enforced."""
    zygote: bool = True
    """Whether agent servers are forks of a process that has loaded one, instead of loading it each.
    There is none where it could not be kept from the server's files and processes."""
    zygote_delay_seconds: Positive = 5.0
    """How long after the server that process is started, unless a sandbox asks for it before."""
    zygote_seconds: Positive = 30.0
    """How long a sandbox waits for that process to have loaded before it is started without it. Only one
    is; others wait until it has loaded, and at most three times as long"""
    zygote_idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """After how long without a start that process ends, which frees its memory; the next start loads
    another one and takes some seconds longer. 0 to keep it."""
    zygote_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1024 * 1024 * 1024
    """How much memory that process may take; one that takes more is replaced."""
    log_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 10 * 1024 * 1024
    """How much of a sandbox's output is kept."""
    launch_seconds: Positive = 20.0
    """How long the start of the process that holds a sandbox may take."""
    connect_seconds: Positive = 0.5
    """How long one attempt to reach a port may take."""
    pause_seconds: Positive = 10.0
    """How long the processes of a sandbox may take to stop for a pause."""
    stop_seconds: Annotated[float, msgspec.Meta(ge=0)] = 3.0
    """How long a sandbox that is deleted has to end by itself."""
    kill_seconds: Positive = 20.0
    """How long the kernel may take to end what is killed."""

    def __post_init__(self) -> None:
        users.parse(self.uids)
