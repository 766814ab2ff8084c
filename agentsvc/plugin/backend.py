"""The contract between the server and a runtime backend, which runs its sandboxes.

Public: plugin authors import from here. A backend is a subclass of RuntimeBackend; its arguments and
results are the structs of `agentsvc.plugin.values`, which this module exports. Backends are discovered by
`agentsvc.sandboxes.plugin_loader` and selected by `agentsvc.sandboxes.registry`; the conformance kit,
`agentsvc.testing.backend_contract`, tests that a backend keeps the contract.
"""

import abc
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from agentsvc.base import BackendUnavailable, OrderRejected, Secret, Unsupported
from agentsvc.plugin.egress import BadHost, parse_policy
from agentsvc.plugin.values import (
    Capability,
    Cause,
    Checkpoint,
    Endpoint,
    ExecResult,
    Fences,
    Found,
    Handle,
    Health,
    IdleRules,
    ImageBuild,
    Isolation,
    Limits,
    LogLine,
    Network,
    Order,
    PausedAs,
    Phase,
    Port,
    Report,
    Spec,
    Usage,
)

__all__ = [
    "API_VERSION",
    "HANDLE_BYTES_MAX",
    "NOT_CALLING",
    "BackendContext",
    "Capability",
    "Cause",
    "Checkpoint",
    "Endpoint",
    "ExecResult",
    "Fences",
    "FindKey",
    "Found",
    "Handle",
    "Health",
    "IdleRules",
    "ImageBuild",
    "Isolation",
    "Limits",
    "LogLine",
    "Network",
    "Order",
    "PartlyScanned",
    "PausedAs",
    "Phase",
    "Port",
    "Report",
    "RuntimeBackend",
    "SaveHandle",
    "Spec",
    "StillFetching",
    "Usage",
    "check_hosts",
    "fill",
    "no_key",
]

API_VERSION: Final = 1
"""The version of the contract that this server implements; a backend class declares its own."""

HANDLE_BYTES_MAX: Final = 8192
"""The maximum size of a handle's `data` as JSON, in bytes."""

_PORT_PLACEHOLDER = re.compile(r"\{port\.([a-z0-9_]+)\}")


class PartlyScanned(BackendUnavailable):
    """Some of a backend's hosts or sandboxes cannot be reached; `found` has the others.

    Sandboxes that are not in `found` may exist; if `unknown` is not None, only those with its ids may.
    """

    def __init__(
        self,
        message: str,
        *,
        found: Sequence[Found],
        unknown: Collection[str] | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message, detail=detail)
        self.found = tuple(found)
        self.unknown = unknown


class StillFetching(BackendUnavailable):
    """An image or files of a sandbox are being fetched, and make progress; the message reports it.

    While `create` raises it, the start timeout is suspended.
    """


type FindKey = Callable[[str], Awaitable[Secret | None]]


async def no_key(_sandbox_id: str) -> Secret | None:
    """Return None: the default `owner_key`, for an installation in which no user has stored a key."""
    return None


NOT_CALLING: Final[Mapping[str, str]] = {"callbacks": "none"}
"""The fact reported for a sandbox that cannot reach this server; the server polls it for events."""


class BackendContext(msgspec.Struct, frozen=True, kw_only=True):
    """The installation that a backend instance works for: its id, directories, URLs and callbacks."""

    instance_id: str
    """The id of this installation; label every resource with it."""
    state_dir: Path
    """A directory private to this backend; may be empty after a restore."""
    callback_url: str = ""
    """The server's URL for sandboxes, also for those without a network; empty if unknown."""
    public_url: str = ""
    """The server's URL for browsers; empty if unknown."""
    owner_key: FindKey = no_key
    """Returns the `sandbox_api_key` that the owner of a sandbox, given by id, has now, or None."""
    keeps_checkpoints: bool = False
    """Whether the server is configured to take checkpoints of sandboxes."""


type SaveHandle = Callable[[Handle], Awaitable[None]]


