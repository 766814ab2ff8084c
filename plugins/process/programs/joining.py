"""Moves a process into a bubblewrap sandbox, and leaves it no more rights than the sandbox has.

Used by the fork that enters and by the shim that lets it in, with the standard library alone. Run
as a program, it starts the fork server itself without any rights. The owner of a sandbox's
outermost user namespace may join that and all within. If the server is root, the fork joins all
namespaces in one call, because the outermost namespace maps root, and nothing from the fork server
may become root. Otherwise the shim sends it the namespaces, since a process that Landlock confines
may not open those of others.
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
"""Mount flags: change the options of a file system, with nosuid and noexec."""


def main() -> None:
    """Give up all rights and execute a program: USER DESCRIPTOR ARGUMENTS...

    Runs before the interpreter that imports installed packages. The program is the open file of
    that number. If the server is root, change to that user; 0 means a server that is not root,
    whose user it stays.
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
    """The setns arguments to join another process, in order; the creator closes the numbers."""

    flags: int
    numbers: Sequence[int]


def way_in(pid: int, pidfd: int, *, at_once: bool) -> NamespaceEntry:
    """Return how a process can join the process of a pidfd; raises OSError.

    A process that could become root on its way, as in the outer namespace if the server is root,
    has to join all namespaces `at_once`. Others get a descriptor of each namespace.
    """
    other = pid_of(pidfd)
    differing = [name for name in _NAMESPACES if _link(pid, name) != _link(other, name)]
    if at_once:
        return NamespaceEntry(sum(_NAMESPACES[name] for name in differing), [os.dup(pidfd)])
    found: list[int] = []
    try:
        paths = (f"/proc/{other}/ns/{name}" for name in differing)
        found.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths)
        # The user namespace owns the others; it may be further out than the sandbox's processes.
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
    """Move a process into control groups, and make the OOM killer prefer it; raises OSError."""
    for group in groups:
        Path(group, "cgroup.procs").write_text(str(pid))
    be_expendable(pid)


def enter(flags: int, numbers: Sequence[int]) -> None:
    """Join the namespaces of a `NamespaceEntry`, and close its descriptors; raises OSError.

    This process keeps its own pid namespace: only its children are visible inside.
    """
    for number in numbers:
        os.setns(number, flags)
        os.close(number)


def become_nobody(user: int) -> None:
    """Change to a user without capabilities or a way to gain any, and end with the parent.

    Raises OSError.
    """
    drop_bounds()
    spaces.become(user)
    lose_capabilities()
    libc = ctypes.CDLL(None, use_errno=True)
    spaces.check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    # The kernel clears this setting with each change of user.
    spaces.check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def renounce(filter_code: bytes, *, has_own_user: bool) -> None:
    """Give up all capabilities and the way to new ones, and install the system call filter.

    If the sandbox has a user of its own, change to that user first. Raises OSError if any step
    fails. Other processes in the sandbox may trace this one, as they may trace each other.
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
    """Empty the bounding set, so that no program can gain capabilities; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES_MAX):
        if libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            spaces.check(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))


def lose_capabilities() -> None:
    """Drop all capabilities, also from the bounding set; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    drop_bounds()
    spaces.check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    spaces.check(libc.capset(header, bytes(24)))


def limit_terminals(pid: int) -> None:
    """Limit the pseudoterminals of a process's sandbox: all sandboxes share the kernel's maximum.

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
    """Prevent other processes from reading or tracing this one; raises OSError."""
    spaces.check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def pid_of(pidfd: int) -> int:
    """Return the pid of a pidfd's process; raises ProcessLookupError."""
    found = re.search(
        r"^Pid:\s*(\d+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(), re.MULTILINE
    )
    if found is None:
        raise ProcessLookupError
    return int(found[1])
