"""The record of a sandbox, and `next_action`, which decides its next step. No I/O."""

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
"""Kinds of paused sandboxes whose memory is still in RAM or swap of the host."""


class Target(StrEnum):
    """The desired state of a sandbox."""

    RUNNING = "running"
    RESTARTED = "restarted"
    """Running again after a failure; becomes `running` once the backend has taken the order."""
    PAUSED = "paused"
    RECLAIMED = "reclaimed"
    """Paused, with its memory swapped out."""
    HIBERNATED = "hibernated"
    """Paused, with its memory saved to a file."""
    STOPPED = "stopped"
    """Paused, with its memory discarded."""
    DELETED = "deleted"

    @property
    def is_rest(self) -> bool:
        """Whether the sandbox shall be kept without running."""
        return self in (Target.PAUSED, Target.RECLAIMED, Target.HIBERNATED, Target.STOPPED)


class Action(StrEnum):
    """The next step of a sandbox towards its target."""

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
    """Status of a sandbox, as clients see it."""

    STARTING = "STARTING"
    """It is being created, started or resumed"""
    RUNNING = "RUNNING"
    """It can be used"""
    PAUSED = "PAUSED"
    """It is paused or stopped until it is resumed"""
    ERROR = "ERROR"
    """It has failed; only a resume may start it again"""
    MISSING = "MISSING"
    """It no longer exists"""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """The stored record of one sandbox.

    `phase` is None until the backend has accepted the order. `ready_by` is the deadline of a start,
    after which it counts as failed.
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
    """The isolation that the backend last reported."""
    paused_as: PausedAs | None = None
    cause: Cause | None = None
    enforced: tuple[str, ...] = ()
    """Names of the limits that the backend enforces."""
    client_id: str | None = None
    """The id that a client of the runtime API gave the sandbox."""

    @property
    def status(self) -> SandboxStatus:
        """The status that clients see."""
        return status_of(self.target, self.phase)

    @property
    def is_stopped(self) -> bool:
        """Whether it is paused and only its files are kept."""
        return self.phase is Phase.PAUSED and self.paused_as is PausedAs.STOPPED

    @property
    def is_settled(self) -> bool:
        """Whether it needs no further step until its target changes."""
        return is_settled(self.target, self.phase, paused_as=self.paused_as)

    @property
    def may_call(self) -> bool:
        """Whether its session key is accepted: while it starts or runs, unless being deleted."""
        runs = self.status in (SandboxStatus.STARTING, SandboxStatus.RUNNING)
        return runs and self.target is not Target.DELETED

    @property
    def agent_url(self) -> str | None:
        """URL of its agent server, or None unless the sandbox runs."""
        if self.status is not SandboxStatus.RUNNING:
            return None
        return next((end.url for end in self.endpoints if end.name == AGENT_PORT), None)


class SandboxSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that a scan of all sandboxes reads, of which there may be many."""

    id: str
    backend: str
    phase: Phase | None
    handle: Handle | None


_STATUS_BY_PHASE: Final[Mapping[Phase | None, SandboxStatus]] = {
    None: SandboxStatus.STARTING,
    Phase.STARTING: SandboxStatus.STARTING,
    Phase.RUNNING: SandboxStatus.RUNNING,
    Phase.PAUSED: SandboxStatus.PAUSED,
    Phase.FAILED: SandboxStatus.ERROR,
    Phase.GONE: SandboxStatus.MISSING,
}


def status_of(target: Target, phase: Phase | None) -> SandboxStatus:
    """Return the status that clients see for a target and phase."""
    is_restarting = target is Target.RESTARTED and phase is not Phase.GONE
    is_resuming = target is Target.RUNNING and phase is Phase.PAUSED
    return SandboxStatus.STARTING if is_restarting or is_resuming else _STATUS_BY_PHASE[phase]


def holds_room(sandbox: Sandbox) -> bool:
    """Return whether it counts against capacity already, so that running it takes no more."""
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
    """Return the next step from the last observed state towards the target."""
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
            # Also with a handle: `create` may have been interrupted, and is idempotent.
            action = Action.CREATE
        case _:
            action = Action.LOOK
    return action


def failure_of(sandbox: Sandbox) -> SandboxNotUsable:
    """Return the error for using a failed sandbox; it tells how to start it again."""
    return SandboxNotUsable(
        f"The sandbox has failed. Start it again with POST /api/v1/sandboxes/{sandbox.id}/resume."
        f" The cause: {sandbox.reason}"
    )


def is_settled(target: Target, phase: Phase | None, *, paused_as: PausedAs | None = None) -> bool:
    """Return whether no further step is needed until the target changes."""
    if phase is Phase.RUNNING:
        return target is Target.RUNNING
    action = next_action(target, phase, has_handle=True, paused_as=paused_as)
    return action is Action.REST or (action is Action.LOOK and phase is not Phase.STARTING)
