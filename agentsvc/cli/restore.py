"""`agentsvc restore`: makes a data directory from a backup."""

import asyncio
import json
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.backup import ABOUT, ARCHIVES, DATABASE, INSTANCE_ID, MASTER_KEY
from agentsvc.cli.options import config_option, data_dir_of, data_dir_option, example, load_config
from agentsvc.datadir import DataDir
from agentsvc.dbfile import check_file, lock_data_dir
from agentsvc.installation import Installation

_FILES: Final = (ABOUT, DATABASE, INSTANCE_ID, MASTER_KEY)


@click.command(
    "restore",
    epilog=example("agentsvc restore agentsvc-monday.tar.gz --data-dir /srv/agents"),
)
@click.argument(
    "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE"
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The master key, where the backup was made without it.",
)
@data_dir_option
@config_option
def command(
    *, file: Path, key_file: Path | None, data_dir: str | None, config_file: Path | None
) -> None:
    """Make a data directory from FILE, which `agentsvc backup` wrote.

    There must be no database in it yet. What is in FILE is checked, its database is brought up to
    date, and the master key is tried. Sandboxes of the former machine are shown as gone.
    """
    places = data_dir_of(load_config(config_file, server__data_dir=data_dir))
    if places.database.exists():
        raise CommandFailed(
            f"there is a database in {places.path} already",
            "name another directory with --data-dir, or move that database away",
        )
    places.prepare()
    with (
        lock_data_dir(places.path),
        tempfile.TemporaryDirectory(dir=places.path, prefix="restore-") as scratch,
    ):
        restored = DataDir(path=Path(scratch))
        unpack(file, restored.path)
        if key_file is not None:
            shutil.copyfile(key_file, restored.master_key)
            restored.master_key.chmod(0o600)
        _check(file, restored)
        for path in sorted(restored.path.iterdir()):
            if path.name != ABOUT and path.suffix not in (".db-wal", ".db-shm"):
                path.replace(places.path / path.name)
    click.echo(f"restored to {places.path}; start it with `agentsvc serve`", err=True)


def unpack(file: Path, directory: Path) -> None:
    """Write the files of a backup to a directory; raises CommandFailed for any other file."""
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for member in archive:
                first = PurePosixPath(member.name).parts[:1]
                if member.name not in _FILES and first != (ARCHIVES,):
                    raise CommandFailed(f"this is no backup of agentsvc: {file}")
                archive.extract(member, directory, filter="data")
        json.loads((directory / ABOUT).read_bytes())
    except (OSError, EOFError, ValueError, tarfile.TarError) as exc:
        raise CommandFailed(f"this is no backup of agentsvc, or it is damaged: {file}") from exc
    for name in _FILES:
        if (directory / name).exists():
            (directory / name).chmod(0o600)


def _check(file: Path, restored: DataDir) -> None:
    """Open what was restored as a server does; raises CommandFailed or StartFailed."""
    if not restored.database.is_file() or not restored.instance_id.is_file():
        raise CommandFailed(f"the backup is not whole: {file}")
    if problems := check_file(restored.database):
        raise CommandFailed(f"the database in the backup cannot be used: {problems[0]}")
    if not restored.master_key.exists():
        raise CommandFailed(
            "the backup was made without the master key, and what it has sealed cannot be read",
            "name the key with --key-file",
        )
    asyncio.run(_open(restored))


async def _open(restored: DataDir) -> None:
    installation = await Installation.open(restored)
    await installation.close()
