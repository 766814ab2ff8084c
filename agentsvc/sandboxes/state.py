"""The record of a sandbox, and the decision what to do with it next (`next_action`). Pure."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from agentsvc.base import SandboxNotUsable, Secret
from agentsvc.plugin import Cause, Endpoint, Handle, Isolation, PausedAs, Phase, Spec

AGENT_PORT: Final = "agent"
"""The name of the port on which a sandbox's agent server listens."""


TAKES_MEMORY: Final = (PausedAs.FROZEN, PausedAs.RECLAIMED)
"""How a paused sandbox has its memory in this machine's own."""


class Target(StrEnum):
    """What is wanted of a sandbox."""

    RUNNING = "running"
    RESTARTED = "restarted"
    """Running again after a failure; becomes `running` once the backend was told."""
    PAUSED = "paused"
    RECLAIMED = "reclaimed"
    """Paused, and its memory pushed out."""
    HIBERNATED = "hibernated"
    """Paused, and its memory in a file."""
    STOPPED = "stopped"
    """Paused, and of its memory nothing is kept."""
    DELETED = "deleted"

    @property
    def is_rest(self) -> bool:
        """Whether it is not to run, and to be kept."""
        return self in (Target.PAUSED, Target.RECLAIMED, Target.HIBERNATED, Target.STOPPED)


class Action(StrEnum):
    """The one step that brings a sandbox nearer to its target."""

    CREATE = "create"
    LOOK = "look"
    PAUSE = "pause"
    RECLAIM = "reclaim"
    HIBERNATE = "hibernate"
    STOP = "stop"
    RESUME = "resume"
    RESTART = "restart"
    REST = "rest"
    DELETE = "delete"
    SCAN_AND_CLOSE = "scan_and_close"


class SandboxStatus(StrEnum):
    """What clients are told about a sandbox."""

    STARTING = "STARTING"
    """It is made, started or resumed"""
    RUNNING = "RUNNING"
    """It can be used"""
    PAUSED = "PAUSED"
    """It rests until it is resumed"""
    ERROR = "ERROR"
    """It has failed, and does not come back"""
    MISSING = "MISSING"
    """It does not exist any more"""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Our record of one execution environment.

    `phase` is None until the backend has taken the order. `ready_by` is when a start counts as
    failed.
    """

    id: str
    user_id: str
    spec_id: str
    spec: Spec
    backend: str
    target: Target
    phase: Phase | None = None
    reason: str = ""
    exit_code: int | None = None
    handle: Handle | None = None
    endpoints: tuple[Endpoint, ...] = ()
    working_dir: str = ""
    facts: dict[str, str] = {}
    session_key: Secret
    ready_by: datetime
    created_at: datetime
    updated_at: datetime
    isolation: Isolation | None = None
    """What the backend last said is in force."""
    paused_as: PausedAs | None = None
    cause: Cause | None = None
    enforced: tuple[str, ...] = ()
    """The limits of its spec that are enforced."""
    client_id: str | None = None
    """What the server that keeps it here for its own users calls it."""

    @property
    def status(self) -> SandboxStatus:
        """What clients are told."""
        return status_of(self.target, self.phase)

    @property
    def is_stopped(self) -> bool:
        """Whether it is paused and has nothing but its files."""
        return self.phase is Phase.PAUSED and self.paused_as is PausedAs.STOPPED

    @property
    def is_settled(self) -> bool:
        """Whether nothing needs to be done until somebody wants something else."""
        return is_settled(self.target, self.phase, paused_as=self.paused_as)

    @property
    def may_call(self) -> bool:
        """Whether its key opens anything: while it runs, or may run before that was seen."""
        runs = self.status in (SandboxStatus.STARTING, SandboxStatus.RUNNING)
        return runs and self.target is not Target.DELETED

    @property
    def agent_url(self) -> str | None:
        """Where the agent server answers, or None unless the sandbox runs."""
        if self.status is not SandboxStatus.RUNNING:
            return None
        return next((end.url for end in self.endpoints if end.name == AGENT_PORT), None)


class SandboxSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of each sandbox when all are looked at, which may be many."""

    id: str
    backend: str
    phase: Phase | None
    handle: Handle | None


_SHOWN: Final[Mapping[Phase | None, SandboxStatus]] = {
    None: SandboxStatus.STARTING,
    Phase.STARTING: SandboxStatus.STARTING,
    Phase.RUNNING: SandboxStatus.RUNNING,
    Phase.PAUSED: SandboxStatus.PAUSED,
    Phase.FAILED: SandboxStatus.ERROR,
    Phase.GONE: SandboxStatus.MISSING,
}


def status_of(target: Target, phase: Phase | None) -> SandboxStatus:
    """Return what clients are told about a sandbox with this target and phase."""
    is_restarting = target is Target.RESTARTED and phase is not Phase.GONE
    is_resuming = target is Target.RUNNING and phase is Phase.PAUSED
    return SandboxStatus.STARTING if is_restarting or is_resuming else _SHOWN[phase]


def holds_room(sandbox: Sandbox) -> bool:
    """Whether it takes room already, so that to want it running takes no more."""
    if sandbox.phase in (Phase.STARTING, Phase.RUNNING):
        return True
    if sandbox.target is Target.RESTARTED:
        return sandbox.phase is not Phase.GONE
    return sandbox.target is Target.RUNNING and sandbox.phase not in (Phase.FAILED, Phase.GONE)


def next_action(
    target: Target,
    phase: Phase | None,
    *,
    has_handle: bool,
    paused_as: PausedAs | None = None,
) -> Action:
    """Return the step that brings a sandbox from what was last seen nearer to what is wanted."""
    if target is Target.DELETED:
        return Action.DELETE if has_handle else Action.SCAN_AND_CLOSE
    if target is Target.RESTARTED and has_handle and phase is not Phase.GONE:
        return Action.RESTART
    match phase, target:
        case ((Phase.FAILED | Phase.GONE), _):
            action = Action.REST
        case Phase.RUNNING, (Target.PAUSED | Target.RECLAIMED | Target.HIBERNATED):
            action = Action.PAUSE
        case Phase.PAUSED, Target.RECLAIMED if paused_as is PausedAs.FROZEN:
            action = Action.RECLAIM
        case Phase.PAUSED, Target.HIBERNATED if paused_as in TAKES_MEMORY:
            action = Action.HIBERNATE
        case ((Phase.RUNNING | Phase.PAUSED), Target.STOPPED) if paused_as is not PausedAs.STOPPED:
            action = Action.STOP
        case Phase.PAUSED, Target.RUNNING:
            action = Action.RESUME
        case None, _:
            # Also with a handle: the order may have been given only in part, and giving the
            # same order again is safe.
            action = Action.CREATE
        case _:
            action = Action.LOOK
    return action


def failure_of(sandbox: Sandbox) -> SandboxNotUsable:
    """Return the error for who needs a sandbox that has failed, which says what to do first."""
    return SandboxNotUsable(
        f"The sandbox has failed. Start it again with POST /api/v1/sandboxes/{sandbox.id}/resume."
        f" The cause: {sandbox.reason}"
    )


def is_settled(target: Target, phase: Phase | None, *, paused_as: PausedAs | None = None) -> bool:
    """Whether nothing needs to be done until somebody wants something else."""
    if phase is Phase.RUNNING:
        return target is Target.RUNNING
    action = next_action(target, phase, has_handle=True, paused_as=paused_as)
    return action is Action.REST or (action is Action.LOOK and phase is not Phase.STARTING)
