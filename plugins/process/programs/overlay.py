"""Mounts layers below the files of a sandbox with overlayfs.

Run as a program, by root, with the standard library alone. It prepares all mounts in a private
mount namespace, so that nothing is left if it is interrupted. Files of the layer's owner are shown
as the sandbox user's through an idmapped mount, without changing any file.
"""

import ctypes
import json
import os
import sys
from typing import Any

from . import spaces

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_MOUNT_SETATTR = 442
_HERE = -100
_CLOEXEC = 1
_CLONE = 1 | os.O_CLOEXEC
_FROM_DESCRIPTOR = 4
_EMPTY_PATH = 0x1000
_SET_TEXT = 1
_CREATE = 6
_NO_SUID_NO_DEVICES = 2 | 4
_IDMAP = 0x100000
_PRIVATE = 0x4000 | 1 << 18
_OPTIONS = {"redirect_dir": "on", "metacopy": "on", "index": "off"}
"""Permit renaming directories of the layer, and changing modes without copying the file."""
_FAILED = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("space", ctypes.c_uint64),
    )


def main() -> None:
    """Carry out the orders on standard input; write an error to standard error."""
    try:
        _mount(json.load(sys.stdin))
    except OSError as exc:
        sys.stderr.write(f"{exc.filename or 'layer'}: {exc.strerror or exc}\n")
        sys.exit(_FAILED)


def _mount(orders: dict[str, Any]) -> None:
    theirs = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    owner, user = orders["owner"], orders["user"]
    space = spaces.mapping(owner, user) if owner != user else None
    os.unshare(os.CLONE_NEWNS)
    _check("its own mounts", _libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None))
    made = [_made(one, orders["name"], space) for one in orders["mounts"]]
    os.setns(theirs, os.CLONE_NEWNS)
    if not orders["is_trial"]:
        for number, one in zip(made, orders["mounts"], strict=True):
            # The program of a server that was killed meanwhile may have mounted it already.
            if not os.path.ismount(one["at"]):
                _move(number, one["at"])


def _made(one: dict[str, str], name: str, space: int | None) -> int:
    """Create one overlay file system, not mounted yet."""
    lower = _call("layer", _OPEN_TREE, _HERE, os.fsencode(one["lower"]), _CLONE)
    if space is not None:
        mapped = _Attributes(set=_IDMAP, space=space)
        size = ctypes.sizeof(mapped)
        step = "files shown as another user's"
        _call(step, _MOUNT_SETATTR, lower, b"", _EMPTY_PATH, ctypes.byref(mapped), size)
    # Before Linux 6.15, only mounted file systems can be part of an overlay.
    _move(lower, one["at"])
    upper, work = (os.open(one[part], os.O_PATH | os.O_CLOEXEC) for part in ("upper", "work"))
    context = _call("overlayfs", _FSOPEN, b"overlay", _CLOEXEC)
    # Use descriptors: a path in these options must not be long nor contain commas and colons.
    parts = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    options = {part: f"/proc/self/fd/{number}" for part, number in parts.items()}
    for option, text in {"source": name, **options, **_OPTIONS}.items():
        _call(
            f"overlayfs, {option}", _FSCONFIG, context, _SET_TEXT, option.encode(), text.encode(), 0
        )
    _call("overlayfs", _FSCONFIG, context, _CREATE, None, None, 0)
    return _call("overlayfs", _FSMOUNT, context, _CLOEXEC, _NO_SUID_NO_DEVICES)


def _move(number: int, path: str) -> None:
    _call("mount", _MOVE_MOUNT, number, b"", _HERE, os.fsencode(path), _FROM_DESCRIPTOR)


def _call(step: str, number: int, *arguments: Any) -> int:
    return _check(step, _libc.syscall(number, *arguments))


def _check(step: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), step)
    return result
