"""Gives each sandbox a user of this machine, where the server is root.

Nobody else may be one of them; they need no name and no entry anywhere. All functions but
`describe` block for a moment; call them from a thread.
"""

import contextlib
import os
import pwd
import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from agentsvc.base import CapacityExceeded

from .bubblewrap import Probe

_HIGHEST: Final = 2**32 - 3
"""The two numbers above mean nobody and no change."""

_TRIES: Final = 64


class Users:
    """Which sandbox is which user."""

    def __init__(
        self, numbers: range = range(0), taken: Mapping[str, int] = {}, reason: str = ""
    ) -> None:
        """`taken` is who sandboxes are that are there already; `reason` is why there are no users."""
        self._numbers = numbers
        self._reason = reason
        self._taken = {sandbox_id: user for sandbox_id, user in taken.items() if user}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._numbers)

    def any(self) -> int:
        """Return one of them, to be tried; 0 if there are none."""
        return self._numbers[-1] if self._numbers else 0

    def assign(self, sandbox_id: str, known: int) -> int:
        """Return who a sandbox is to be, `known` if it is somebody; 0 if there are no users.

        Raises CapacityExceeded if every number is somebody already.
        """
        if not self._numbers:
            return 0
        with self._lock:
            user = known or self._taken.get(sandbox_id) or self._find()
            self._taken[sandbox_id] = user
        return user

    def release(self, sandbox_id: str) -> None:
        """Forget a sandbox that is gone with all its files."""
        self._taken.pop(sandbox_id, None)

    def describe(self) -> str:
        """Say in a few words who sandboxes are."""
        if not self._numbers:
            return f"the server's: {self._reason}"
        return f"one each of {self._numbers.start}-{self._numbers.stop - 1}"

    def _find(self) -> int:
        # By chance first: another server on this machine may take from the same numbers.
        taken = set(self._taken.values())
        for _ in range(_TRIES):
            user = secrets.choice(self._numbers)
            if user not in taken and not _is_somebody(user):
                return user
        for user in self._numbers:
            if user not in taken and not _is_somebody(user):
                return user
        raise CapacityExceeded("All users of `backends.process.uids` are taken by sandboxes")


def parse(text: str) -> range:
    """Return the numbers of `FIRST-LAST`, none if it is empty; raises ValueError for others."""
    if not text:
        return range(0)
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise ValueError("`uids` is two numbers, such as 1900000000-1900065535")
    if not 0 < int(first) <= int(last) <= _HIGHEST:
        raise ValueError(f"`uids` is a range between 1 and {_HIGHEST}")
    return range(int(first), int(last) + 1)


def find(text: str, held_by: Probe, taken: Mapping[str, int]) -> Users:
    """Return the users that sandboxes can be here, and who some are already."""
    if os.geteuid() != 0:
        return Users(reason="it is not root")
    if not held_by.program:
        return Users(reason=held_by.reason)
    if not text or held_by.shared:
        return Users(reason=held_by.shared or "`uids` is empty")
    return Users(parse(text), taken)


def candidate(text: str) -> int:
    """Return one of the numbers, to be tried; 0 if there are none or this is not root."""
    return Users(parse(text)).any() if os.geteuid() == 0 else 0


def give(directories: Iterable[Path], user: int) -> None:
    """Make directories and all in them that user's, unless they are; nobody may be at work there.

    Each directory comes last, so that what was begun and not finished is begun again.
    """
    for top in directories:
        if top.lstat().st_uid == user:
            continue
        for directory, names, files in os.walk(top, topdown=False):
            for name in (*names, *files):
                os.chown(Path(directory, name), user, user, follow_symlinks=False)
        os.chown(top, user, user, follow_symlinks=False)


def _is_somebody(user: int) -> bool:
    """Say whether that user has a name, or a process such as a sandbox of another server."""
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(user))
    return any(_owner(path) == user for path in Path("/proc").glob("[0-9]*"))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:  # it has ended meanwhile
        return None
