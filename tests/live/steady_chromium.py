#!/usr/bin/env python3
"""Runs Debian's browser without news of the machine's network.

It breaks off all it loads (`ERR_NETWORK_CHANGED`) whenever an interface gets an address, as each
container of another test makes one do. It hears of that by a netlink socket; a filter of system
calls refuses it one, and then it takes the network as it is. Standard library only.
"""

import ctypes
import errno
import os
import shutil
import struct
import sys

_SOCKET = {"x86_64": 41, "aarch64": 198}
_AF_NETLINK = 16
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_FILTER_MODE = 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_FAIL, _ALLOW = 0x50000, 0x7FFF0000


def _refuse_netlink(socket: int) -> None:
    steps = (
        (_LOAD, 0, 0, 0),  # the number of the call
        (_IF_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, 16),  # its first argument
        (_IF_EQUAL, 0, 1, _AF_NETLINK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(
        _PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), program, zero, zero
    ):
        raise OSError(ctypes.get_errno(), "the filter was not taken")


if __name__ == "__main__":
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("there is no chromium")
    number = _SOCKET.get(os.uname().machine)
    if number is not None:
        _refuse_netlink(number)
    os.execv(browser, [browser, *sys.argv[1:]])  # noqa: S606  # running it is what it is for
