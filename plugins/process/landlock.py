"""Confines a program by Landlock: the files that it and its children may read and write.

Imported by the server to detect the kernel's Landlock version; run inside a sandbox as one file
with the standard library alone, `python -I -S landlock.py RULES -- COMMAND...`, where RULES is the
JSON of `rules()`. It needs no privileges and cannot be undone. It does not hide other processes,
and it blocks neither the network nor Unix sockets that have a path.
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
"""Older versions do not prevent truncation of read-only files; Linux 6.2."""

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
_FILE_ACCESS: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_ABSTRACT_SOCKETS: Final = 1 << 0
_SCOPE_SIGNALS: Final = 1 << 1

_COMMAND_PREFIX: Final = "AGENTSVC_FOR_COMMAND_"
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
"""Paths that every program may need to read; missing ones are ignored."""

DEVICES: Final = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/dev/ptmx", "/dev/pts", "/dev/shm", "/dev/fd"),  # noqa: S108  # devices that the kernel provides
)


def abi() -> int:
    """Return the version of Landlock that this kernel offers; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    try:
        return max(_call(_CREATE_RULESET, None, 0, _ASK_VERSION), 0)
    except OSError:
        return 0


def is_usable() -> bool:
    """Return whether a program can be confined here: by this kernel, and not as root.

    Root's rights over other processes and devices would defeat it.
    """
    return abi() >= ABI_MIN and os.geteuid() != 0


def describe(version: int) -> str:
    """Describe what a version confines."""
    parts = ["files"] if version >= ABI_MIN else []
    parts += ["devices"] if version >= _ABI_DEVICES else []
    parts += ["signals", "abstract sockets"] if version >= _ABI_SCOPES else []
    return f"version {version}: {', '.join(parts) or 'too old'}"


def rules(read: Iterable[str], write: Iterable[str], names: Iterable[str] = ()) -> str:
    """Return the rules that make the system and `read` readable, and `write` writable.

    In `names` only directory listings are readable: an import looks for a package among them.
    """
    readable = [path for path in dict.fromkeys((*SYSTEM, *read)) if path]
    return json.dumps({"read": readable, "write": [*DEVICES, *write], "names": [*names]})


def wrapped(script_rules: str, command: Sequence[str]) -> list[str]:
    """Return the command line that confines itself and then executes a command."""
    return [sys.executable, "-I", "-S", __file__, script_rules, "--", *command]


def put_away(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a `wrapped` command line, whose command gets `env`.

    Variables of the command must have no effect before it is confined: LD_PRELOAD, for example,
    would run a sandbox's code without rules.
    """
    return {_COMMAND_PREFIX + name: value for name, value in env.items()}


def confine(script_rules: str) -> None:
    """Confine this process permanently; raises OSError if that is not possible."""
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
    """Return whether this kernel can prevent a process from sending signals to others."""
    return abi() >= _ABI_SCOPES


def leave_processes() -> None:
    """Prevent this process and its children from signalling and tracing other processes.

    Also blocks other processes' abstract Unix sockets. Raises OSError if the kernel does not
    support it; the process needs no_new_privs.
    """
    if not can_scope():
        raise OSError(errno.EOPNOTSUPP, "Landlock of this kernel is too old")
    _scope(_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)


def leave_abstract_sockets() -> None:
    """Block other processes' abstract Unix sockets, if the kernel supports it.

    These belong to the network namespace, which a sandbox may share, and are not files. The process
    needs no_new_privs.
    """
    if can_scope():
        _scope(_SCOPE_ABSTRACT_SOCKETS)


def main(arguments: Sequence[str]) -> None:
    """Confine this process and execute the command."""
    script_rules, _, *command = arguments
    try:
        confine(script_rules)
        env = _restored(os.environ) or dict(os.environ)
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


def _restored(env: Mapping[str, str]) -> dict[str, str]:
    put = ((name, value) for name, value in env.items() if name.startswith(_COMMAND_PREFIX))
    return {name.removeprefix(_COMMAND_PREFIX): value for name, value in put}


def _handled(version: int) -> int:
    return _ALL_OF_ABI_3 | (_IOCTL_DEV if version >= _ABI_DEVICES else 0)


def _make_ruleset(version: int) -> int:
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= _ABI_SCOPES else 0
    # Network ports are not restricted: a rule has a port and no host.
    fields = struct.pack("=QQQ", _handled(version), 0, scopes)
    size = 24 if version >= _ABI_SCOPES else 16 if version >= _ABI_NETWORK else 8
    return _call(_CREATE_RULESET, fields[:size], size, 0)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        # Links are followed: the rule is for the target.
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        granted = access if Path(path).is_dir() else access & _FILE_ACCESS
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
