"""The data directory: the paths in it, and its protection from other users.

The lock that keeps other servers off it is `storage.lock_data_dir`.
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
    """A path below the data directory, as an attribute of `DataDirectory`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: "DataDirectory", _kind: object = None) -> Path:
        return directory.path / self._name


class DataDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The directory with all files of the server."""

    path: Path

    database = _Below("agentsvc.db")
    """The SQLite file."""
    master_key = _Below("master.key")
    """The master key, which seals stored secrets."""
    next_master_key = _Below("master.key.next")
    """The new master key during a rotation."""
    instance_id = _Below("instance-id")
    """The id of this installation, which labels everything that its backends create."""
    callback_addresses = _Below("callback-addresses")
    """Addresses at which the server has listened, to which older sandboxes send their callbacks."""
    url = _Below("url")
    """The URL of the running server on this machine, for local commands."""
    command_key = _Below("command-key")
    """The API key of local commands."""
    first_key = _Below("first-key")
    """The first API key and a login link, if there was no terminal to print them on."""
    backends = _Below("backends")
    """The parent of the backends' private directories."""
    archives = _Below("archives")
    """The directory of archives."""
    checkouts = _Below("checkouts")
    """The directory of the server's own temporary checkouts of repositories."""

    def is_in_use(self) -> bool:
        """Return whether a server is running on this directory."""
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
        """Create the directory if it is missing, readable by its owner only.

        Raises StartFailed if it cannot be created or used, or if others can write to it.
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
        """Return whether it is this user's, and empty or a server's, so that its mode may be set."""
        owned = self.path.stat().st_uid == os.getuid()
        return owned and (self.database.exists() or not any(self.path.iterdir()))
