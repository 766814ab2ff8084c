"""Inspects one process sandbox and maps its state to a report.

`look_at` blocks briefly; call it from a thread. The other functions only compute.
"""

import contextlib
import os
import signal
import time
from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import monotonic
from agentsvc.plugin import Cause, Isolation, Limits, PausedAs, Phase

from . import cgroup
from .bubblewrap import WORKSPACE
from .programs.shim import ZYGOTE
from .reclaiming import Memory
from .sandbox_directory import Exit, OutboundNetwork, Record, SandboxDirectory, State
from .tree import Tree, boot_id, is_alive, is_stopped, reap

MACHINES_NETWORK: Final = "the machine's, with its loopback interface"
"""Network of an open sandbox that shares the host's."""

OWN_NETWORK: Final = "one of its own"
"""Default network of an open sandbox."""

PROXIED_NETWORK: Final = "one of its own, with HTTP and HTTPS by a proxy as the only way out"
"""Network of an open sandbox without slirp4netns."""

NETWORKS: Final = {
    OutboundNetwork.HOST: MACHINES_NETWORK,
    OutboundNetwork.SLIRP: OWN_NETWORK,
    OutboundNetwork.PROXY: PROXIED_NETWORK,
}

_SETTLE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01
_SIGNALLED: Final = 128
_RESTARTED: Final = "the machine was restarted"
_MEBIBYTE: Final = 1024 * 1024
_OVER: Final = {
    Cause.OUT_OF_MEMORY: "it exceeded its memory limit of",
    Cause.DISK_FULL: "its files exceed the disk limit of",
}


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of a sandbox, with the phase and reason derived from it."""

    folder: SandboxDirectory
    exists: bool
    record: Record | None = None
    state: State | None = None
    phase: Phase
    reason: str = ""
    exit_code: int | None = None
    cause: Cause | None = None
    is_orphaned: bool = False
    """Processes may be left without the shim that should hold them, or beside a paused shim."""
    is_half_paused: bool = False
    """A pause or stop was begun and not completed."""
    memory: Memory | None = None
    """Where the pushed-out memory of a paused sandbox is."""
    is_ended: bool = False
    """It is paused, and its processes have been ended or are about to be."""

    @property
    def paused_as(self) -> PausedAs | None:
        """The state of its processes, if it is paused."""
        if self.phase is not Phase.PAUSED:
            return None
        if self.is_ended and not self.is_half_paused:
            return PausedAs.STOPPED
        is_out = self.memory is not None and self.memory.is_out
        return PausedAs.RECLAIMED if is_out else PausedAs.FROZEN

    def ports(self) -> dict[str, int]:
        """Return the ports assigned to the sandbox."""
        return self.state.ports if self.state else {}

    def sockets(self) -> dict[str, str]:
        """Return the sockets of ports in a network namespace of the sandbox's own.

        In the host's network they are not used: from inside, they could lead to another sandbox's
        port.
        """
        is_shared = self.record is None or self.record.shares_network
        return self.state.sockets if self.state and not is_shared else {}

    def awaited_ports(self) -> list[int]:
        """Return the ports that must accept connections before the sandbox is usable."""
        given = self.ports()
        asked = self.record.ports if self.record else ()
        return [given[port.name] for port in asked if port.awaited and port.name in given]

    def enforced(self) -> tuple[str, ...] | None:
        """Return the enforced limits: all that were ordered, since unsupported ones are refused."""
        if self.record is None:
            return None
        given = msgspec.structs.asdict(self.record.limits)
        return tuple(name for name, value in given.items() if value is not None)

    def facts(self) -> dict[str, str]:
        """Return further facts about the sandbox."""
        how = self.state.started_by if self.state else ""
        started = {"started by": how if how == ZYGOTE else f"a plain start: {how}"} if how else {}
        return {**started, **self._user(), **self._network(), **self._memory()}

    def _memory(self) -> dict[str, str]:
        if self.memory is None:
            return {}
        swapped, kept = self.memory.swapped_bytes, self.memory.kept_bytes
        text = f"{swapped // _MEBIBYTE} MiB in swap, {kept // _MEBIBYTE} MiB kept"
        return {"paused memory": text}

    def _network(self) -> dict[str, str]:
        if self.record is None or self.record.way_out is None:
            return {}
        return {"network": NETWORKS[self.record.way_out]}

    def _user(self) -> dict[str, str]:
        """Return which user the sandbox has outside, if that may differ from inside."""
        in_bwrap = self.state is not None and self.state.isolation is Isolation.BUBBLEWRAP
        if not in_bwrap or os.geteuid() != 0:
            return {}
        has_own = self.record is not None and self.record.user
        return {"user outside": "its own" if has_own else "root"}

    def working_dir(self) -> str:
        """Return the agent's working directory."""
        if self.record is None:
            return ""
        top = Path(WORKSPACE) if self.record.has_fixed_paths else self.folder.workspace
        return str(top / self.record.working_dir)


def users_of(record: Record | None, uids: Container[int]) -> Container[int] | None:
    """Return the user ids of a sandbox's processes besides the server's; None if unknown.

    `uids` are the user ids that sandboxes may get. A sandbox with its own user id has no other.
    """
    if record is None:
        return uids
    return (record.user,) if record.user else None


def look_at(folder: SandboxDirectory, mark: str, uids: Container[int]) -> Inspection:
    """Inspect a sandbox, which may have one of these user ids; raises OSError if that fails now."""
    if not folder.exists():
        return _without_directory(folder, mark, uids)
    record = folder.read_record()
    if (pause := folder.read_pause()) is not None and pause.ends:
        return Inspection(
            folder=folder,
            exists=True,
            record=record,
            state=state_of_this_boot(folder),
            phase=Phase.PAUSED,
            is_half_paused=not pause.is_done,
            is_ended=True,
        )
    deadline = monotonic() + _SETTLE_SECONDS
    while (state := folder.read_state()) is not None:
        is_last = monotonic() > deadline or folder.read_pause() is not None
        inspection = _inspect_processes(folder, record, state, is_last=is_last)
        if inspection is not None:
            return inspection
        time.sleep(_POLL_SECONDS)
    return _without_state(folder, record, mark, uids)


