"""`agentsvc backup`: copies an installation into one file, also while the server runs."""

import contextlib
import io
import json
import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import click

from agentsvc import __version__
from agentsvc.base import create_private, now
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import FILE, ConfigOptions, example, where_options
from agentsvc.config import DataDirectory
from agentsvc.storage import check_file, check_master_key, copy_running

DATABASE: Final = "agentsvc.db"
MASTER_KEY: Final = "master.key"
INSTANCE_ID: Final = "instance-id"
ARCHIVES: Final = "archives"
ARCHIVE: Final = re.compile(rf"{ARCHIVES}/[0-9a-f]{{32}}\.tar\.zst")
"""Name of a saved workspace in a backup."""
ABOUT: Final = "about.json"
_IN_USE: Final = re.compile(
    rf"{DATABASE}(-wal|-shm|\.v.*)?|{MASTER_KEY}(\.next|\.former.*)?|{INSTANCE_ID}|lock|url|(first|command)-key"
    rf"|callback-addresses|{ARCHIVE.pattern}|backends/.*"
)


@click.command("backup", epilog=example("agentsvc backup /mnt/backups/agentsvc-monday.tar.gz"))
@click.argument("file", type=FILE, metavar="FILE")
@click.option(
    "--without-key",
    is_flag=True,
    help="Omit the master key; a restore then needs it from elsewhere.",
)
@click.option("--archives", is_flag=True, help="Include saved workspaces, which may be large.")
@where_options
def command(*, file: Path, without_key: bool, archives: bool, where: ConfigOptions) -> None:
    """Write the database, the installation id and the master key to FILE, a tar.gz.

    Works while the server runs: the copy is a consistent snapshot, and is verified before it is kept.
    Unless the master key is omitted, anyone who can read FILE can read all stored secrets. Files in
    sandboxes are not included.
    """
    place = Path(os.path.realpath(file))
    is_other = place.is_symlink() or (file.exists() and not file.is_file())
    if str(file) in (".", "-") or is_other:
        # Renaming onto a device or a pipe would replace it: `/dev/stdout` for every program. After
        # `realpath`, only a link in a loop is still a link.
        more = "; for a file of this name give its full path" if str(file) == "-" else ""
        raise click.UsageError(f"a backup must be a regular file: `{file}` is not{more}")
    data_directory = where.data_directory()
    if _IN_USE.fullmatch(os.path.relpath(place, os.path.realpath(data_directory.path))):
        raise click.UsageError(f"a backup must not replace a file of the installation: `{file}`")
    try:
        scratch_directory = tempfile.TemporaryDirectory(dir=place.parent)
    except OSError as exc:
        # Report the path that the user gave, not that of the temporary directory.
        raise CommandFailed(f"the backup cannot be written: {exc.strerror}: {file}") from exc
    try:
        with scratch_directory as scratch:
            copy, draft = Path(scratch, DATABASE), Path(scratch, "draft")
            copy_running(data_directory.database, copy)
            if problems := check_file(copy):
                hint = "run `agentsvc db check`; restore an older backup if it reports the same"
                raise CommandFailed(f"the database cannot be used: {problems[0]}", hint)
            if not without_key:
                check_master_key(data_directory, copy)
            with os.fdopen(create_private(draft), "wb") as opened:
                _pack(opened, copy, data_directory, has_key=not without_key, has_archives=archives)
                opened.flush()
                os.fsync(opened.fileno())
            draft.replace(place)
    except OSError as exc:
        raise CommandFailed(f"the backup cannot be written: {exc}") from exc
    key = "without" if without_key else "with"
    click.echo(f"written {key} the master key, {file.stat().st_size} bytes: {file}", err=True)


def _pack(
    opened: io.BufferedWriter,
    copy: Path,
    data_directory: DataDirectory,
    *,
    has_key: bool,
    has_archives: bool,
) -> None:
    about = {"agentsvc": __version__, "at": now().isoformat(), "has_key": has_key}
    text = json.dumps(about).encode()
    # Follow links, because `restore` accepts only regular files.
    with tarfile.open(fileobj=opened, mode="w:gz", dereference=True) as archive:
        head = tarfile.TarInfo(ABOUT)
        head.size = len(text)
        archive.addfile(head, io.BytesIO(text))
        # Right after its check, because it may change while the database is written.
        if has_key:
            archive.add(data_directory.master_key, MASTER_KEY)
        archive.add(data_directory.instance_id, INSTANCE_ID)
        archive.add(copy, DATABASE)
        if has_archives and data_directory.archives.is_dir():
            archive.add(data_directory.archives, ARCHIVES, recursive=False)
            for saved in sorted(data_directory.archives.iterdir()):
                name = f"{ARCHIVES}/{saved.name}"
                # Skip unfinished workspaces, and those that the server deletes meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if ARCHIVE.fullmatch(name):
                        archive.add(saved, name)
