"""`agentsvc restore`: makes a data directory from a backup."""

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
"""The largest that these files may be."""
_KEPT: Final = (ARCHIVES, MASTER_KEY, INSTANCE_ID, DATABASE)
"""What a restore moves into the data directory; what a server looks for first comes last."""
_OF_ANOTHER: Final = tuple(f"{DATABASE}{end}" for end in ("-wal", "-shm", "-journal"))
"""What a killed server leaves beside its database, and SQLite takes for part of the one restored."""
_UNFINISHED: Final = re.compile(rf"{ARCHIVES}/[0-9a-f]{{32}}\.(part|draft)")
_MEMBERS_MAX: Final = 1_000_000
_RATIO_MAX: Final = 200
"""How much larger than the backup its files may be: events in JSON become a tenth or so."""
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
    help="The master key, where the backup was made without it.",
)
@where_options
def command(*, file: Path, key_file: Path | None, where: ConfigOptions) -> None:
    """Make a data directory from FILE, which `agentsvc backup` wrote.

    There must be no database in it yet. What is in FILE is checked, its database is brought up to
    date, and the master key is tried; where something is wrong, the directory stays as it was.
    Sandboxes of the former machine are shown as gone.
    """
    loaded = where.load()
    data_directory, limits = data_dir_of(loaded), loaded.config.archives
    bounds = UnpackLimits(unpacked_bytes=limits.max_unpacked_bytes, files=limits.max_files)
    if data_directory.database.exists():
        hint = (
            f"name another directory with --data-dir, or move it away with {', '.join(_OF_ANOTHER)}"
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
    """Make and lock a data directory; after a failure it is as it was before."""
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
    """Write the files of a backup to a new directory; raises CommandFailed for any other file.

    Nothing but plain files with the names that backups have is written.
    """
    free = shutil.disk_usage(directory).free - _ROOM_LEFT_BYTES
    room = min(free, file.stat().st_size * _RATIO_MAX + _RATIO_FREE_BYTES)
    try:
        (directory / ARCHIVES).mkdir(0o700)
        with file.open("rb") as opened:
            _write_members(TarStream(Gunzip(opened)), directory, room)
        msgspec.json.decode((directory / ABOUT).read_bytes(), type=_About)
    except (OSError, ValueError, RecursionError) as exc:
        raise CommandFailed(
            f"this is no backup of agentsvc, or it is damaged: {file}", str(exc)
        ) from exc


def _write_members(archive: TarStream, directory: Path, room: int) -> None:
    """Write the files of a backup to a directory that only this process writes to.

    Raises BadTar for anything else, and for more bytes than there is room for.
    """
    names: set[str] = set()
    for member in archive:
        name = member.name
        if name in names or len(names) >= _MEMBERS_MAX:
            raise BadTar("a file is in it twice, or there are too many")
        names.add(name)
        if member.kind is MemberKind.DIRECTORY and name.rstrip("/") == ARCHIVES:
            continue
        if member.kind is not MemberKind.FILE or member.segments is not None:
            raise BadTar("there is something in it that is no plain file")
        if member.size > min(room, _SMALL.get(name, room)):
            raise BadTar("a file in it is too large for what it is, or for the disk")
        room -= member.size
        if name in (*_SMALL, DATABASE) or ARCHIVE.fullmatch(name):
            _write(directory / name, archive.parts(member))
        elif not _UNFINISHED.fullmatch(name):
            raise BadTar("a file has a name that none in a backup has")


def _write(file: Path, parts: Iterable[bytes]) -> None:
    """Make a file, which must not be there yet."""
    with os.fdopen(create_private(file), "wb") as out:
        out.writelines(parts)
        out.flush()
        os.fsync(out.fileno())


def _check(
    file: Path, restored: DataDirectory, bounds: UnpackLimits, key_file: Path | None
) -> None:
    """Open what was restored as a server does; raises CommandFailed or StartFailed."""
    if not restored.database.is_file() or not restored.instance_id.is_file():
        raise CommandFailed(f"the backup is not whole: {file}")
    if problems := check_file(restored.database) or check_schema(restored.database):
        raise CommandFailed(f"the database in the backup cannot be used: {problems[0]}")
    if not restored.master_key.exists():
        raise CommandFailed(
            "the backup was made without the master key, and what it has sealed cannot be read",
            "name the key with --key-file",
        )
    for archive in sorted(restored.archives.iterdir()):
        try:
            check_archive(archive, bounds)
        except ArchiveRefused as exc:
            raise CommandFailed(
                f"a saved workspace in the backup is not one of agentsvc: {archive.name}",
                f"{exc.message}; `archives` in the configuration says how large they may be",
            ) from exc
    try:
        asyncio.run(_open(restored))
    except StartFailed as exc:
        # Where it is unpacked is gone when this is read.
        named = str(key_file or f"{MASTER_KEY} in {file}")
        message = exc.message.replace(str(restored.master_key), named)
        is_key = message != exc.message
        hint = "name the one of that installation with --key-file" if is_key else exc.hint
        raise CommandFailed(message, hint) from exc


async def _open(restored: DataDirectory) -> None:
    async with await Installation.open(restored) as installation:
        installation.read_id()
        await installation.database.write(_start_nothing)


async def _start_nothing(tx: Transaction) -> None:
    """Give up what was being started: what the backup says of it would be made on this machine."""
    await SandboxTable.give_up_starts(tx)
    await WarmPoolTable.retire_all(tx)


def _move_in(restored: Path, there: Path) -> None:
    """Move what was restored into the data directory: all of it, or nothing."""
    names = [name for name in _KEPT if (restored / name).exists()]
    # An empty directory is no loss.
    existing = [name for name in (*names, *_OF_ANOTHER) if _is_taken(there / name)]
    if existing:
        hint = "name another directory with --data-dir, or move that away"
        raise CommandFailed(f"there is something in {there} already: {', '.join(existing)}", hint)
    with contextlib.ExitStack() as undo:
        for name in names:
            (restored / name).rename(there / name)
            undo.callback((there / name).rename, restored / name)
        undo.pop_all()


def _is_taken(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return os.path.lexists(path)