def describe_exit(code: int | None, reason: str, last_line: str) -> str:
    """Describe in one line how a command ended."""
    if code is not None and code > _SIGNALLED:
        name = str(code - _SIGNALLED)
        with contextlib.suppress(ValueError):
            name = signal.Signals(code - _SIGNALLED).name
        # After a signal, the last line shows its progress, not the reason for the end.
        last_line = last_line and f"its last line was: {last_line}"
        reason = f"the command was ended by {name}"
    elif code is not None:
        reason = f"the command exited with code {code}"
    return f"{reason}: {last_line}" if last_line else reason


def state_of_this_boot(folder: SandboxDirectory) -> State | None:
    """Return the shim's state, unless it was written before this machine booted."""
    # The pids in an older state belong to other processes by now.
    state = folder.read_state()
    return state if state is not None and state.boot == boot_id() else None


def _without_directory(folder: SandboxDirectory, mark: str, uids: Container[int]) -> Inspection:
    seen = Inspection(folder=folder, exists=False, phase=Phase.GONE)
    if not Tree(mark=mark, users=users_of(None, uids)).members():
        return seen
    return msgspec.structs.replace(
        seen,
        phase=Phase.FAILED,
        reason="its files are gone",
        cause=Cause.LOST,
        is_orphaned=True,
    )


def _without_state(
    folder: SandboxDirectory, record: Record | None, mark: str, uids: Container[int]
) -> Inspection:
    seen = Inspection(folder=folder, exists=True, record=record, phase=Phase.STARTING)
    if Tree(mark=mark, users=users_of(record, uids)).members():
        return seen
    # The shim may have written its state while the process table was read.
    if folder.read_state() is not None:
        return look_at(folder, mark, uids)
    return _failed(seen, None, "it was never started", Cause.NOT_STARTED)


def _inspect_processes(
    folder: SandboxDirectory, record: Record | None, state: State, *, is_last: bool
) -> Inspection | None:
    if state.boot != boot_id():
        # The pids in the state belong to other processes by now.
        seen = Inspection(folder=folder, exists=True, record=record, phase=Phase.FAILED)
        if state.exit is None:
            return _failed(seen, None, _RESTARTED, Cause.HOST_RESTARTED)
        return _ended(seen, state.exit)
    is_held = is_alive(state.shim)
    is_running = state.command is not None and is_alive(state.command)
    if not is_held:
        reap(state.shim)
    # A process writes its state before it ends, so read the state again after the liveness check.
    state = folder.read_state() or state
    seen = Inspection(folder=folder, exists=True, record=record, state=state, phase=Phase.RUNNING)
    if state.exit is not None:
        return _ended(seen, state.exit)
    if is_held and is_running:
        return _running_or_paused(seen, state)
    # The shim records the exit of the command in a moment, unless it is paused.
    if is_held and not is_last:
        return None
    who = "command" if is_held else "process that holds the sandbox"
    cause = Cause.SIGNALLED if is_held else Cause.LOST
    failed = _failed(seen, None, f"the {who} was killed", cause)
    return msgspec.structs.replace(failed, is_orphaned=True)


def _ended(seen: Inspection, how: Exit) -> Inspection:
    if not how.cause:
        return _failed(seen, how.code, how.reason)
    cause = Cause(how.cause)
    limits = seen.record.limits if seen.record else Limits()
    bound = limits.memory_bytes if cause is Cause.OUT_OF_MEMORY else limits.disk_bytes
    return msgspec.structs.replace(
        seen,
        phase=Phase.FAILED,
        exit_code=how.code,
        cause=cause,
        reason=f"{_OVER[cause]} {_format_size(bound)}",
    )


def _kills_notice(seen: Inspection, state: State) -> str:
    if not state.kills:
        return ""
    who = "1 process was" if state.kills == 1 else f"{state.kills} processes were"
    bound = seen.record.limits.memory_bytes if seen.record else None
    return f"{who} killed for lack of memory; the limit is {_format_size(bound)}"


def _format_size(size: int | None) -> str:
    return f"{(size or 0) / _MEBIBYTE:g} MiB"


def _running_or_paused(seen: Inspection, state: State) -> Inspection:
    seen = msgspec.structs.replace(seen, reason=_kills_notice(seen, state))
    pause = seen.folder.read_pause()
    if pause is None:
        return seen
    if not pause.is_done:
        return msgspec.structs.replace(seen, phase=Phase.PAUSED, is_half_paused=True)
    group = Path(state.cgroup) if state.cgroup else None
    held = cgroup.is_frozen(group) if group else is_stopped(state.command or state.shim)
    if not held:
        return seen
    return msgspec.structs.replace(seen, phase=Phase.PAUSED, memory=pause.memory)


def cause_of_exit(code: int | None) -> Cause:
    """Return the cause of an exit with this code, where None means that the command never began."""
    if code is None:
        return Cause.NOT_STARTED
    return Cause.SIGNALLED if code > _SIGNALLED else Cause.EXITED


def _failed(
    seen: Inspection, code: int | None, reason: str, cause: Cause | None = None
) -> Inspection:
    return msgspec.structs.replace(
        seen,
        phase=Phase.FAILED,
        exit_code=code,
        cause=cause or cause_of_exit(code),
        reason=describe_exit(code, reason, seen.folder.last_line()),
    )
