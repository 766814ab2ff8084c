"""Takes a process into a sandbox that bubblewrap holds, and leaves it no more rights than that has.

Used by a fork of a program that is outside and by the shim that lets it in, with the standard
library alone. Run as a program, it starts the fork server itself without any rights. Whoever owns the outermost user namespace of a sandbox may join it and all within. For
root the kernel is asked for all namespaces at once: the outermost knows root, whom nothing may become
that comes from the fork server. Elsewhere it is handed the namespaces, since a process that Landlock
keeps from others may not name one.
"""

import ctypes
import fcntl
import os
import re
import signal
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..landlock import leave_abstract_sockets, leave_processes
from . import spaces
from .watch import be_expendable

_NAMESPACES: Final = {
    "mnt": os.CLONE_NEWNS,
    "pid": os.CLONE_NEWPID,
    "net": os.CLONE_NEWNET,
    "ipc": os.CLONE_NEWIPC,
    "uts": os.CLONE_NEWUTS,
    "cgroup": os.CLONE_NEWCGROUP,
    "user": os.CLONE_NEWUSER,
}
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SECCOMP_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAPABILITIES_MAX: Final = 64
_STEP_BYTES: Final = 8
_FAILED: Final = 1
_TERMINALS_MAX: Final = 256
_MS_REMOUNT: Final = 0x20 | 0x2 | 0x8
"""Changes the options of a file system, which runs no programs and gives nobody's rights."""


def main() -> None:
    """Give up all rights and become a program: USER DESCRIPTOR ARGUMENTS...

    Before an interpreter is started that looks at what is installed. The program is what is open as
    that number. For root this becomes that user; 0 is for a server that is not root, whose user it stays.
    """
    user, program, *arguments = sys.argv[1:]
    try:
        if int(user):
            become_nobody(int(user))
        else:
            leave_processes()
        os.execve(int(program), arguments, os.environ)  # noqa: S606  # what it is for
    except OSError as exc:
        sys.stderr.write(f"{exc.strerror}\n")
        sys.exit(_FAILED)


class NamespaceEntry(NamedTuple):
    """What a process joins to be with another one, first to last; the numbers are for the maker to close."""

    flags: int
    numbers: Sequence[int]


def way_in(pid: int, pidfd: int, *, at_once: bool) -> NamespaceEntry:
    """Return how a process is to join that which a descriptor stands for; raises OSError.

    What may become root on its way, as within the namespace around a sandbox of root's, has to join all
    namespaces `at_once`. To others they are handed.
    """
    other = pid_of(pidfd)
    differing = [name for name in _NAMESPACES if _link(pid, name) != _link(other, name)]
    if at_once:
        return NamespaceEntry(sum(_NAMESPACES[name] for name in differing), [os.dup(pidfd)])
    found: list[int] = []
    try:
        paths = (f"/proc/{other}/ns/{name}" for name in differing)
        found.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths)
        # It owns the others, and may be one further out than what runs inside.
        found.insert(0, fcntl.ioctl(found[0], spaces.NS_GET_USERNS))
        os.set_inheritable(found[0], False)
        if os.path.samestat(os.fstat(found[0]), os.fstat(found[-1])):
            os.close(found.pop())
    except BaseException:
        for number in found:
            os.close(number)
        raise
    return NamespaceEntry(0, found)


def _link(pid: int, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())


def let_in(pid: int, groups: Iterable[str]) -> None:
    """Have that process be in the sandbox's groups, and ended before what holds it; raises OSError."""
    for group in groups:
        Path(group, "cgroup.procs").write_text(str(pid))
    be_expendable(pid)


def enter(flags: int, numbers: Sequence[int]) -> None:
    """Go a `NamespaceEntry`, and close its descriptors; raises OSError.

    This process keeps its own pid: only its children are seen inside.
    """
    for number in numbers:
        os.setns(number, flags)
        os.close(number)


def become_nobody(user: int) -> None:
    """Be that user, without any capability or a way to one, and end with the parent; raises OSError."""
    drop_bounds()
    spaces.become(user)
    lose_capabilities()
    libc = ctypes.CDLL(None, use_errno=True)
    spaces.check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    # The kernel forgets it with each change of user.
    spaces.check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def renounce(filter_code: bytes, *, has_own_user: bool) -> None:
    """Give up all capabilities and the way to new ones, and let the filter judge system calls.

    Where the sandbox has a user of its own, this becomes that user first. Raises OSError if anything
    of it is not possible. What is in the same sandbox may look into this process, as it may into any
    other there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if has_own_user:
        spaces.become(spaces.INSIDE)
    lose_capabilities()
    spaces.check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    leave_abstract_sockets()
    spaces.check(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
    if filter_code:
        code = ctypes.create_string_buffer(filter_code, len(filter_code))
        steps = len(filter_code) // _STEP_BYTES
        program = struct.pack("@HP", steps, ctypes.addressof(code))
        spaces.check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0))


def drop_bounds() -> None:
    """See to it that no program can bring capabilities; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES_MAX):
        if libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            spaces.check(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))


def lose_capabilities() -> None:
    """Give up all capabilities, also those that a program could bring; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    drop_bounds()
    spaces.check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    spaces.check(libc.capset(header, bytes(24)))


def limit_terminals(pid: int) -> None:
    """Let what is with that process have so many terminals: all sandboxes share those of the kernel.

    Raises OSError.
    """
    options = b"mode=620,ptmxmode=666,max=%d" % _TERMINALS_MAX
    libc = ctypes.CDLL(None, use_errno=True)

    def remount() -> None:
        spaces.check(libc.mount(None, b"/dev/pts", None, ctypes.c_ulong(_MS_REMOUNT), options))

    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not spaces.run_within(mounts, remount):
            raise OSError("its terminals cannot be limited")
    finally:
        os.close(mounts)


def become_hidden() -> None:
    """Let no other process look into this one, whoever it belongs to; raises OSError."""
    spaces.check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def pid_of(pidfd: int) -> int:
    """Return the pid of the process that a descriptor stands for; raises ProcessLookupError."""
    found = re.search(
        r"^Pid:\s*(\d+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(), re.MULTILINE
    )
    if found is None:
        raise ProcessLookupError
    return int(found[1])
