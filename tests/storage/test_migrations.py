"""Opening: new files, older files, files that are not ours, files in use."""

import asyncio
import logging
import os
import sqlite3
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Final

import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.storage.database import Database
from agentsvc.storage.database_file import (
    APPLICATION_ID,
    MIGRATIONS,
    lock_data_dir,
    render_schema,
    write_schema,
)
from tests.troubles import eventually


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    directory = tmp_path / "migrations"
    directory.mkdir()
    (directory / "0001_initial.sql").write_text(
        "-- one; two\nCREATE TABLE things (\n    name TEXT -- a ';' in a comment\n) STRICT;\n"
    )
    return directory


def add_second(migrations: Path, last: str = "UPDATE things SET size = 7") -> None:
    (migrations / "0002_size.sql").write_text(
        f"ALTER TABLE things ADD COLUMN size INTEGER;\n\n{last}"
    )


async def make_old(db_path: Path, migrations: Path) -> None:
    db = await Database.open(db_path, migrations=migrations)
    await db.write(lambda tx: tx.run("INSERT INTO things (name) VALUES ('chair')"))
    await db.close()


def query(db_path: Path, sql: str) -> object:
    connection = sqlite3.connect(db_path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * 3996 + content[4096:])


def copies(db_path: Path) -> list[Path]:
    return sorted(db_path.parent.glob(f"{db_path.name}.v*"))


