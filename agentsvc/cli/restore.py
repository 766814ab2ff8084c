"""`agentsvc restore`: creates a data directory from a backup."""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from agentsvc.base import ArchiveRefused, StartFailed, create_private, replace_private
from agentsvc.cli import CommandFailed
from agentsvc.cli.backup import ABOUT, ARCHIVE, ARCHIVES, DATABASE, INSTANCE_ID, MASTER_KEY
from agentsvc.cli.options import (
    EXISTING_FILE,
    ConfigOptions,
    data_dir_of,
    example,
    read_given,
    where_options,
)
from agentsvc.config import DataDirectory
from agentsvc.conversations import UnpackLimits
from agentsvc.conversations import check as check_archive
from agentsvc.sandboxes import SandboxTable, WarmPoolTable
from agentsvc.storage import (
    BadTar,
    Gunzip,
    Installation,
    MemberKind,
    TarStream,
    Transaction,
    check_file,
    check_schema,
    lock_data_dir,
)

_SMALL: Final = {ABOUT: 64 * 1024, INSTANCE_ID: 1024, MASTER_KEY: 4096}
"""Maximum sizes of these files."""
_RESTORED: Final = (ARCHIVES, MASTER_KEY, INSTANCE_ID, DATABASE)
"""What a restore moves into the data directory; the database, which a server opens first, last."""
_LEFTOVERS: Final = tuple(f"{DATABASE}{end}" for end in ("-wal", "-shm", "-journal"))
"""Leftovers of a killed server, which SQLite would apply to the restored database."""
_UNFINISHED: Final = re.compile(rf"{ARCHIVES}/[0-9a-f]{{32}}\.(part|draft)")
_MEMBERS_MAX: Final = 1_000_000
_RATIO_MAX: Final = 200
"""Maximum ratio of file sizes to the backup; events in JSON compress to about a tenth."""
_RATIO_FREE_BYTES: Final = 256 * 1024**2
_ROOM_LEFT_BYTES: Final = 64 * 1024**2


class _About(msgspec.Struct, frozen=True):
    agentsvc: str


@click.command(
    "restore", epilog=example("agentsvc restore agentsvc-monday.tar.gz --data-dir /srv/agents")
)
@click.argument("file", type=EXISTING_FILE, metavar="FILE")
@click.option(
    "--key-file",
    type=EXISTING_FILE,
    metavar="FILE",
    help="The master key, if the backup was made without it.",
)
@where_options
def command(*, file: Path, key_file: Path | None, where: ConfigOptions) -> None:
    """Create a data directory from FILE, written by `agentsvc backup`.

    The directory must not contain a database. FILE is verified, its database is migrated, and the
    master key is tested; on any error the directory stays unchanged. Sandboxes of the original
    machine are shown as gone.
    """
    loaded = where.load()
    data_directory, limits = data_dir_of(loaded), loaded.config.archives
    bounds = UnpackLimits(unpacked_bytes=limits.max_unpacked_bytes, files=limits.max_files)
    if data_directory.database.exists():
        hint = (
            "choose another directory with --data-dir,"
            f" or move it away with {', '.join(_LEFTOVERS)}"
        )
        raise CommandFailed(f"there is a database in {data_directory.path} already", hint)
    with (
        _prepared(data_directory),
        tempfile.TemporaryDirectory(dir=data_directory.path, prefix="restore-") as scratch,
    ):
        restored = DataDirectory(path=Path(scratch))
        unpack(file, restored.path)
        if key_file is not None:
            replace_private(restored.master_key, read_given(key_file))
        _check(file, restored, bounds, key_file)
        _move_in(restored.path, data_directory.path)
    start = ["agentsvc", "serve"]
    start += ["--data-dir", str(data_directory.path)] if where.data_dir else []
    start += ["--config", str(where.config_file)] if where.config_file else []
    click.echo(f"restored to {data_directory.path}; start it with `{shlex.join(start)}`", err=True)


