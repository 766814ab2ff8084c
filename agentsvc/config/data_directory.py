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


class DataDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that holds all the server keeps."""

    path: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "agentsvc.db"

    @property
    def master_key(self) -> Path:
        """The key that seals stored secrets."""
        return self.path / "master.key"

    @property
    def next_master_key(self) -> Path:
        """The key that a change of the master key leads to, until that is done."""
        return self.path / "master.key.next"

    @property
    def instance_id(self) -> Path:
        """The id of this installation, which labels all that its backends make."""
        return self.path / "instance-id"

    @property
    def callback_addresses(self) -> Path:
        """Where the server listened, for sandboxes that know no other address."""
        return self.path / "callback-addresses"

    @property
    def url(self) -> Path:
        """Where the server that runs is reached on this machine, for commands beside it."""
        return self.path / "url"

    @property
    def command_key(self) -> Path:
        """The API key of commands that are called beside the server."""
        return self.path / "command-key"

    @property
    def first_key(self) -> Path:
        """The first API key and a login link, where there was no terminal to show them on."""
        return self.path / "first-key"

    @property
    def backends(self) -> Path:
        """The directory in which each backend has one of its own."""
        return self.path / "backends"

    @property
    def archives(self) -> Path:
        """The directory of saved workspaces."""
        return self.path / "archives"

    @property
    def checkouts(self) -> Path:
        """The directory of what the server itself fetches of repositories, for a moment."""
        return self.path / "checkouts"

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
