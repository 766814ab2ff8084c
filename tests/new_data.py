"""A data directory as the start of a server leaves it: its database made, and empty."""

import asyncio
import functools
import tempfile
from pathlib import Path

from agentsvc.accounts.keys import KeyRing
from agentsvc.base.values import Secret
from agentsvc.cli.serve import ensure_first_key
from agentsvc.config.data_directory import DataDirectory
from agentsvc.extension.server import Extension
from agentsvc.extension.tables import migrate
from agentsvc.storage.database import Database
from agentsvc.storage.installation import Installation
from tests.plugin_loading import load_plugins


def lay_database(data_dir: Path) -> None:
    """Make a data directory with a new database; leave one alone that is there. Blocks."""
    if data_dir.exists():
        return
    data_dir.mkdir(mode=0o700, parents=True)
    write_database(DataDirectory(path=data_dir).database)


def write_database(file: Path) -> None:
    """Write a new database to a file. Blocks."""
    file.touch(mode=0o600)
    file.write_bytes(_new_database())


async def make_first_key(data_directory: DataDirectory) -> Secret | None:
    """Open an installation, and make the first admin and their key as a start does."""
    async with await Installation.open(data_directory) as installation:
        return await ensure_first_key(KeyRing(installation.database), None)


@functools.cache
def _new_database() -> bytes:
    """Return the bytes of a database that went through all migrations, once for all tests.

    Those of the plugins that come with the server are among them, whether they are used or not.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "new.db"
        asyncio.run(_make(file))
        assert [found.name for found in file.parent.iterdir()] == [file.name]
        return file.read_bytes()


async def _make(file: Path) -> None:
    database = await Database.open(file)
    try:
        for name, kind in load_plugins().extensions():
            assert issubclass(kind, Extension)
            await migrate(database, name, kind.migrations)
    finally:
        await database.close()