@contextlib.contextmanager
def _prepared(data_directory: DataDirectory) -> Iterator[None]:
    """Create and lock a data directory; undo all changes after a failure."""
    made = [
        path for path in (data_directory.path, *data_directory.path.parents) if not path.exists()
    ]
    mode = None if made else stat.S_IMODE(data_directory.path.stat().st_mode)
    lock = data_directory.path / "lock"
    had_lock = lock.exists()
    with contextlib.ExitStack() as undo:
        for path in reversed(made):
            undo.callback(_remove_empty, path)
        if mode is not None:
            undo.callback(data_directory.path.chmod, mode)
        data_directory.prepare()
        with lock_data_dir(data_directory.path):
            if not had_lock:
                undo.callback(lock.unlink)
            yield
            undo.pop_all()


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def unpack(file: Path, directory: Path) -> None:
    """Extract a backup into a new directory; raises CommandFailed if it is no valid backup.

    Only regular files with the names of a backup are written.
    """
    free = shutil.disk_usage(directory).free - _ROOM_LEFT_BYTES
    room = min(free, file.stat().st_size * _RATIO_MAX + _RATIO_FREE_BYTES)
    try:
        (directory / ARCHIVES).mkdir(0o700)
        with file.open("rb") as opened:
            _write_members(TarStream(Gunzip(opened)), directory, room)
        msgspec.json.decode((directory / ABOUT).read_bytes(), type=_About)
    except (OSError, ValueError, RecursionError) as exc:
        raise CommandFailed(f"not a backup of agentsvc, or damaged: {file}", str(exc)) from exc


def _write_members(archive: TarStream, directory: Path, room: int) -> None:
    """Extract the files of a backup into a directory that only this process writes to.

    Raises BadTar for any other entry, and for more bytes than `room`.
    """
    names: set[str] = set()
    for member in archive:
        name = member.name
        if name in names or len(names) >= _MEMBERS_MAX:
            raise BadTar("it contains a file twice, or too many files")
        names.add(name)
        if member.kind is MemberKind.DIRECTORY and name.rstrip("/") == ARCHIVES:
            continue
        if member.kind is not MemberKind.FILE or member.segments is not None:
            raise BadTar("it contains something that is not a regular file")
        if member.size > min(room, _SMALL.get(name, room)):
            raise BadTar("it contains a file that is too large, or larger than the free disk space")
        room -= member.size
        if name in (*_SMALL, DATABASE) or ARCHIVE.fullmatch(name):
            _write(directory / name, archive.parts(member))
        elif not _UNFINISHED.fullmatch(name):
            raise BadTar("it contains a file whose name is not one of a backup")


def _write(file: Path, parts: Iterable[bytes]) -> None:
    """Write a new file and flush it to disk."""
    with os.fdopen(create_private(file), "wb") as out:
        out.writelines(parts)
        out.flush()
        os.fsync(out.fileno())


def _check(
    file: Path, restored: DataDirectory, bounds: UnpackLimits, key_file: Path | None
) -> None:
    """Verify and migrate the restored files, as a server does; raises CommandFailed or StartFailed."""
    if not restored.database.is_file() or not restored.instance_id.is_file():
        raise CommandFailed(f"the backup is incomplete: {file}")
    if problems := check_file(restored.database) or check_schema(restored.database):
        raise CommandFailed(f"the database in the backup cannot be used: {problems[0]}")
    if not restored.master_key.exists():
        raise CommandFailed(
            "the backup was made without the master key, so its secrets cannot be read",
            "pass the key with --key-file",
        )
    for archive in sorted(restored.archives.iterdir()):
        try:
            check_archive(archive, bounds)
        except ArchiveRefused as exc:
            raise CommandFailed(
                f"the backup contains an invalid saved workspace: {archive.name}",
                f"{exc.message}; the size limits are in `archives` of the configuration",
            ) from exc
    try:
        asyncio.run(_open(restored))
    except StartFailed as exc:
        # The temporary directory is deleted before the user reads the message.
        named = str(key_file or f"{MASTER_KEY} in {file}")
        message = exc.message.replace(str(restored.master_key), named)
        is_key = message != exc.message
        hint = "pass the key of that installation with --key-file" if is_key else exc.hint
        raise CommandFailed(message, hint) from exc


async def _open(restored: DataDirectory) -> None:
    async with await Installation.open(restored) as installation:
        installation.read_id()
        await installation.database.write(_cancel_starts)


async def _cancel_starts(tx: Transaction) -> None:
    """Cancel pending starts of the backup, which would create sandboxes on this machine."""
    await SandboxTable.cancel_unstarted(tx)
    await WarmPoolTable.retire_all(tx)


def _move_in(restored: Path, there: Path) -> None:
    """Move the restored files into the data directory: all of them, or none."""
    names = [name for name in _RESTORED if (restored / name).exists()]
    # An empty directory may be replaced.
    existing = [name for name in (*names, *_LEFTOVERS) if _is_taken(there / name)]
    if existing:
        hint = "choose another directory with --data-dir, or move them away"
        raise CommandFailed(f"files exist in {there} already: {', '.join(existing)}", hint)
    with contextlib.ExitStack() as undo:
        for name in names:
            (restored / name).rename(there / name)
            undo.callback((there / name).rename, restored / name)
        undo.pop_all()


def _is_taken(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)
