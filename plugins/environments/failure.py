"""Explains to users why an environment could not be prepared, and what to do. Pure."""

import errno
import os
from typing import Final

from agentsvc.base import AgentsvcError, CapacityExceeded

_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
_MAKE_ROOM: Final = "Free some space there, or have the set-up need less, and prepare it anew"
_FULL: Final = f"The disk is full on which its sandbox runs. {_MAKE_ROOM}"


def explain_error(error: AgentsvcError) -> str:
    """Return why a step failed."""
    said = ": ".join(filter(None, (error.message, error.detail)))
    is_full = isinstance(error, CapacityExceeded) and "disk is full" in error.message
    return _FULL if is_full or _says_full(said) else said


def explain_exit(code: int, said: str) -> str:
    """Return why a set-up script failed that ended with a code, and said something."""
    ended = f"The set-up script ended with exit code {code}"
    return (
        f"{ended}: the disk is full on which it runs. {_MAKE_ROOM}" if _says_full(said) else ended
    )


def _says_full(text: str) -> bool:
    return any(sign in text for sign in _NO_ROOM)
