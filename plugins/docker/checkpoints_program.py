"""Keeps checkpoints of a sandbox's files, and puts those of one back; runs in the sandbox, by its Python.

Beside it are the modules that it imports, and nothing else of this server. Checkpoints are kept by a
process with a group that no other one has, so that the agent does not reach them; they are put back
before anything else runs, by a process with the agent's own rights.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import sys
from pathlib import Path
from threading import Event
from typing import Final
from urllib.parse import quote, unquote

from agentsvc.plugin import (
    FilesRefused,
    checkpoint_id_of,
    is_unchanged,
    kept_checkpoints,
    remove_directory,
    take_checkpoint,
)

REFUSED: Final = 3
"""The exit code for files of which no checkpoint is kept; what is written says why."""

_RIGHTS: Final = 0o777


class Store:
    """The checkpoints of a sandbox, each a directory with one for each directory that was copied."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last = directory / "restored"
        """Says which rollback was done last, so that none is done twice."""

    def take(self, checkpoint_id: str, paths: list[str], *, keep: int, most_bytes: int) -> None:
        """Keep a checkpoint of what there is of some directories; raises FilesRefused."""
        directories = {quote(path, safe=""): Path(path) for path in paths if Path(path).is_dir()}
        with (self._directory / "lock").open("w") as lock:
            # One that a server has begun which was killed goes on, and would be disturbed.
            fcntl.flock(lock, fcntl.LOCK_EX)
            take_checkpoint(
                self._directory,
                checkpoint_id,
                directories,
                keep=keep,
                most_bytes=most_bytes,
                broken_off=Event(),
            )
            known = {checkpoint_id_of(one): one.begun for one in kept_checkpoints(self._directory)}
            new = self._directory / "index.new"
            new.write_text(json.dumps(known))
            new.replace(self._directory / "index")

    def put_back(self, rollback: str) -> None:
        """Have all files be those of a checkpoint, unless that was done; `rollback` is `ID CHECKPOINT`."""
        with contextlib.suppress(FileNotFoundError):
            if self._last.read_text() == rollback:
                return
        wanted = rollback.partition(" ")[2]
        for copy in kept_checkpoints(self._directory):
            if checkpoint_id_of(copy) == wanted:
                for directory in copy.path.iterdir():
                    _put_back(Path(unquote(directory.name)), directory, copy.begun)
                break
        else:
            raise FilesRefused("The checkpoint to which the sandbox is to go back is gone")
        os.sync()
        self._last.write_text(rollback)


def _put_back(directory: Path, copy: Path, begun: int) -> None:
    """Have a directory be what its copy is; what has not changed since, and what is others', stays."""
    with contextlib.suppress(OSError):  # it is another user's
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
        seen = path.lstat()
    except FileNotFoundError:
        seen = None
    if stat.S_ISDIR(kept.st_mode):
        if seen is None or not stat.S_ISDIR(seen.st_mode):
            _remove(path)
            path.mkdir()
        _put_back(path, source, begun)
    elif seen is None or not is_unchanged(seen, kept, begun):
        _remove(path)
        shutil.copy2(source, path, follow_symlinks=False)


def _may_be_removed(seen: os.stat_result) -> bool:
    """Say whether something that is in no copy is so because it is new."""
    return seen.st_uid == os.geteuid() and bool(seen.st_mode & stat.S_IRUSR)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_directory(path)
    else:
        path.unlink(missing_ok=True)


def main(argv: list[str]) -> int:
    """Do what the arguments say and return the exit code; `take ID KEEP MOST_BYTES PATH...`, or `restore`."""
    home = Path(argv[0]).parent
    store = Store(home / "checkpoints")
    try:
        if argv[1] == "take":
            checkpoint_id, keep, most_bytes, *paths = argv[2:]
            store.take(checkpoint_id, paths, keep=int(keep), most_bytes=int(most_bytes))
        elif (note := home / "rollback").exists() and (rollback := note.read_text()):
            store.put_back(rollback)
    except FilesRefused as exc:
        sys.stderr.write(f"{exc}\n")
        return REFUSED
    except OSError as exc:
        sys.stderr.write(f"The files cannot be copied: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
