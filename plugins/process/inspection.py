"""Inspects one process sandbox and maps what it finds to a report.

`look_at` blocks for a moment; call it from a thread. The rest only decides.
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
"""What a sandbox has whose network is open."""

OWN_NETWORK: Final = "one of its own"
"""What it has instead by default."""

PROXIED_NETWORK: Final = "one of its own, with HTTP and HTTPS by a proxy as the only way out"
"""What it has where there is no slirp4netns."""

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
    Cause.OUT_OF_MEMORY: "it wanted more memory than its limit of",
    Cause.DISK_FULL: "its files take more than its limit of",
}


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen, and the phase and reason that follow from it."""

    folder: SandboxDirectory
    exists: bool
    record: Record | None = None
    state: State | None = None
    phase: Phase
    reason: str = ""
    exit_code: int | None = None
    cause: Cause | None = None
    is_orphaned: bool = False
    """Processes may be left without the shim that should hold them, or beside one that rests."""
    is_half_paused: bool = False
    """A pause was begun and not finished."""
    memory: Memory | None = None
    """Where the memory of a paused one is that was pushed out."""
    is_ended: bool = False
    """It is paused and its processes have been ended, or are about to be."""

    @property
    def paused_as(self) -> PausedAs | None:
        """What a pause has made of its processes, if it is paused."""
        if self.phase is not Phase.PAUSED:
            return None
        if self.is_ended and not self.is_half_paused:
            return PausedAs.STOPPED
        is_out = self.memory is not None and self.memory.is_out
        return PausedAs.RECLAIMED if is_out else PausedAs.FROZEN

    def ports(self) -> dict[str, int]:
        """Return the ports the sandbox has been given."""
        return self.state.ports if self.state else {}

    def sockets(self) -> dict[str, str]:
        """Return where ports are reached that are in a network of the sandbox's own.

        In the machine's, what leads there from inside could lead to another's just as well.
        """
        is_shared = self.record is None or self.record.shares_network
        return self.state.sockets if self.state and not is_shared else {}

    def awaited_ports(self) -> list[int]:
        """Return the ports that must answer before the sandbox is usable."""
        given = self.ports()
        asked = self.record.ports if self.record else ()
        return [given[port.name] for port in asked if port.awaited and port.name in given]

    def enforced(self) -> tuple[str, ...] | None:
        """Return the limits that are enforced: all that were ordered, since others are refused."""
        if self.record is None:
            return None
        given = msgspec.structs.asdict(self.record.limits)
        return tuple(name for name, value in given.items() if value is not None)

    def facts(self) -> dict[str, str]:
        """Return what else is known of it."""
        how = self.state.started_by if self.state else ""
        started = {"started by": how if how == ZYGOTE else f"a plain start: {how}"} if how else {}
        return {**started, **self._who(), **self._network(), **self._memory()}

    def _memory(self) -> dict[str, str]:
        """Say where the memory is of a paused one."""
        if self.memory is None:
            return {}
        swapped, kept = self.memory.swapped_bytes, self.memory.kept_bytes
        text = f"{swapped // _MEBIBYTE} MiB in swap, {kept // _MEBIBYTE} MiB kept"
        return {"paused memory": text}

    def _network(self) -> dict[str, str]:
        """Say which network an open one is in."""
        if self.record is None or self.record.way_out is None:
            return {}
        return {"network": NETWORKS[self.record.way_out]}

    def _who(self) -> dict[str, str]:
        """Say who it is outside, where that is not as it is inside."""
        is_boxed = self.state is not None and self.state.isolation is Isolation.BUBBLEWRAP
        if not is_boxed or os.geteuid() != 0:
            return {}
        has_own = self.record is not None and self.record.user
        return {"user outside": "its own" if has_own else "root"}

    def working_dir(self) -> str:
        """Return the agent's directory."""
        if self.record is None:
            return ""
        top = Path(WORKSPACE) if self.record.has_fixed_paths else self.folder.workspace
        return str(top / self.record.working_dir)


