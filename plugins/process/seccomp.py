"""The seccomp filter of sandboxes: the system calls that nothing in a sandbox may make.

It refuses what an agent never needs and kernel exploits use: the kernel's keyring, bpf, mounts, new
namespaces, modules, and other ways to look into the kernel. Everything else is allowed, including
ptrace: a sandbox sees only its own processes, and debuggers need it. New namespaces are refused
although browsers could use them for their own sandbox, because most vulnerabilities of recent
kernels begin with one. Pure.
"""

import errno
import struct
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_IF_ANY_BIT: Final = 0x45
_MASK: Final = 0x54
_RETURN: Final = 0x06

_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000
_KILL: Final = 0x80000000

_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16
"""Offsets in the filter's input; the lower half of each argument comes first."""

_X32: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020000
"""Every flag of clone that creates a namespace."""
_TASK_NAMESPACES: Final = 0x30020000
"""The flags of setns for the user, pid and mount namespace; only a pidfd accepts all of them at
once."""
_KIND_OF_CALL: Final = 0xFF00
_NAMESPACE_CALLS: Final = 0xB700
"""The ioctl requests about a namespace, such as its parent or owner."""
_PTRACE_ATTACH: Final = (16, 0x4206)
"""The two ptrace requests that attach to another process."""
_FAMILIES: Final = (1, 2, 10, 16)
"""Unix, IPv4, IPv6 and netlink, which DNS resolvers use."""
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into another process's terminal."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The system call numbers of one processor architecture."""

    audit: int
    calls: Mapping[str, int]
    """Calls that are refused with some arguments, or to some processes."""
    refused: Mapping[str, int]
    """Calls that are always refused."""
    has_x32: bool = False


_CALLS: Final = {
    "clone": (56, 220),
    # It allocates disk space faster than the disk limit is checked.
    "fallocate": (285, 47),
    "ioctl": (16, 29),
    # It may set limits of another process of the same user, even one that makes the kernel kill it.
    "prlimit": (302, 261),
    # They read and write the memory of another process.
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "setns": (308, 268),
    "socket": (41, 198),
}
"""System call numbers on x86_64 and on aarch64."""

_REFUSED: Final = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""The same; None if aarch64 does not have the call."""

_EVERYWHERE: Final = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}

_ABSENT: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,
}
"""Calls that fail as if the kernel did not have them, so that libraries use the older ones; a
filter cannot see the flags of clone3."""

_PIDFD_OPEN: Final = 434
_PIDFD_GETFD: Final = 438


def _machine(column: int, audit: int, *, has_x32: bool = False) -> Machine:
    refused = {name: numbers[column] for name, numbers in _REFUSED.items()}
    return Machine(
        audit=audit,
        calls={name: numbers[column] for name, numbers in _CALLS.items()},
        refused={name: number for name, number in refused.items() if number is not None},
        has_x32=has_x32,
    )


MACHINES: Final = {
    "x86_64": _machine(0, 0xC000003E, has_x32=True),
    "aarch64": _machine(1, 0xC00000B7),
}
"""By machine name as in `uname -m`."""


def compile_filter(machine: str, *, may_join: bool = False, in_parts: bool = False) -> bytes | None:
    """Return the filter for an architecture, or None if it is unknown.

    With `may_join`, the process may join a sandbox whose descriptors it was given, as a whole or
    `in_parts`. It cannot find others by those descriptors or by pid, nor access or limit another
    process.
    """
    kind = MACHINES.get(machine)
    if kind is None:
        return None
    calls = kind.calls
    refused = [*kind.refused.values(), *_EVERYWHERE.values()]
    memory = (calls["process_vm_readv"], calls["process_vm_writev"])
    refused += [*memory, _PIDFD_GETFD] if may_join else [calls["setns"]]
    absent = [*_ABSENT.values(), *([_PIDFD_OPEN] if may_join else [])]
    parts = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, kind.audit, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if kind.has_x32:
        parts += [_step(_IF_AT_LEAST, _X32, no=1), _fail(errno.ENOSYS)]
    parts += _refuse(refused, errno.EPERM)
    # Libraries then write zeros, as on file systems without it.
    parts += _refuse((calls["fallocate"],), errno.EOPNOTSUPP)
    parts += _refuse(absent, errno.ENOSYS)
    if may_join and not in_parts:
        whole = [_step(_MASK, _TASK_NAMESPACES), _step(_IF_EQUAL, _TASK_NAMESPACES, yes=1)]
        parts += _when(calls["setns"], 1, [*whole, _fail(errno.EPERM)])
    if may_join:
        parts += _when(calls["ptrace"], 0, _refuse(_PTRACE_ATTACH, errno.EPERM))
        parts += _when(calls["prlimit"], 0, [_step(_IF_EQUAL, 0, yes=1), _fail(errno.EPERM)])
    parts += _when(
        calls["clone"], 0, [_step(_IF_ANY_BIT, _NEW_NAMESPACES, no=1), _fail(errno.EPERM)]
    )
    asked = _refuse(_TERMINAL_INPUT, errno.EPERM)
    if may_join:
        about_one = _step(_IF_EQUAL, _NAMESPACE_CALLS, no=1)
        asked += [_step(_MASK, _KIND_OF_CALL), about_one, _fail(errno.EPERM)]
    parts += _when(calls["ioctl"], 1, asked)
    families = [_step(_IF_EQUAL, one, yes=len(_FAMILIES) - at) for at, one in enumerate(_FAMILIES)]
    parts += _when(calls["socket"], 0, [*families, _fail(errno.EAFNOSUPPORT)])
    parts.append(_step(_RETURN, _ALLOW))
    return b"".join(parts)


def _refuse(values: Iterable[int], number: int) -> list[bytes]:
    return [part for one in values for part in (_step(_IF_EQUAL, one, no=1), _fail(number))]


def _when(call: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """Return steps that check one argument of one call, then allow the call."""
    inner = [_step(_LOAD, _ARGUMENTS + 8 * argument), *steps, _step(_RETURN, _ALLOW)]
    return [_step(_IF_EQUAL, call, no=len(inner)), *inner]


def _fail(number: int) -> bytes:
    return _step(_RETURN, _FAIL | number)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
