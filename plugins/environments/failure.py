"""Messages to users about why an environment could not be prepared, and what to do. Pure."""

import errno
import os
from signal import NSIG
from typing import Final

from agentsvc.base import AgentsvcError, CapacityExceeded, DiskFull
from agentsvc.extension.server import Sandbox
from agentsvc.plugin import Cause

_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
_MAKE_ROOM: Final = "Free some space there, or make the set-up need less, and prepare it again"
_FULL: Final = f"The disk of its sandbox is full. {_MAKE_ROOM}"

_SIGNAL_BASE: Final = 128
_FIND_KILLER: Final = (
    "Check whether its sandbox or the machine ran out of memory, and look for `kill` in it"
)


def explain_error(error: AgentsvcError) -> str:
    """Return the message for a step that failed with an error."""
    text = ": ".join(filter(None, (error.message, error.detail)))
    is_full = isinstance(error, CapacityExceeded | DiskFull) and "disk is full" in error.message
    return _FULL if is_full or _says_full(text) else text


def explain_exit(code: int, text: str) -> str:
    """Return the message for a set-up script that failed with an exit code and some output."""
    if 0 < code - _SIGNAL_BASE < NSIG:
        return f"The set-up script was killed (signal {code - _SIGNAL_BASE}). {_FIND_KILLER}"
    ended = f"The set-up script ended with exit code {code}"
    return f"{ended}: the disk of its sandbox is full. {_MAKE_ROOM}" if _says_full(text) else ended


def explain_end(sandbox: Sandbox) -> str:
    """Return the message for a set-up whose sandbox has ended."""
    if sandbox.cause is not Cause.SIGNALLED:
        return f"The sandbox ended during the set-up: {sandbox.reason}"
    number = (sandbox.exit_code or 0) - _SIGNAL_BASE
    signal = f" (signal {number})" if number > 0 else ""
    return f"The set-up's processes were killed{signal}, and its sandbox with them. {_FIND_KILLER}"


def _says_full(text: str) -> bool:
    return any(message in text for message in _NO_ROOM)
