"""Confines a program by Landlock: what it and all it starts may read and write.

Imported by the server to find out what the kernel can do; run inside a sandbox as one file with
the standard library alone, `python -I -S landlock.py RULES -- COMMAND...`, where RULES is the
JSON of `rules()`. It needs no privileges and cannot be undone. What it does not do: hide other
processes, keep from the network, or keep from unix sockets that have a path.
"""

import ctypes
import errno
import json
import os
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ABI_MIN: Final = 3
"""Before it, files that may not be written could still be cut off; Linux 6.2."""

_ABI_SCOPES: Final = 6
_ABI_DEVICES: Final = 5
_ABI_NETWORK: Final = 4

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
_ALL_OF_ABI_3: Final = (1 << 15) - 1
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS: Final = 1 << 0
_SCOPE_SIGNALS: Final = 1 << 1

_PUT_AWAY: Final = "AGENTSVC_FOR_COMMAND_"
_CANNOT_RUN: Final = 126
_NOT_FOUND: Final = 127

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *(
        "/nix",
        "/proc",
        "/sys",
        "/run/systemd/resolve",
        "/run/resolvconf",
        "/var/lib/ca-certificates",
    ),
)
"""What every program may need to read; those that exist here count."""

DEVICES: Final = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/dev/ptmx", "/dev/pts", "/dev/shm", "/dev/fd"),  # noqa: S108  # by the kernel's leave
)


def abi() -> int:
    """Return the version of Landlock that this kernel offers; 0 for none."""
    if sys.platform != "linux":
        return 0
    try:
        return max(_call(_CREATE_RULESET, None, 0, _ASK_VERSION), 0)
    except OSError:
        return 0


def is_usable() -> bool:
    """Say whether a program can be confined here: by this kernel, and not as root.

    Root's rights over other processes and devices make it no boundary.
    """
    return abi() >= ABI_MIN and os.geteuid() != 0


def describe(version: int) -> str:
    """Say in a few words what a version confines."""
    parts = ["files"] if version >= ABI_MIN else []
    parts += ["devices"] if version >= _ABI_DEVICES else []
    parts += ["signals", "abstract sockets"] if version >= _ABI_SCOPES else []
    return f"version {version}: {', '.join(parts) or 'too old'}"


def rules(read: Iterable[str], write: Iterable[str], names: Iterable[str] = ()) -> str:
    """Return the rules that leave the system and `read` readable, and `write` writable.

    Of what is in `names` only the names are seen: an import looks for a package among them.
    """
    readable = [path for path in dict.fromkeys((*SYSTEM, *read)) if path]
    return json.dumps({"read": readable, "write": [*DEVICES, *write], "names": [*names]})


def wrapped(script_rules: str, command: Sequence[str]) -> list[str]:
    """Return the command line that confines a command and becomes it."""
    return [sys.executable, "-I", "-S", __file__, script_rules, "--", *command]


def put_away(env: Mapping[str, str]) -> dict[str, str]:
    """Return what a `wrapped` command line has for an environment, out of which the command gets `env`.

    What is for the command must not count before it is confined: with one like LD_PRELOAD, code of
    a sandbox would run here without rules.
    """
    return {_PUT_AWAY + name: value for name, value in env.items()}


def confine(script_rules: str) -> None:
    """Confine this process for good; raises OSError if that is not possible."""
    asked: dict[str, Any] = json.loads(script_rules)
    version = abi()
    if version < ABI_MIN:
        raise OSError(errno.EOPNOTSUPP, "Landlock of this kernel is too old")
    ruleset = _make_ruleset(version)
    try:
        for path in asked["read"]:
            _allow(ruleset, path, _READ)
        for path in asked["names"]:
            _allow(ruleset, path, _READ_DIR)
        for path in asked["write"]:
            _allow(ruleset, path, _handled(version))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def can_scope() -> bool:
    """Say whether this kernel can keep a process from sending signals to others."""
    return abi() >= _ABI_SCOPES


def leave_processes() -> None:
    """Keep this process, and what it becomes and starts, from signals to others and from tracing them.

    And from their unix sockets without a path. Raises OSError where that is not possible; needs a
    process without a way to new privileges.
    """
    if not can_scope():
        raise OSError(errno.EOPNOTSUPP, "Landlock of this kernel is too old")
    _scope(_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)


def leave_abstract_sockets() -> None:
    """Keep this process from unix sockets without a path that are others', where the kernel can.

    They belong to the network, which a sandbox may share, and are no files. Needs a process
    without a way to new privileges.
    """
    if can_scope():
        _scope(_SCOPE_ABSTRACT_SOCKETS)


def main(arguments: Sequence[str]) -> None:
    """Confine this process and become the command."""
    script_rules, _, *command = arguments
    try:
        confine(script_rules)
        env = _taken_out(os.environ) or dict(os.environ)
        os.execvpe(command[0], command, env)  # noqa: S606  # running a command is what it is for
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
        sys.exit(_CANNOT_RUN if exc.errno != errno.ENOENT else _NOT_FOUND)


def _scope(scopes: int) -> None:
    fields = struct.pack("=QQQ", 0, 0, scopes)
    ruleset = _call(_CREATE_RULESET, fields, len(fields), 0)
    try:
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _taken_out(env: Mapping[str, str]) -> dict[str, str]:
    put = ((name, value) for name, value in env.items() if name.startswith(_PUT_AWAY))
    return {name.removeprefix(_PUT_AWAY): value for name, value in put}


def _handled(version: int) -> int:
    return _ALL_OF_ABI_3 | (_IOCTL_DEV if version >= _ABI_DEVICES else 0)


def _make_ruleset(version: int) -> int:
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= _ABI_SCOPES else 0
    # Ports of the network are left alone: a rule knows a port and no host.
    fields = struct.pack("=QQQ", _handled(version), 0, scopes)
    size = 24 if version >= _ABI_SCOPES else 16 if version >= _ABI_NETWORK else 8
    return _call(_CREATE_RULESET, fields[:size], size, 0)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        # A link is followed: its target is what is meant.
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not here needs no rule
    try:
        granted = access if Path(path).is_dir() else access & _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", granted, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    passed = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
