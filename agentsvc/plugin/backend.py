"""The contract between the server and whatever runs its sandboxes.

Public: plugin authors import from here. A backend is a subclass of RuntimeBackend; the values it
takes and gives are the structs of `agentsvc.plugin.values`, which are to be had from here. How
backends are found is in `agentsvc.sandboxes.plugin_loader`, how they are chosen in `agentsvc.sandboxes.registry`; what they
must do is checked by `agentsvc.testing.backend_contract`.
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
"""The contract this server speaks; a backend class states the one it was written for."""

HANDLE_BYTES_MAX: Final = 8192
"""The size a handle's data may have as JSON."""

_PORT_PLACEHOLDER = re.compile(r"\{port\.([a-z0-9_]+)\}")


class PartlyScanned(BackendUnavailable):
    """Some of a backend's hosts are away; `found` is what there is at the others.

    What is not in it may well exist; where `unknown` is not None, only what has one of these ids.
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
    """What a sandbox is made of is on its way here, and comes nearer; the message says how far it is.

    As long as `create` raises it, the time that a start may take does not run.
    """


type FindKey = Callable[[str], Awaitable[Secret | None]]


async def no_key(_sandbox_id: str) -> Secret | None:
    """Stand for an installation in which no user has a key of their own."""
    return None


NOT_CALLING: Final[Mapping[str, str]] = {"callbacks": "none"}
"""The fact of a sandbox that cannot reach this server, which then asks for its events itself."""


class BackendContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend instance is told about the installation it works for."""

    instance_id: str
    """Of this installation; label everything with it."""
    state_dir: Path
    """Private to this backend; may be empty after a restore."""
    callback_url: str = ""
    """Where sandboxes reach the server, also those without a network; empty if that is not known."""
    public_url: str = ""
    """Where browsers reach the server; empty if that is not known."""
    owner_key: FindKey = no_key
    """Returns what the owner of a sandbox has stored as their `sandbox_api_key`, now."""
    keeps_checkpoints: bool = False
    """Whether the server is configured to ask for checkpoints of sandboxes."""


type SaveHandle = Callable[[Handle], Awaitable[None]]