class RuntimeBackend[ConfigT: msgspec.Struct](abc.ABC):
    """Runs sandboxes on one kind of infrastructure.

    An instance keeps connections, never sandboxes. A sandbox's handle holds everything needed to
    find it again, so a new instance after a restart accepts old handles. There is one instance
    per config table; calls for different sandboxes interleave at every await.
    """

    name: ClassVar[str]
    """The backend type named in the config and in specs."""
    api_version: ClassVar[int]
    """The contract version that the class was written for; has no default."""
    capabilities: ClassVar[frozenset[Capability]]
    Config: ClassVar[type[msgspec.Struct]]
    """Its table in config.toml; fields are required or have a default, unknown keys are rejected."""
    default_isolation: ClassVar[Isolation] = Isolation.NONE
    """The intended isolation; a server that cannot provide it starts only if configured for less."""

    def __init__(self, config: ConfigT, context: BackendContext) -> None:
        """Keep the two arguments as attributes. No I/O."""
        self.config = config
        self.context = context

    async def open(self) -> None:  # noqa: B027  # optional: not every backend has connections
        """Connect; import client libraries here. Raise BackendUnavailable if connecting fails."""

    async def close(self) -> None:  # noqa: B027  # optional: not every backend has connections
        """Close all connections. Sandboxes keep running. Idempotent, and safe without `open`."""

    @abc.abstractmethod
    async def probe(self) -> Health:
        """Report whether a sandbox could be created now, and if not, why. Cheap; changes nothing."""

    @property
    def runs_here(self) -> bool:
        """Whether sandboxes use the CPUs of this server's machine, so that starts are limited by slots.

        No I/O.
        """
        return False

    @property
    def least_isolation(self) -> Isolation:
        """The minimum isolation of every sandbox of this backend, whatever is configured. No I/O."""
        return Isolation.NONE

    def fences(self, asked: Spec | Order) -> Fences:
        """Return the isolation, networks and limits that sandboxes of a spec or an order would get.

        No I/O; known once the backend is open. The server and `check_fences` in `create` reject a
        spec or an order that asks for more.
        """
        del asked
        has_limits = Capability.LIMITS in self.capabilities
        return Fences(limits=frozenset(Limits.__struct_fields__ if has_limits else ()))

    def check_fences(self, asked: Spec | Order) -> None:
        """Raise OrderRejected if more isolation, a network or a limit is asked for than is enforced."""
        fences = self.fences(asked)
        if not fences.isolation.meets(asked.isolation):
            why = "".join(f"; {text}" for text in (fences.reason, fences.remedy) if text)
            raise OrderRejected(
                f"The {self.name} backend runs sandboxes with isolation `{fences.isolation}`,"
                f" and at least `{asked.isolation}` is required{why}"
            )
        if asked.network not in fences.networks:
            remedy = f"; {fences.network_remedy}" if fences.network_remedy else ""
            raise OrderRejected(
                f"The {self.name} backend cannot enforce the network `{asked.network}`{remedy}"
            )
        if asked.allow_hosts and asked.network is not Network.ALLOWLIST:
            raise OrderRejected("`allow_hosts` needs the network `allowlist`")
        for name, value in msgspec.structs.asdict(asked.limits).items():
            # 0 asks for no limit, even if the backend limits by default.
            if value and name not in fences.limits:
                raise OrderRejected(f"The {self.name} backend cannot enforce the limit `{name}`")

    def why_no_pool(self, spec: Spec) -> str:
        """Return why no sandbox of a spec can be created before its user is known, or "" if it can.

        No I/O. The order of such a warm-pool sandbox has `OH_DEFERRED_INIT` in its environment; the
        server sends the user's data to its agent server once there is a user. Called again before a
        spare is assigned, with the spec as changed by what that user needs.
        """
        del spec
        return ""

    def why_no_reclaim(self) -> str:
        """Return why memory of paused sandboxes cannot be moved to swap now, or "" if it can.

        No I/O. The result may change while the backend is open.
        """
        if Capability.RECLAIM in self.capabilities:
            return ""
        return f"the {self.name} backend cannot move memory to swap"

    def why_no_copies(self) -> str:
        """Return why files of sandboxes cannot be kept or copied now, or "" if they can.

        No I/O. If a reason is returned, layers and copies are rejected with OrderRejected, and checkpoints
        may be. The result may change while the backend is open.
        """
        if self.capabilities & {Capability.LAYERS, Capability.COPIES, Capability.CHECKPOINTS}:
            return ""
        return f"the {self.name} backend cannot keep or copy files"

    def why_no_hibernate(self) -> str:
        """Return why memory of paused sandboxes cannot be written to disk now, or "" if it can.

        No I/O. The result may change while the backend is open.
        """
        if Capability.HIBERNATE in self.capabilities:
            return ""
        return f"the {self.name} backend cannot write memory to disk"

    def inside_url(self, url: str) -> str:
        """Return the URL by which sandboxes reach this server, if it differs from the given one.

        No I/O. Must be stable: it is sent to agent servers that outlive this process.
        """
        return url

    def check_spec(self, spec: Spec) -> None:  # noqa: B027  # optional: a backend may take anything
        """Raise OrderRejected if sandboxes of this spec could never be created. No I/O."""

    @abc.abstractmethod
    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Request a sandbox and return once it is requested; it may start running later.

        Label every resource with the instance id and the sandbox id *when it is created*, so that
        scan finds it after any failure. Call save as soon as there is something to clean up, and
        again when more is known; when save returns, the handle is on disk.
        Idempotent: the same order twice creates one sandbox. Reject limits, networks and isolation
        levels that you cannot enforce (`check_fences`).
        If cancelled, leave either nothing or resources that scan lists.
        Download images and files in the background: raise StillFetching, and you are called again.
        """

    @abc.abstractmethod
    async def inspect(self, handle: Handle) -> Report:
        """Return the current state of the sandbox.

        Report GONE only if the control plane was reached and has no such sandbox. If it could not
        be reached, raise BackendUnavailable. If the handle's version is unknown, raise
        HandleTooNew. Never wait for a phase to change.
        """

    @abc.abstractmethod
    async def scan(self) -> Sequence[Found]:
        """List every sandbox that carries this instance's label, in any phase.

        All or nothing: instead of returning a partial list, raise BackendUnavailable; raise
        PartlyScanned if only some hosts or sandboxes cannot be reached. Sandboxes of other
        instances are not listed.
        """

    @abc.abstractmethod
    async def delete(self, handle: Handle) -> None:
        """Remove the sandbox and every resource created for it; return when they are gone.

        Works in every phase, with a handle that was saved half-way, and if the sandbox is already gone.
        """

    async def leftovers(self) -> Sequence[str]:
        """List all resources of this instance, found by other means than those of scan.

        Only the conformance kit calls it, while a sandbox runs and after all are deleted. The kit
        itself finds processes, temporary files, control groups and mounts on its machine.
        """
        return ()

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Return whether a reported endpoint still leads to this sandbox, and to nothing else.

        Called for each new connection to the endpoint, made from `source_port` of this server's
        machine, before anything is sent: a key, a secret or a cookie must not reach another process
        that has taken over the address of a deleted sandbox. Not called for unix sockets, which must
        be in a directory in which no sandbox can replace them. Raise BackendUnavailable if the
        answer cannot be determined now. The base class compares with the result of inspect. A
        backend that cannot know, such as one for another server, documents how it identifies peers.
        """
        del source_port
        report = await self.inspect(handle)
        return any(found.url == endpoint.url for found in report.endpoints)

    async def usage(self, handle: Handle) -> Usage | None:
        """Return what the sandbox uses now, or None if that is unknown or the sandbox does not exist.

        The server calls it periodically and caches the result. Cheap; changes nothing.
        """
        del handle
        return None

    async def give_way(self, handles: Sequence[Handle]) -> None:  # noqa: B027  # optional: they may share
        """Lower the CPU priority of these sandboxes, and restore that of all others.

        Called if `runs_here`, while conversations start, so that sandboxes that have just started do
        not slow down the other starts. An empty list means that no start is under way. Sandboxes that
        are gone are ignored. `close`, and `open` after a crash, restore the priority of all.
        """

    # Optional methods, one for each capability. The base class raises Unsupported.

    async def pause(self, handle: Handle) -> None:
        """Stop using CPU and keep the files. Idempotent.

        If cancelled half-way, a second call completes it. Raises Conflict if the sandbox cannot be
        paused.
        """
        raise _unsupported(self, Capability.PAUSE, handle)

    async def resume(self, handle: Handle) -> Handle:
        """Resume the sandbox on the same files. Return the handle to use from now on.

        Idempotent for a running sandbox. Raises Conflict if it has failed or is gone and
        therefore cannot run again. A backend with the capability STOP does not resume stopped
        sandboxes: the server calls restart for them.
        """
        raise _unsupported(self, Capability.PAUSE, handle)

    async def reclaim(self, handle: Handle) -> None:
        """Move the memory of a frozen sandbox to swap, as far as there is room.

        On return the sandbox is PAUSED as RECLAIMED, or still as FROZEN if hardly any memory could be
        moved. No-op for a sandbox that is reclaimed or stopped. If cancelled half-way, for example by
        a resume, what was moved stays in swap. Raises Conflict unless the sandbox is paused.
        """
        raise _unsupported(self, Capability.RECLAIM, handle)

    async def hibernate(self, handle: Handle) -> None:
        """Write memory and processes of a frozen or reclaimed sandbox to disk, and release both.

        On return the sandbox is PAUSED as ON_DISK; as before, if that failed; or as STOPPED, if the
        attempt lost its memory. `resume` continues from the file; if the file cannot be read, the
        sandbox becomes STOPPED, and the server calls `restart`. The file contains the sandbox's
        secrets: only the account that runs sandboxes may read it, and it is removed with the sandbox,
        and on resume. No-op for a sandbox on disk or stopped. If interrupted, the sandbox is left
        intact in one of these states, or running. Raises Conflict unless the sandbox is paused.
        """
        raise _unsupported(self, Capability.HIBERNATE, handle)

    async def stop(self, handle: Handle) -> None:
        """Stop all processes of a running or paused sandbox and keep its files.

        On return it uses no memory and is PAUSED as STOPPED, also after the machine was restarted.
        Idempotent. If cancelled half-way, a second call completes it. Raises Conflict if the sandbox
        cannot be stopped.
        """
        raise _unsupported(self, Capability.STOP, handle)

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start the command of a failed or stopped sandbox on the same files.

        The order is the one that it was created with. No-op for a running or frozen sandbox. Called
        again after a crash half-way, it completes the restart. Raises Conflict if the files are
        gone.
        """
        del order, save
        raise _unsupported(self, Capability.RESTART, handle)

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Save a copy of the files of a stopped sandbox as a layer, from which others can be created.

        Returns its size on disk in bytes. A layer is complete or absent, and outlives the sandbox;
        `Order.layer` names it, and `create` raises OrderRejected if it does not exist. The server
        chooses its id, with the format of a sandbox id; no-op if that layer exists. Copy in the
        background: raise StillFetching until it is done. Raises Conflict unless the sandbox is
        stopped, OrderRejected if the files take more than `max_bytes`.
        """
        del layer_id, max_bytes
        raise _unsupported(self, Capability.LAYERS, handle)

    async def layers(self) -> Sequence[str]:
        """List the ids of the layers of this instance; empty without the capability."""
        return ()

    async def remove_layer(self, layer_id: str) -> None:  # noqa: B027  # optional, as `layers`
        """Remove a layer; idempotent. Sandboxes created from it keep their files."""

    async def build_image(self, image_id: str, build: ImageBuild) -> str:
        """Build an image and return its name, for `Order.base`; the name ends with a colon and the id.

        An image that exists is kept as it is. Build in the background: raise StillFetching until it is
        done. A build interrupted by a crash is listed by `images`, or gone. Raises OrderRejected with
        the end of the build output if the build fails or times out.
        """
        del build
        raise _unsupported(self, Capability.IMAGES, image_id)

    async def images(self) -> Sequence[str]:
        """List the ids of this instance's images, complete or not; empty without the capability."""
        return ()

    async def remove_image(self, image_id: str) -> None:  # noqa: B027  # optional, as `images`
        """Remove an image, unless a sandbox of this instance uses it. Idempotent."""

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Save a copy of the files of a running sandbox, to which it can be rolled back.

        The sandbox keeps running. The oldest checkpoints are removed until at most `keep` are left and
        they take at most `max_bytes` of disk; files unchanged since the previous checkpoint should take
        no space. Checkpoints are removed with their sandbox. Copy in the background: raise StillFetching
        until it is done. Raises OrderRejected if the files take more than `max_bytes`.
        """
        del checkpoint_id, keep, max_bytes
        raise _unsupported(self, Capability.CHECKPOINTS, handle)

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """List the checkpoints of a sandbox, oldest first; empty without the capability."""
        del handle
        return ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Restore the files of a checkpoint in a stopped sandbox; the checkpoint is kept.

        `restart` may restore the files, also a restart after a crash. Raises Conflict unless the
        sandbox is stopped, OrderRejected if there is no such checkpoint.
        """
        del checkpoint_id
        raise _unsupported(self, Capability.CHECKPOINTS, handle)

    async def execute(
        self,
        handle: Handle,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        time_limit: float,
        max_output: int,
    ) -> ExecResult:
        """Run a command in the sandbox and wait for it; used for health checks and set-up.

        At the time limit, and when cancelled, kill the command and all its child processes. A
        command that cannot be found is a result with its exit code, not an error of the backend.
        Each stream is truncated at `max_output` bytes. Raises Conflict if the sandbox cannot run
        a command.
        """
        del argv, env, time_limit, max_output
        raise _unsupported(self, Capability.EXECUTE, handle)

    def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the last lines, oldest first; with `follow`, continue until the sandbox is deleted."""
        del tail, follow
        raise _unsupported(self, Capability.LOGS, handle)


def fill(text: str, ports: Mapping[str, int]) -> str:
    """Replace each `{port.NAME}` by the port's number; raises OrderRejected for an unknown name."""

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in ports:
            raise OrderRejected(f"`{match.group()}` names a port the spec does not have")
        return str(ports[name])

    return _PORT_PLACEHOLDER.sub(number, text)


def check_hosts(asked: Spec | Order) -> None:
    """Raise OrderRejected for an invalid entry of `allow_hosts`."""
    try:
        parse_policy(asked.network, asked.allow_hosts)
    except BadHost as exc:
        raise OrderRejected(f"`allow_hosts`: {exc}") from exc


def _unsupported(
    backend: RuntimeBackend[Any], capability: Capability, asked: Handle | str
) -> Unsupported:
    return Unsupported(
        f"The {backend.name} backend cannot do this: {capability}",
        detail=f"sandbox {asked.sandbox_id}" if isinstance(asked, Handle) else f"image {asked}",
    )
