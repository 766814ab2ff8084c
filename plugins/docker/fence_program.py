"""Runs a command that cannot use io_uring of the kernel, and neither can its children.

Engines before 25 permit it to containers, and many vulnerabilities of recent kernels were there.
This program runs in the sandbox, with any Python 3 that its image has and the standard library
alone; if the kernel accepts no filter, it runs the command without. If a checkpoint should be
restored, that is done first.
"""

import ctypes
import errno
import os
import runpy
import struct
import sys
from pathlib import Path
from typing import Final

_SET_NO_NEW_PRIVILEGES: Final = 38
_SET_SECCOMP: Final = 22
_BY_FILTER: Final = 2
_FIRST, _LAST = 425, 427
_FILTER: Final = (
    (0x20, 0, 0, 0),  # the number of the call, which is the same on all architectures
    (0x54, 0, 0, 0xBFFFFFFF),  # except for one bit
    (0x35, 0, 2, _FIRST),
    (0x25, 1, 0, _LAST),
    (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
    (0x06, 0, 0, 0x7FFF0000),
)
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126


_CHECKPOINTS: Final = Path(__file__).with_name("checkpointing")
_ROLLBACK: Final = Path(__file__).with_name("rollback")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def fence() -> None:
    """Make io_uring calls fail as if unsupported, for this process and all its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in _FILTER))
    program = _Program(len(_FILTER), ctypes.cast(code, ctypes.c_void_p))
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(_SET_SECCOMP, _BY_FILTER, ctypes.byref(program), 0, 0)


def put_files_back() -> int:
    """Restore the files of a checkpoint, if one is recorded; return an exit code."""
    rollback = _ROLLBACK.read_text() if _ROLLBACK.exists() else ""
    if not rollback:
        return 0
    store = str(_ROLLBACK.with_name("checkpoints"))
    argv = [str(_CHECKPOINTS), "restore", store, rollback]
    code: int = runpy.run_path(str(_CHECKPOINTS))["main"](argv)
    return code


def main(command: list[str]) -> int:
    """Execute the command in place of this program; return a shell's exit code if that fails."""
    try:
        os.execvp(command[0], command)  # noqa: S606  # the command of the sandbox
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: not found\n")
        return _NOT_FOUND
    except OSError as exc:
        sys.stderr.write(f"{command[0]}: {exc.strerror}\n")
        return _NOT_RUN


if __name__ == "__main__":
    fence()
    sys.exit(put_files_back() or main(sys.argv[1:]))
