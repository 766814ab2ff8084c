"""Explains to users why an environment could not be prepared, and what to do. Pure."""

import errno
import os
from signal import NSIG
from typing import Final

from agentsvc.base import AgentsvcError, CapacityExceeded, DiskFull
from agentsvc.extension.server import Sandbox
from agentsvc.plugin import Cause

_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
_MAKE_ROOM: Final = "Free some space there, or have the set-up need less, and prepare it anew"
_FULL: Final = f"The disk is full on which its sandbox runs. {_MAKE_ROOM}"

_SIGNALLED: Final = 128
_WHO_KILLS: Final = (
    "Look whether its sandbox or the machine ran out of memory, and for `kill` in it"
)


def explain_error(error: AgentsvcError) -> str:
    """Return why a step failed."""
    said = ": ".join(filter(None, (error.message, error.detail)))
    is_full = isinstance(error, CapacityExceeded | DiskFull) and "disk is full" in error.message
    return _FULL if is_full or _says_full(said) else said


def explain_exit(code: int, said: str) -> str:
    """Return why a set-up script failed that ended with a code, and said something."""
    if 0 < code - _SIGNALLED < NSIG:
        return f"The set-up script was killed (signal {code - _SIGNALLED}). {_WHO_KILLS}"
    ended = f"The set-up script ended with exit code {code}"
    return (
        f"{ended}: the disk is full on which it runs. {_MAKE_ROOM}" if _says_full(said) else ended
    )


def explain_end(sandbox: Sandbox) -> str:
    """Return why a set-up failed whose sandbox has ended."""
    if sandbox.cause is not Cause.SIGNALLED:
        return f"The sandbox ended during the set-up: {sandbox.reason}"
    number = (sandbox.exit_code or 0) - _SIGNALLED
    signal = f" (signal {number})" if number > 0 else ""
    return f"The set-up's processes were killed{signal}, and its sandbox with them. {_WHO_KILLS}"


def _says_full(text: str) -> bool:
    return any(sign in text for sign in _NO_ROOM)
