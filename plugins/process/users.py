"""Assigns each sandbox a user id of this machine, if the server is root.

Nothing else may use these ids; they need no name and no entry anywhere. All functions but
`describe` block briefly; call them from a thread.
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
"""The two ids above mean nobody (-2) and no change (-1)."""

_RANDOM_TRIES: Final = 64


class Users:
    """The user ids of sandboxes."""

    def __init__(
        self, uids: range = range(0), taken: Mapping[str, int] = {}, reason: str = ""
    ) -> None:
        """`taken` are the user ids of existing sandboxes; `reason` is why there are no ids."""
        self._uids = uids
        self._reason = reason
        self._taken = {sandbox_id: user for sandbox_id, user in taken.items() if user}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether there are any user ids."""
        return bool(self._uids)

    def any(self) -> int:
        """Return one user id for a trial; 0 if there are none."""
        return self._uids[-1] if self._uids else 0

    def assign(self, sandbox_id: str, known: int) -> int:
        """Return the user id of a sandbox: `known`, its present one or a free one; 0 if none.

        Raises CapacityExceeded if every user id is taken.
        """
        if not self._uids:
            return 0
        with self._lock:
            user = known or self._taken.get(sandbox_id) or self._find()
            self._taken[sandbox_id] = user
        return user

    def release(self, sandbox_id: str) -> None:
        """Release the user id of a sandbox whose files are all removed."""
        self._taken.pop(sandbox_id, None)

    def describe(self) -> str:
        """Describe the user ids."""
        if not self._uids:
            return f"the server's: {self._reason}"
        return f"one each of {self._uids.start}-{self._uids.stop - 1}"

    def _find(self) -> int:
        # At random first: another server on this machine may use the same range.
        taken = set(self._taken.values())
        for _ in range(_RANDOM_TRIES):
            user = secrets.choice(self._uids)
            if user not in taken and not _is_in_use(user):
                return user
        for user in self._uids:
            if user not in taken and not _is_in_use(user):
                return user
        raise CapacityExceeded("All users of `backends.process.uids` are taken by sandboxes")


def parse(text: str) -> range:
    """Parse `FIRST-LAST` to a range, empty for an empty text; raises ValueError for others."""
    if not text:
        return range(0)
    first, _, last = text.partition("-")
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise ValueError("`uids` is two numbers, such as 1900000000-1900065535")
    if not 0 < int(first) <= int(last) <= _HIGHEST:
        raise ValueError(f"`uids` is a range between 1 and {_HIGHEST}")
    return range(int(first), int(last) + 1)


def find(text: str, held_by: Probe, taken: Mapping[str, int]) -> Users:
    """Return the user ids that sandboxes get here, with those already assigned."""
    if os.geteuid() != 0:
        return Users(reason="it is not root")
    if not held_by.program:
        return Users(reason=held_by.reason)
    if not text or held_by.shared:
        return Users(reason=held_by.shared or "`uids` is empty")
    return Users(parse(text), taken)


def candidate(text: str) -> int:
    """Return one user id for a trial; 0 if there are none or the server is not root."""
    return Users(parse(text)).any() if os.geteuid() == 0 else 0


def give(directories: Iterable[Path], user: int) -> None:
    """Give directories and their content to a user, unless they are; nothing may run there.

    Each directory is changed last, so that an interrupted run is repeated.
    """
    for top in directories:
        if top.lstat().st_uid == user:
            continue
        for directory, names, files in os.walk(top, topdown=False):
            for name in (*names, *files):
                os.chown(Path(directory, name), user, user, follow_symlinks=False)
        os.chown(top, user, user, follow_symlinks=False)


def _is_in_use(user: int) -> bool:
    """Return whether a user id has a name, or a process such as a sandbox of another server."""
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(user))
    return any(_owner(path) == user for path in Path("/proc").glob("[0-9]*"))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:  # the process has ended meanwhile
        return None
