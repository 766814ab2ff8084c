"""Checkpoints of directories: copies in a store directory that share unchanged files.

Standard library only, because it also runs inside sandboxes.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import Final

from agentsvc.plugin.copying import Copy, FilesRefused, copy_running
from agentsvc.plugin.removal import remove_directory

_PART: Final = "part"
_KIBIBYTE: Final = 1024


def take_checkpoint(
    store: Path,
    checkpoint_id: str,
    directories: Mapping[str, Path],
    *,
    keep: int,
    max_bytes: int,
    broken_off: Event,
) -> None:
    """Take a checkpoint of directories that may change meanwhile, and remove excess ones. Blocks.

    Raises FilesRefused if the files take more than `max_bytes` or half of the free space,
    InterruptedError when `broken_off` is set.
    """
    copy_checkpoint(store, checkpoint_id, directories, max_bytes=max_bytes, broken_off=broken_off)
    for one in excess_checkpoints(store, keep=keep, max_bytes=max_bytes):
        remove_checkpoint(store, one)


def copy_checkpoint(
    store: Path,
    checkpoint_id: str,
    directories: Mapping[str, Path],
    *,
    max_bytes: int,
    broken_off: Event,
) -> None:
    """Take a checkpoint as `take_checkpoint` does, without removing any. Blocks."""
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    free = shutil.disk_usage(store).free
    if (size := disk_usage(directories.values())) > min(max_bytes, free // 2):
        raise FilesRefused(f"The files take {size} bytes, over {max_bytes} or half of {free} free")
    part = store / _PART
    remove_directory(part)
    part.mkdir(mode=0o700)
    found = kept_checkpoints(store)
    copy = copy_running(directories, part, broken_off, found[-1] if found else None)
    # The newest sorts last, even if the clock was set back.
    begun = max(copy.begun, found[-1].begun + 1) if found else copy.begun
    copy.path.rename(store / f"{begun}-{checkpoint_id}")
    remove_directory(part)


def excess_checkpoints(store: Path, *, keep: int, max_bytes: int) -> list[Copy]:
    """Return the oldest checkpoints, over the limits of number or disk, oldest first."""
    found, excess = kept_checkpoints(store), []
    while len(found) > keep or (
        len(found) > 1 and disk_usage(one.path for one in found) > max_bytes
    ):
        excess.append(found.pop(0))
    return excess


def remove_checkpoint(store: Path, checkpoint: Copy) -> None:
    """Remove a checkpoint atomically: one that is partly removed is no longer listed."""
    part = store / _PART
    remove_directory(part)
    checkpoint.path.rename(part)
    remove_directory(part)


def kept_checkpoints(store: Path) -> list[Copy]:
    """Return the checkpoints in a store, oldest first; empty if the directory does not exist."""
    with contextlib.suppress(FileNotFoundError):
        paths = sorted(path for path in store.iterdir() if "-" in path.name)
        return [Copy(path, int(path.name.partition("-")[0])) for path in paths]
    return []


def checkpoint_id_of(checkpoint: Copy) -> str:
    """Return the id of a checkpoint."""
    return checkpoint.path.name.partition("-")[2]


def disk_usage(paths: Iterable[Path]) -> int:
    """Return the disk usage of directories together, in bytes; unreadable files are not counted."""
    argv = ("du", "-skc", "--", *map(str, paths))
    # `du` fails if a file was removed meanwhile, and reports the size of the others all the same.
    ended = subprocess.run(argv, capture_output=True, check=False)  # noqa: S603  # a program of the system
    lines = ended.stdout.splitlines()
    if not lines:
        raise OSError("`du` does not say how large the files are")
    return int(lines[-1].split()[0]) * _KIBIBYTE
