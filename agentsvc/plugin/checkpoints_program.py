"""Keeps checkpoints of a sandbox's files and restores them; runs in the sandbox, by its Python.

It is deployed with the modules it imports, and no other module of this server. Checkpoints are stored out
of the agent's reach; they are restored before anything else runs, by a process with the agent's own
permissions.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Final
from urllib.parse import quote, unquote

from agentsvc.plugin.copying import FilesRefused, is_unchanged
from agentsvc.plugin.file_checkpoints import (
    checkpoint_id_of,
    copy_checkpoint,
    excess_checkpoints,
    kept_checkpoints,
    remove_checkpoint,
)
from agentsvc.plugin.removal import remove_directory

REFUSED: Final = 3
"""The exit code if no checkpoint of the files can be kept; stderr says why."""
INDEX: Final = "index"
"""The file in a store that holds the output of `copy`."""

_MODULES: Final = ("copying", "file_checkpoints", "removal")


class Store:
    """The checkpoints of a sandbox, each a directory with a subdirectory for each copied one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._index = directory / INDEX
        self._last_rollback = directory / "restored"
        """Holds the id of the last completed rollback, so that none is repeated."""

    def copy(self, checkpoint_id: str, paths: list[str], *, keep: int, max_bytes: int) -> str:
        """Take a checkpoint of the existing directories among `paths`; raises FilesRefused.

        Returns the checkpoints that are kept, as JSON: the start time of each in nanoseconds, by id.
        Excess ones stay until `trim`.
        """
        directories = {quote(path, safe=""): Path(path) for path in paths if Path(path).is_dir()}
        with self._locked():
            copy_checkpoint(
                self._directory,
                checkpoint_id,
                directories,
                max_bytes=max_bytes,
                broken_off=Event(),
            )
            excess = excess_checkpoints(self._directory, keep=keep, max_bytes=max_bytes)
            kept = [one for one in kept_checkpoints(self._directory) if one not in excess]
            text = json.dumps({checkpoint_id_of(one): one.begun for one in kept})
            new = self._directory / f"{INDEX}.new"
            new.write_text(text)
            new.replace(self._index)
        return text

    def trim(self) -> None:
        """Remove the checkpoints that the index does not list."""
        with self._locked():
            known = json.loads(self._index.read_text())
            for one in kept_checkpoints(self._directory):
                if checkpoint_id_of(one) not in known:
                    remove_checkpoint(self._directory, one)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the store: a program started by a server that was killed may still be copying."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def put_back(self, rollback: str) -> None:
        """Restore all files of a checkpoint, unless that was done; `rollback` is `ID CHECKPOINT`."""
        with contextlib.suppress(FileNotFoundError):
            if self._last_rollback.read_text() == rollback:
                return
        wanted = rollback.partition(" ")[2]
        for copy in kept_checkpoints(self._directory):
            if checkpoint_id_of(copy) == wanted:
                for directory in copy.path.iterdir():
                    _put_entry_back(Path(unquote(directory.name)), directory, copy.begun)
                break
        else:
            raise FilesRefused("The checkpoint to which the sandbox is to go back is gone")
        os.sync()
        self._last_rollback.write_text(rollback)


def _put_back(directory: Path, copy: Path, begun: int) -> None:
    """Restore a directory from its copy; keeps unchanged files, and other users' files that it lacks."""
    with contextlib.suppress(OSError):  # another user owns it
        directory.chmod(0o700)
    names = {path.name for path in copy.iterdir()}
    for path in list(directory.iterdir()):
        if path.name not in names and _may_be_removed(path.lstat()):
            _remove(path)
    for source in copy.iterdir():
        _put_entry_back(directory / source.name, source, begun)
    with contextlib.suppress(OSError):
        shutil.copystat(copy, directory)


def _put_entry_back(path: Path, source: Path, begun: int) -> None:
    kept = source.lstat()
    try:
        info = path.lstat()
    except FileNotFoundError:
        info = None
    if stat.S_ISDIR(kept.st_mode):
        if info is None or not stat.S_ISDIR(info.st_mode):
            _remove(path)
            path.mkdir(parents=True)
        _put_back(path, source, begun)
    elif info is None or not is_unchanged(info, kept, begun):
        _remove(path)
        shutil.copy2(source, path, follow_symlinks=False)


def _may_be_removed(info: os.stat_result) -> bool:
    """Return whether an entry without a copy is new, because the copy could have included it."""
    return info.st_uid == os.geteuid() and bool(info.st_mode & stat.S_IRUSR)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_directory(path)
    else:
        path.unlink(missing_ok=True)


def programs() -> dict[str, bytes]:
    """Return the program's files by their paths in a directory for `python DIRECTORY`. Blocks."""
    package = Path(__file__).parent
    modules = {
        f"agentsvc/plugin/{name}.py": (package / f"{name}.py").read_bytes() for name in _MODULES
    }
    return {"__main__.py": Path(__file__).read_bytes(), **modules}


def main(argv: list[str]) -> int:
    """Run the command in the arguments and return the exit code.

    The arguments are the command, the store's directory, and: for `copy`, or `take`, which also trims,
    `ID KEEP MAX_BYTES PATH...`; for `trim` nothing; for `restore` `ROLLBACK`.
    """
    command, directory, *more = argv[1:]
    store = Store(Path(directory))
    try:
        if command in ("copy", "take"):
            checkpoint_id, keep, max_bytes, *paths = more
            text = store.copy(checkpoint_id, paths, keep=int(keep), max_bytes=int(max_bytes))
            sys.stdout.write(text)
        if command in ("trim", "take"):
            store.trim()
        if command == "restore":
            store.put_back(more[0])
    except FilesRefused as exc:
        sys.stderr.write(f"{exc}\n")
        return REFUSED
    except OSError as exc:
        sys.stderr.write(f"The files cannot be copied: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