class RuntimeBackend[ConfigT: msgspec.Struct](abc.ABC):
    """Runs sandboxes somewhere.

    An instance keeps connections, never sandboxes. Whatever is needed to find a sandbox again
    is in its handle, so a new instance after a restart answers for old handles. There is one
    instance per config table; calls for different sandboxes interleave at every await.
    """

    name: ClassVar[str]
    """The type named in config and specs."""
    api_version: ClassVar[int]
    """No default: a class says which contract it was written for."""
    capabilities: ClassVar[frozenset[Capability]]
    Config: ClassVar[type[msgspec.Struct]]
    """Its table in config.toml; every field has a default or is required, unknown keys are refused."""
    default_isolation: ClassVar[Isolation] = Isolation.NONE
    """The level it is made for: a server whose configuration accepts no less starts with no less."""

    def __init__(self, config: ConfigT, context: BackendContext) -> None:
        """Keep the two arguments as attributes. No I/O."""
        self.config = config
        self.context = context

    async def open(self) -> None:  # noqa: B027  # optional: not every backend has connections
        """Connect; import client libraries here. Raise BackendUnavailable if that fails now."""

    async def close(self) -> None:  # noqa: B027  # optional: not every backend has connections
        """Let go of connections. Sandboxes keep running. Safe to call twice, or without open."""

    @abc.abstractmethod
    async def probe(self) -> Health:
        """Say whether a sandbox could be created now, and if not, why. Cheap; changes nothing."""

    @property
    def runs_here(self) -> bool:
        """Whether sandboxes use the processors of this server's machine, so that starts take turns.

        No I/O.
        """
        return False

    @property
    def least_isolation(self) -> Isolation:
        """The level below which no sandbox may be started here, whatever is configured. No I/O."""
        return Isolation.NONE

    def fences(self, asked: Spec | Order) -> Fences:
        """Say how what is made of a spec or an order is held; known once the backend is open.

        No I/O. The server refuses what asks for more, and so does `check_fences` in `create`.
        """
        del asked
        has_limits = Capability.LIMITS in self.capabilities
        return Fences(limits=frozenset(Limits.__struct_fields__ if has_limits else ()))

    def check_fences(self, asked: Spec | Order) -> None:
        """Raise OrderRejected for more isolation, another network or limits than there are here."""
        fences = self.fences(asked)
        if not fences.isolation.meets(asked.isolation):
            why = "".join(f"; {text}" for text in (fences.reason, fences.remedy) if text)
            raise OrderRejected(
                f"The {self.name} backend runs sandboxes with isolation `{fences.isolation}`,"
                f" and at least `{asked.isolation}` is asked for{why}"
            )
        if asked.network not in fences.networks:
            remedy = f"; {fences.network_remedy}" if fences.network_remedy else ""
            raise OrderRejected(
                f"The {self.name} backend cannot enforce the network `{asked.network}`{remedy}"
            )
        if asked.allow_hosts and asked.network is not Network.ALLOWLIST:
            raise OrderRejected("`allow_hosts` needs the network `allowlist`")
        for name, value in msgspec.structs.asdict(asked.limits).items():
            # 0 asks for no limit, whatever is limited by default.
            if value and name not in fences.limits:
                raise OrderRejected(f"The {self.name} backend cannot enforce the limit `{name}`")

    def why_no_pool(self, spec: Spec) -> str:
        """Say why no sandbox of a spec can be made before it is known for whom, or nothing.

        No I/O. The order of such a one has `OH_DEFERRED_INIT` in its environment, and the server
        itself tells its agent server all that is its user's once there is one. Asked again before
        one is given away, of the spec with what that user needs.
        """
        del spec
        return ""

    def why_no_reclaim(self) -> str:
        """Say why memory of paused sandboxes can be pushed out nowhere now, or nothing where it can.

        No I/O. It may change while the backend is open.
        """
        if Capability.RECLAIM in self.capabilities:
            return ""
        return f"the {self.name} backend pushes no memory out"

    def why_no_copies(self) -> str:
        """Say why no files of sandboxes can be kept or copied now, or nothing where they can.

        No I/O. Layers and copies are refused by OrderRejected meanwhile, and checkpoints may be. It may
        change while the backend is open.
        """
        if self.capabilities & {Capability.LAYERS, Capability.COPIES, Capability.CHECKPOINTS}:
            return ""
        return f"the {self.name} backend keeps no files of its own"

    def why_no_hibernate(self) -> str:
        """Say why memory of paused sandboxes can be kept in no file now, or nothing where it can.

        No I/O. It may change while the backend is open.
        """
        if Capability.HIBERNATE in self.capabilities:
            return ""
        return f"the {self.name} backend keeps no memory on disk"

    def inside_url(self, url: str) -> str:
        """Return the URL of this server as sandboxes see it, where they see it otherwise.

        No I/O, and the same each time: it is told to agent servers that outlive this process.
        """
        return url

    def check_spec(self, spec: Spec) -> None:  # noqa: B027  # optional: a backend may take anything
        """Raise OrderRejected if sandboxes of this spec could never be created. No I/O."""

    @abc.abstractmethod
    async def create(self, order: Order, save: SaveHandle) -> Handle:
        """Ask for a sandbox and return once it is asked for; running may come later.

        Label what is made with the instance id and the sandbox id *as it is made*, so that
        scan finds it whatever happens next. Call save as soon as there is something to clean
        up, and again when more is known; when save returns, the handle is on disk.
        The same order twice gives the same one sandbox. Refuse limits, a network and a floor of
        isolation that you cannot enforce (`check_fences`).
        If cancelled, leave either nothing or something that scan lists.
        What must be fetched first is fetched beside: raise StillFetching, and you are asked again.
        """

    @abc.abstractmethod
    async def inspect(self, handle: Handle) -> Report:
        """Look at the sandbox now.

        GONE only if the control plane was reached and has no such sandbox. If it could not be
        reached, raise BackendUnavailable. If the handle is of a version you do not know, raise
        HandleTooNew. Never wait for a phase to change.
        """

    @abc.abstractmethod
    async def scan(self) -> Sequence[Found]:
        """List every sandbox that carries this instance's label, in any phase.

        All or nothing: a partial list must raise, as PartlyScanned where a backend has several
        hosts and some of them are away, or cannot look at some sandboxes. Those of other instances
        are not listed.
        """

    @abc.abstractmethod
    async def delete(self, handle: Handle) -> None:
        """Remove the sandbox and all that was made for it, and return when it is gone.

        Works in every phase, on a handle saved half-way, and on a sandbox that is already gone.
        """

    async def leftovers(self) -> Sequence[str]:
        """Name what there is of this instance, found by another road than scan takes.

        Only the conformance kit asks, while a sandbox runs and when all of them are deleted. The
        kit itself sees processes, temporary files, control groups and mounts of its machine.
        """
        return ()

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        """Say whether an endpoint that was reported leads to this sandbox now, and to nothing else.

        Asked about each new connection to it, made from that port of this server's machine, before
        anything is sent: a key, a secret or a cookie must not go to what has the address of a
        sandbox that is gone. Not asked about a unix socket, which must be where no sandbox can
        replace it. Raise BackendUnavailable where it cannot be found out now. The base class
        compares with what inspect reports; one that knows less of its sandboxes than that, such as
        another server's, says so, and how its peers are known, in its documentation.
        """
        del source_port
        report = await self.inspect(handle)
        return any(found.url == endpoint.url for found in report.endpoints)

    async def usage(self, handle: Handle) -> Usage | None:
        """Say what the sandbox uses now; None where that is not known, or it does not exist.

        The server asks now and then, and remembers the answer. Cheap; changes nothing.
        """
        del handle
        return None

    async def give_way(self, handles: Sequence[Handle]) -> None:  # noqa: B027  # optional: they may share
        """Let these sandboxes, and no others, have less of the processors where others want them.

        Asked where `runs_here` while conversations start: what has begun is not to slow the others.
        Nothing more starts when none is named. Sandboxes that are gone are fine. No sandbox gives way
        any more once the backend was closed, or is opened after a crash.
        """

    # With a capability. The base class raises Unsupported.

    async def pause(self, handle: Handle) -> None:
        """Stop using CPU, keep the files. Pausing a paused sandbox is fine.

        Cancelled half-way, a second call finishes it. Raises Conflict where there is nothing
        that could be paused.
        """
        raise _unsupported(self, Capability.PAUSE, handle)

    async def resume(self, handle: Handle) -> Handle:
        """Run again on the same files. Return the handle to use from now on.

        Resuming a running sandbox is fine. Raises Conflict if it has failed or is gone and
        therefore cannot run again. Where a backend can stop sandboxes, what was stopped is not
        resumed: the server calls restart for it.
        """
        raise _unsupported(self, Capability.PAUSE, handle)

    async def reclaim(self, handle: Handle) -> None:
        """Push the memory of a frozen sandbox out to swap, as far as there is room.

        When it returns the sandbox is PAUSED as RECLAIMED, or still as FROZEN where hardly anything
        could be pushed out. Asked of one that was reclaimed or stopped, nothing is done. Cancelled
        half-way, as when it is to be resumed, what is out is out. Raises Conflict unless it is paused.
        """
        raise _unsupported(self, Capability.RECLAIM, handle)

    async def hibernate(self, handle: Handle) -> None:
        """Write memory and processes of a frozen or reclaimed sandbox to disk, and let go of both.

        When it returns the sandbox is PAUSED as ON_DISK, or as before where it could not be done, or
        as STOPPED where its memory was lost by trying. `resume` lets it go on where it was; if what
        was written cannot be read, that leaves it STOPPED, and the server calls `restart`. The file
        holds the sandbox's secrets: nobody but who runs sandboxes reads it, and it goes with the
        sandbox, and once that goes on. Asked of one that is on disk or stopped, nothing is done. Cut
        off half-way, the sandbox is whole as one of these, or runs. Raises Conflict unless it is paused.
        """
        raise _unsupported(self, Capability.HIBERNATE, handle)

    async def stop(self, handle: Handle) -> None:
        """End all that runs in a running or paused sandbox, and keep its files.

        When it returns nothing of it takes memory any more, and the sandbox is PAUSED as STOPPED,
        also after the machine was restarted. Stopping a stopped one is fine. Cancelled half-way,
        a second call finishes it. Raises Conflict where there is nothing that could be stopped.
        """
        raise _unsupported(self, Capability.STOP, handle)

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        """Start the command of a sandbox that has failed, or was stopped, on the same files.

        The order is the one it was created with. A sandbox that runs or is frozen is left as it
        is. Called again after a crash half-way, it finishes what was begun. Raises Conflict if
        the files are gone.
        """
        del order, save
        raise _unsupported(self, Capability.RESTART, handle)

    async def keep_layer(self, handle: Handle, layer_id: str, *, max_bytes: int) -> int:
        """Keep a copy of the files of a stopped sandbox, with which others can begin.

        Returns how many bytes of disk it takes. A layer is all there or not at all, and stays when
        the sandbox is deleted; `Order.layer` names it, and `create` raises OrderRejected where it
        is not there. Its id is chosen by the server, as that of a sandbox; for one that is kept
        already nothing is done. Copying goes on beside: raise StillFetching until it is done.
        Raises Conflict unless the sandbox is stopped, OrderRejected for more than `max_bytes`.
        """
        del layer_id, max_bytes
        raise _unsupported(self, Capability.LAYERS, handle)

    async def layers(self) -> Sequence[str]:
        """List the ids of the layers of this instance; none without the capability."""
        return ()

    async def remove_layer(self, layer_id: str) -> None:  # noqa: B027  # optional, as `layers`
        """Remove a layer. Sandboxes that have begun with it keep their files. Fine if it is gone."""

    async def build_image(self, image_id: str, build: ImageBuild) -> str:
        """Build an image and return its name, for `Order.base`; the name ends with a colon and the id.

        One that is there already stays as it is. Building goes on beside: raise StillFetching until
        it is done. What a crash has interrupted is listed, or gone. Raises OrderRejected with what was
        said last where it cannot be built, or takes too long.
        """
        del build
        raise _unsupported(self, Capability.IMAGES, image_id)

    async def images(self) -> Sequence[str]:
        """List the ids of the images of this instance, whole ones or not; none without the capability."""
        return ()

    async def remove_image(self, image_id: str) -> None:  # noqa: B027  # optional, as `images`
        """Remove an image, unless a sandbox of this instance has it. Fine if it is gone."""

    async def checkpoint(
        self, handle: Handle, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Keep a copy of the files of a sandbox that runs, to which it can go back.

        It is not stopped for that. The oldest are removed until there are at most so many, and they
        take at most so much disk; what has not changed since the one before is to take none. They go
        with their sandbox. Copying goes on beside: raise StillFetching until it is done. Raises
        OrderRejected where the files take more than `max_bytes`.
        """
        del checkpoint_id, keep, max_bytes
        raise _unsupported(self, Capability.CHECKPOINTS, handle)

    async def checkpoints(self, handle: Handle) -> Sequence[Checkpoint]:
        """List the checkpoints of a sandbox, the oldest first; none without the capability."""
        del handle
        return ()

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        """Have a stopped sandbox go on with the files of a checkpoint, which is kept.

        They may be put in place by `restart`, also by one after a crash. Raises Conflict unless the
        sandbox is stopped, OrderRejected where there is no such checkpoint.
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
        """Run a command inside and wait for it; used for health checks and set-up.

        At the time limit, and when cancelled, kill the command and everything it started. A
        command that cannot be found is a result with its exit code, not an error of the backend.
        Each stream is cut at `max_output` bytes. Raises Conflict unless the sandbox can run one.
        """
        del argv, env, time_limit, max_output
        raise _unsupported(self, Capability.EXECUTE, handle)

    def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the last lines, oldest first; with follow, go on until the sandbox is deleted."""
        del tail, follow
        raise _unsupported(self, Capability.LOGS, handle)


def fill(text: str, ports: Mapping[str, int]) -> str:
    """Replace each `{port.NAME}` by that port's number; raises OrderRejected for an unknown name."""

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in ports:
            raise OrderRejected(f"`{match.group()}` names a port the spec does not have")
        return str(ports[name])

    return _PORT_PLACEHOLDER.sub(number, text)


def check_hosts(asked: Spec | Order) -> None:
    """Raise OrderRejected for an entry of `allow_hosts` that cannot be meant."""
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