async def test_a_new_file_is_private_and_ours(db_path: Path) -> None:
    db = await Database.open(db_path)
    await db.close()

    assert mode_of(db_path) == 0o600
    assert query(db_path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    newest = len(list(MIGRATIONS.glob("[0-9]*.sql")))
    assert query(db_path, "PRAGMA user_version") == [(newest,)]
    assert copies(db_path) == []


async def test_a_database_open_keeps_its_side_files_private(db_path: Path) -> None:
    db = await Database.open(db_path)
    modes = {file.name: mode_of(file) for file in db_path.parent.iterdir()}
    await db.close()

    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


async def test_a_second_start_changes_nothing(db_path: Path) -> None:
    for _ in range(2):
        await (await Database.open(db_path)).close()
    before = content_of(db_path)
    await (await Database.open(db_path)).close()

    assert content_of(db_path) == before
    assert copies(db_path) == []


async def test_a_path_with_odd_characters_is_just_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#b%20 ü.db"
    db = await Database.open(path)
    await db.write(lambda tx: tx.run("UPDATE users SET role = 'admin'"))
    await db.close()
    assert path.exists()


async def test_an_older_file_is_copied_then_migrated_and_keeps_its_rows(
    db_path: Path, migrations: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_old(db_path, migrations)
    add_second(migrations)

    with caplog.at_level(logging.INFO):
        await (await Database.open(db_path, migrations=migrations)).close()

    assert query(db_path, "SELECT name, size FROM things") == [("chair", 7)]
    assert query(db_path, "PRAGMA user_version") == [(2,)]
    [copy] = copies(db_path)
    assert mode_of(copy) == 0o600
    assert query(copy, "SELECT * FROM things") == [("chair",)]
    assert query(copy, "PRAGMA user_version") == [(1,)]
    messages = {record.message: record.__dict__ for record in caplog.records}
    assert messages["database copied before its migration"]["path"] == str(copy)
    assert messages["database migrated"]["to_version"] == 2


_MIGRATION: Final = """
import pathlib, sys
from agentsvc.storage.database_file import prepare
prepare(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 5)
"""


async def test_a_kill_while_it_is_copied_leaves_nothing_that_looks_like_a_copy(
    db_path: Path, migrations: Path
) -> None:
    db = await Database.open(db_path, migrations=migrations)
    await db.write(lambda tx: tx.run("INSERT INTO things VALUES (hex(zeroblob(10000000)))"))
    await db.close()
    add_second(migrations)
    command = (sys.executable, "-c", _MIGRATION, db_path, migrations)
    program = await asyncio.create_subprocess_exec(*command)
    await eventually(lambda: any(db_path.parent.glob(f"{db_path.name}.*")))
    program.kill()
    await program.wait()
    await (await Database.open(db_path, migrations=migrations)).close()

    assert copies(db_path)
    for copy in copies(db_path):
        assert query(copy, "SELECT length(name) FROM things") == [(20_000_000,)]
    assert sorted(db_path.parent.glob(f"{db_path.name}?*")) == copies(db_path)


_HELD_MIGRATION: Final = """
import pathlib, sys
from agentsvc.storage import database_file
def hold(*_arguments):
    print("copied", flush=True)
    sys.stdin.read()
database_file._apply = hold
database_file.prepare(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 5)
"""


async def test_kills_while_it_is_migrated_leave_one_copy(db_path: Path, migrations: Path) -> None:
    await make_old(db_path, migrations)
    add_second(migrations)
    command = (sys.executable, "-c", _HELD_MIGRATION, db_path, migrations)
    for _ in range(2):
        program = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert program.stdout is not None
        assert await program.stdout.readline() == b"copied\n"
        program.kill()
        await program.wait()
    await (await Database.open(db_path, migrations=migrations)).close()

    [copy] = copies(db_path)
    assert query(copy, "SELECT * FROM things") == [("chair",)]
    assert sorted(db_path.parent.glob(f"{db_path.name}?*")) == [copy]


async def test_programs_that_start_together_migrate_once(db_path: Path, migrations: Path) -> None:
    await make_old(db_path, migrations)
    add_second(migrations)

    async def start() -> None:
        await (await Database.open(db_path, migrations=migrations, busy_seconds=50)).close()

    await asyncio.gather(*(start() for _ in range(4)))

    assert query(db_path, "SELECT name, size FROM things") == [("chair", 7)]
    assert len(copies(db_path)) == 1


async def test_a_database_that_is_migrated_meanwhile_is_not_migrated_again(
    db_path: Path, migrations: Path
) -> None:
    await make_old(db_path, migrations)
    add_second(migrations)
    # The lock file is read between the first look at the version and the transaction.
    lock = db_path.parent / "lock"
    os.mkfifo(lock)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(Database.open(db_path, migrations=migrations))
        with await asyncio.to_thread(lock.open, "wb"):
            lock.rename(lock.with_name("fifo"))
            await (await Database.open(db_path, migrations=migrations)).close()
    await second.result().close()

    assert query(db_path, "SELECT name, size FROM things") == [("chair", 7)]
    assert len(copies(db_path)) == 1


_HOLDER = """
import pathlib, sys
from agentsvc.storage.database_file import lock_data_dir
with lock_data_dir(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


async def test_the_database_of_a_server_that_runs_is_not_migrated_below_it(
    db_path: Path, migrations: Path
) -> None:
    await make_old(db_path, migrations)
    add_second(migrations)
    command = (sys.executable, "-c", _HOLDER, str(db_path.parent))
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert await server.stdout.readline() == b"held\n"
        with pytest.raises(StartFailed, match=f"process {server.pid}") as caught:
            await Database.open(db_path, migrations=migrations)
        assert "with this version" in caught.value.hint
        assert query(db_path, "PRAGMA user_version") == [(1,)]
    finally:
        server.stdin.close()
        await server.wait()

    with lock_data_dir(db_path.parent):
        await (await Database.open(db_path, migrations=migrations)).close()
    assert query(db_path, "PRAGMA user_version") == [(2,)]


async def test_a_migration_that_fails_changes_nothing(db_path: Path, migrations: Path) -> None:
    await make_old(db_path, migrations)
    add_second(migrations, "UPDATE absent SET size = 7;")

    with pytest.raises(StartFailed, match="no such table: absent") as caught:
        await Database.open(db_path, migrations=migrations)

    assert "report this" in caught.value.hint
    assert query(db_path, "SELECT * FROM things") == [("chair",)]
    assert query(db_path, "PRAGMA user_version") == [(1,)]
    # A service is started anew each time, and the copies of a large one would fill the disk.
    assert list(db_path.parent.glob(f"{db_path.name}?*")) == []


async def test_a_database_newer_than_the_program_is_refused_with_both_numbers(
    db_path: Path, migrations: Path
) -> None:
    add_second(migrations)
    await (await Database.open(db_path, migrations=migrations)).close()
    (migrations / "0002_size.sql").unlink()

    with pytest.raises(StartFailed, match="version 2, this program knows up to 1") as caught:
        await Database.open(db_path, migrations=migrations)

    assert str(db_path) in caught.value.message
    assert "newer release" in caught.value.hint


@pytest.fixture
def diary(db_path: Path) -> Path:
    db_path.write_text("dear diary, " * 100)
    return db_path


async def test_a_file_that_is_no_database_is_refused_and_left_alone(diary: Path) -> None:
    before = content_of(diary)

    with pytest.raises(StartFailed, match="file is not a database") as caught:
        await Database.open(diary)

    assert str(diary) in caught.value.message
    assert "restore a backup" in caught.value.hint
    assert content_of(diary) == before


async def test_a_damaged_database_is_refused(db_path: Path) -> None:
    await (await Database.open(db_path)).close()
    damage(db_path)

    with pytest.raises(StartFailed, match="malformed") as caught:
        await Database.open(db_path)
    assert "restore a backup" in caught.value.hint


async def test_the_database_of_another_program_is_refused_and_left_alone(db_path: Path) -> None:
    connection = sqlite3.connect(db_path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()

    with pytest.raises(StartFailed, match="belongs to another program") as caught:
        await Database.open(db_path)

    assert caught.value.hint
    assert query(db_path, "SELECT name FROM sqlite_schema") == [("bookmarks",)]


async def test_a_database_locked_by_another_program_stops_the_start(db_path: Path) -> None:
    other = sqlite3.connect(db_path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StartFailed, match="database is locked") as caught:
            await Database.open(db_path, busy_seconds=0.01)
    finally:
        other.close()
    assert "stop the other program" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent/agentsvc.db", "No such file or directory"), ("directory", "unable to open")],
)
async def test_a_place_where_no_file_can_be_made_stops_the_start(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(StartFailed) as caught:
        await Database.open(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message
    assert reason in caught.value.message


def test_the_schema_file_is_the_sum_of_the_migrations() -> None:
    committed = (MIGRATIONS / "schema.sql").read_text("utf-8")
    assert committed == render_schema(), "run agentsvc.storage.database.write_schema()"


def test_the_schema_file_alone_makes_the_same_database(tmp_path: Path) -> None:
    write_schema(tmp_path / "schema.sql")
    schema = (tmp_path / "schema.sql").read_text("utf-8")
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema)
    again = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    connection.close()
    assert all(sql in schema for (sql,) in again)
    assert len(again) == schema.count("\nCREATE ")


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = sorted(int(file.name[:4]) for file in MIGRATIONS.glob("[0-9]*.sql"))
    assert numbers == list(range(1, len(numbers) + 1))
