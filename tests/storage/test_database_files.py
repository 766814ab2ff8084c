"""The database as a file: copied while it is written, checked, written anew."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentsvc.base.errors import BadRequest, StartFailed
from agentsvc.base.values import new_id
from agentsvc.storage import database_file
from agentsvc.storage.database import Database, Transaction
from agentsvc.storage.database_file import (
    check_file,
    check_schema,
    copy_running,
    read_foreign,
    read_installation,
    vacuum_file,
)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    file = tmp_path / "foreign.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE things (id)")
    return file


async def test_a_copy_of_a_database_that_is_written_to_is_whole(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "a.db")
    is_over = asyncio.Event()

    async def write() -> int:
        count = 0
        while not is_over.is_set():
            await database.write(_add_two)
            count += 2
        return count

    writing = asyncio.gather(write())
    try:
        for number in range(5):
            copy = tmp_path / f"copy{number}.db"
            await asyncio.to_thread(copy_running, tmp_path / "a.db", copy)
            assert await asyncio.to_thread(check_file, copy) == []
            assert copy.stat().st_mode & 0o777 == 0o600
            assert await asyncio.to_thread(_rows, copy) % 2 == 0
    finally:
        is_over.set()
        assert sum(await writing) > 0
        await database.close()


def test_a_database_from_before_it_was_recorded_says_nothing_of_its_installation(
    foreign: Path,
) -> None:
    assert read_installation(foreign) == {}


async def test_a_copy_is_of_one_moment_and_can_be_stopped_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await Database.open(tmp_path / "a.db")).close()
    between: list[Callable[[], object]] = []

    class Watched(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **options: Any) -> None:
            go_on = options.pop("progress")

            def told(*args: int) -> None:
                go_on(*args)
                between[0]()

            super().backup(target, **options, progress=told)

    monkeypatch.setattr(database_file, "_COPY_PAGES", 1)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Watched))
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as writer:
        rows = _rows(tmp_path / "a.db")
        insert = "INSERT INTO installation VALUES (hex(randomblob(9)), '')"
        between.append(lambda: writer.execute(insert))
        copy_running(tmp_path / "a.db", tmp_path / "copy.db")
        assert _rows(tmp_path / "copy.db") == rows
        assert _rows(tmp_path / "a.db") > rows + 1
    between[0] = partial(next, iter(()))
    with pytest.raises(StopIteration):
        copy_running(tmp_path / "a.db", tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


async def _add_two(tx: Transaction) -> None:
    for _ in range(2):
        await tx.run("INSERT INTO installation VALUES (:name, '')", {"name": new_id()})


def _rows(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM installation").fetchone()[0])


def test_a_database_of_another_program_is_neither_copied_nor_written(
    foreign: Path, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed, match="another program"):
        copy_running(foreign, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    with pytest.raises(StartFailed, match="another program"):
        vacuum_file(foreign)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_bytes(b"no database" * 1000)
    assert check_file(file) == ["it cannot be read: file is not a database"]
    assert check_schema(file) == ["it cannot be read: file is not a database"]


async def test_a_newer_database_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    await (await Database.open(file)).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 9999")
    [problem] = check_file(file)
    assert problem.startswith("it has version 9999, this program knows up to ")


def test_a_table_of_another_program_is_read(foreign: Path) -> None:
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("INSERT INTO things VALUES ('a'), (CAST(x'ff' AS TEXT)), (NULL)")
        connection.commit()
    rows = read_foreign(foreign, "things", max_rows=10)
    assert rows == [{"id": "a"}, {"id": "\ufffd"}, {"id": None}]
    assert len(read_foreign(foreign, "things", max_rows=2)) == 2
    assert read_foreign(foreign, "others", max_rows=2) == []


def test_a_table_of_another_program_that_is_broken_or_makes_up_too_much_is_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "large.db"
    with closing(sqlite3.connect(file)) as connection:
        large = "hex(zeroblob(20000000))"
        connection.execute(f"CREATE TABLE things (id, n GENERATED ALWAYS AS ({large}))")
        connection.execute("INSERT INTO things VALUES (1)")
        connection.commit()
    with pytest.raises(BadRequest, match="too big"):
        read_foreign(file, "things", max_rows=10)
    file.write_bytes(b"no database")
    with pytest.raises(BadRequest, match="cannot be read"):
        read_foreign(file, "things", max_rows=10)