def users_of(record: Record | None, numbers: Container[int]) -> Container[int] | None:
    """Return who processes of a sandbox may be besides the server's user; None if nobody can say.

    `numbers` are the users that sandboxes can be. With one of its own, nothing in it can be anybody else.
    """
    if record is None:
        return numbers
    return (record.user,) if record.user else None


def look_at(folder: SandboxDirectory, mark: str, numbers: Container[int]) -> Inspection:
    """Look at a sandbox, which can be one of these users; OSError if that is not possible now."""
    if not folder.exists():
        return _without_directory(folder, mark, numbers)
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
    return _without_state(folder, record, mark, numbers)


def describe_exit(code: int | None, reason: str, last_line: str) -> str:
    """Say in one line how a command ended."""
    if code is not None and code > _SIGNALLED:
        name = str(code - _SIGNALLED)
        with contextlib.suppress(ValueError):
            name = signal.Signals(code - _SIGNALLED).name
        # What it wrote last says how far it was, and not why it was ended.
        last_line = last_line and f"its last line was: {last_line}"
        reason = f"the command was ended by {name}"
    elif code is not None:
        reason = f"the command exited with code {code}"
    return f"{reason}: {last_line}" if last_line else reason


def state_of_this_boot(folder: SandboxDirectory) -> State | None:
    """Return what the shim wrote, unless that was before this machine was started."""
    # The pids in an older one are other processes' by now.
    state = folder.read_state()
    return state if state is not None and state.boot == boot_id() else None


def _without_directory(folder: SandboxDirectory, mark: str, numbers: Container[int]) -> Inspection:
    seen = Inspection(folder=folder, exists=False, phase=Phase.GONE)
    if not Tree(mark=mark, users=users_of(None, numbers)).members():
        return seen
    return msgspec.structs.replace(
        seen,
        phase=Phase.FAILED,
        reason="its files are gone",
        cause=Cause.LOST,
        is_orphaned=True,
    )


def _without_state(
    folder: SandboxDirectory, record: Record | None, mark: str, numbers: Container[int]
) -> Inspection:
    seen = Inspection(folder=folder, exists=True, record=record, phase=Phase.STARTING)
    if Tree(mark=mark, users=users_of(record, numbers)).members():
        return seen
    # It may have got there while the process table was read.
    if folder.read_state() is not None:
        return look_at(folder, mark, numbers)
    return _failed(seen, None, "it was never started", Cause.NOT_STARTED)


def _inspect_processes(
    folder: SandboxDirectory, record: Record | None, state: State, *, is_last: bool
) -> Inspection | None:
    if state.boot != boot_id():
        # The pids in the state are other processes' by now.
        seen = Inspection(folder=folder, exists=True, record=record, phase=Phase.FAILED)
        if state.exit is None:
            return _failed(seen, None, _RESTARTED, Cause.HOST_RESTARTED)
        return _ended(seen, state.exit)
    is_held = is_alive(state.shim)
    is_running = state.command is not None and is_alive(state.command)
    if not is_held:
        reap(state.shim)
    # What is written before a process ends is read after having seen that it has ended.
    state = folder.read_state() or state
    seen = Inspection(folder=folder, exists=True, record=record, state=state, phase=Phase.RUNNING)
    if state.exit is not None:
        return _ended(seen, state.exit)
    if is_held and is_running:
        return _paused_or_not(seen, state)
    # The shim will make a note of how the command ended in a moment, unless it is paused.
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
        reason=f"{_OVER[cause]} {_show(bound)}",
    )


def _notice(seen: Inspection, state: State) -> str:
    if not state.kills:
        return ""
    who = "1 process was" if state.kills == 1 else f"{state.kills} processes were"
    bound = seen.record.limits.memory_bytes if seen.record else None
    return f"{who} ended for want of memory; the limit is {_show(bound)}"


def _show(size: int | None) -> str:
    return f"{(size or 0) / _MEBIBYTE:g} MiB"


def _paused_or_not(seen: Inspection, state: State) -> Inspection:
    seen = msgspec.structs.replace(seen, reason=_notice(seen, state))
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
    """Return why a command ended that ended with this code, None if it never began."""
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
