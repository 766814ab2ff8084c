"""The data directory: what lies where in it, and that nobody else reads it.

That one server at a time uses it is seen to by `storage.lock_data_dir`.
"""

import fcntl
import os
import stat
from pathlib import Path

import msgspec

from agentsvc.base import StartFailed

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_CHOOSE_ANOTHER = "choose another directory with --data-dir"


class _Below:
    """A path below the data directory, as an attribute of that."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: "DataDirectory", _kind: object = None) -> Path:
        return directory.path / self._name


class DataDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that holds all the server keeps."""

    path: Path

    database = _Below("agentsvc.db")
    """The SQLite file."""
    master_key = _Below("master.key")
    """The key that seals stored secrets."""
    next_master_key = _Below("master.key.next")
    """The key that a change of the master key leads to, until that is done."""
    instance_id = _Below("instance-id")
    """The id of this installation, which labels all that its backends make."""
    callback_addresses = _Below("callback-addresses")
    """Where the server listened, for sandboxes that know no other address."""
    url = _Below("url")
    """Where the server that runs is reached on this machine, for commands beside it."""
    command_key = _Below("command-key")
    """The API key of commands that are called beside the server."""
    first_key = _Below("first-key")
    """The first API key and a login link, where there was no terminal to show them on."""
    backends = _Below("backends")
    """The directory in which each backend has one of its own."""
    archives = _Below("archives")
    """The directory of saved workspaces."""
    checkouts = _Below("checkouts")
    """The directory of what the server itself fetches of repositories, for a moment."""

    def is_in_use(self) -> bool:
        """Whether a server runs on it."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def prepare(self) -> None:
        """Make the directory where it is missing, readable by its owner only.

        Raises StartFailed if it cannot be made or used, or if others can write to it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o077 and self._is_ours():
                self.path.chmod(0o700)
            elif mode & _OTHERS_MAY_WRITE:
                raise StartFailed(
                    f"others can write to the data directory {self.path}", hint=_CHOOSE_ANOTHER
                )
        except OSError as exc:
            raise StartFailed(
                f"the data directory {self.path} cannot be used: {exc.strerror}",
                hint=_CHOOSE_ANOTHER,
            ) from exc

    def _is_ours(self) -> bool:
        """Whether nothing but a server of this user put anything here, so its mode is ours to set."""
        owned = self.path.stat().st_uid == os.getuid()
        return owned and (self.database.exists() or not any(self.path.iterdir()))
