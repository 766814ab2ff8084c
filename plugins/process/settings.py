"""Configuration of the process backend."""

from enum import StrEnum
from typing import Annotated

import msgspec

from . import users

type Positive = Annotated[float, msgspec.Meta(gt=0)]


class OpenNetwork(StrEnum):
    """The network of a sandbox in bubblewrap whose spec says `network = "open"`."""

    OWN = "own"
    HOST = "host"


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.process]` table."""

    path: str = ""
    """PATH in a sandbox; empty for the server's PATH without the server's virtual environment."""
    pass_env: tuple[str, ...] = ()
    """Names of the server's environment variables that sandboxes get, too, such as proxies."""
    temp_dir: str = ""
    """Parent of the sandboxes' temporary directories; a short path. Empty for the system's."""
    use_bubblewrap: bool = True
    """Whether to isolate sandboxes with bubblewrap if it works."""
    uids: str = "1900000000-1900065535"
    """Range of user ids if the server is root and uses bubblewrap: each sandbox runs as one of them
    outside. Nothing else on the machine may use these ids. Empty to run sandboxes as root there."""
    network: OpenNetwork = OpenNetwork.OWN
    """The network of a sandbox in bubblewrap whose spec says `open`: `own`, a network namespace
    that reaches the rest of the world, or `host`, the machine's network with all that listens
    there. With `host`, other sandboxes can take its work ports, though not the port of its agent
    server."""
    use_landlock: bool = True
    """Whether to confine sandboxes with Landlock if bubblewrap is not used and the kernel supports
    it."""
    readable: tuple[str, ...] = ()
    """Directories that isolated sandboxes may read besides the system and the server's Python."""
    use_overlayfs: bool = True
    """Whether sandboxes mount their prepared environment with overlayfs, if the server may do that.
    Otherwise each gets a copy."""
    use_cgroups: bool = True
    """Whether to use control groups if possible. Without them, sandboxes are paused with signals,
    and of the limits only `disk_bytes` and `open_files` are enforced."""
    zygote: bool = True
    """Whether agent servers are forked from a process that has loaded one, instead of each loading
    it. There is no such process if it could not be isolated from the server's files and
    processes."""
    zygote_delay_seconds: Positive = 5.0
    """How long after the server that process is started, unless a sandbox needs it earlier."""
    zygote_seconds: Positive = 30.0
    """How long a sandbox waits for that process to load before it starts without it. Only one does;
    the others wait until it is loaded, but at most three times as long."""
    zygote_idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long that process may be idle before it ends and frees its memory; the next start loads
    another one and takes some seconds longer. 0 to keep it."""
    zygote_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1024 * 1024 * 1024
    """Memory limit of that process; it is replaced if it takes more."""
    log_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 10 * 1024 * 1024
    """How much of a sandbox's output is kept."""
    launch_seconds: Positive = 20.0
    """Timeout for the start of the process that holds a sandbox."""
    connect_seconds: Positive = 0.5
    """Timeout of one attempt to connect to a port."""
    pause_seconds: Positive = 10.0
    """Timeout for the processes of a sandbox to stop for a pause."""
    stop_seconds: Annotated[float, msgspec.Meta(ge=0)] = 3.0
    """Grace period for a sandbox that is stopped or deleted to end by itself."""
    kill_seconds: Positive = 20.0
    """Timeout for the kernel to end killed processes."""

    def __post_init__(self) -> None:
        users.parse(self.uids)
