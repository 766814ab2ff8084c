"""Backups of an open database: whole, private, and never in place of something else."""

from pathlib import Path

import pytest

from agentsvc.base.errors import CapacityExceeded, Conflict
from agentsvc.storage.database import Database
from tests.storage.test_database import names_in
from tests.storage.users import adding, user_ids


async def test_a_backup_is_whole_private_and_opens(db: Database, tmp_path: Path) -> None:
    await db.write(adding("a", "b"))
    copy = tmp_path / "copy.db"

    await db.backup(copy)
    await db.write(adding("c"))

    assert copy.stat().st_mode & 0o777 == 0o600
    other = await Database.open(copy)
    assert await user_ids(other) == ["a", "b"]
    await other.close()


async def test_a_backup_replaces_no_file(db: Database, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    with pytest.raises(Conflict, match="exists already"):
        await db.backup(copy)
    assert copy.read_text() == "precious"


def lose(db_path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file = db_path.with_name(db_path.name + suffix)
        file.rename(file.with_name("lost" + suffix))


async def test_a_backup_that_fails_leaves_nothing_behind(
    db: Database, db_path: Path, tmp_path: Path
) -> None:
    lose(db_path)
    copy = tmp_path / "copy.db"
    with pytest.raises(CapacityExceeded, match="cannot be written"):
        await db.backup(copy)
    assert names_in(tmp_path) == ["lost", "lost-shm", "lost-wal"]


async def test_a_backup_into_no_directory_says_so(db: Database, tmp_path: Path) -> None:
    with pytest.raises(CapacityExceeded, match="No such file or directory"):
        await db.backup(tmp_path / "absent" / "copy.db")
