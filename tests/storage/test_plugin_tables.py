"""Tables of plugins, whose SQL follows from their records."""

from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest

from agentsvc.extension.storage import Database, Records
from agentsvc.extension.tables import migrate

NOW = datetime(2026, 7, 27, 18, 29, 5, 7, tzinfo=UTC)
SCRIPT = """
    CREATE TABLE plugin_notes_notes (
        "group" TEXT NOT NULL,
        id TEXT PRIMARY KEY,
        at TEXT NOT NULL,
        tags TEXT NOT NULL,
        sealed BLOB
    ) STRICT;
"""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    group: str
    at: datetime = NOW
    tags: tuple[str, ...] = ()


class NoteTable(Records[Note], table="plugin_notes_notes"):
    """By their ids."""


class GroupTable(Records[Note], table="plugin_notes_notes", key="group"):
    """By their groups."""


ONE, OTHER = Note(id="1", group="a", tags=("x",)), Note(id="2", group="b")


@pytest.fixture
async def notes(db: Database) -> Database:
    await migrate(db, "notes", [SCRIPT])
    for one in (ONE, OTHER):
        await db.write(partial(NoteTable.insert, record=one, sealed=b"s"))
    return db


async def test_records_are_found_by_their_key_and_by_what_is_asked(notes: Database) -> None:
    assert await NoteTable.find(notes, "1") == ONE
    assert await NoteTable.find(notes, "b") is None
    assert await GroupTable.find(notes, "b") == OTHER
    assert await NoteTable.select(notes, "ORDER BY t.id DESC") == [OTHER, ONE]
    assert await NoteTable.select(notes, "WHERE t.at < :now", now="2000") == []
    assert await NoteTable.first(notes, "ORDER BY t.id DESC") == OTHER
    assert await notes.column("SELECT sealed FROM plugin_notes_notes") == [b"s", b"s"]


async def test_a_record_is_changed_where_it_is_as_it_was(notes: Database) -> None:
    moved = msgspec.structs.replace(ONE, group="c", tags=("y", "z"))
    where = 'AND "group" = :was'
    assert not await notes.write(lambda tx: NoteTable.update(tx, moved, where, was="b"))
    assert await NoteTable.find(notes, "1") == ONE
    assert await notes.write(lambda tx: NoteTable.update(tx, moved, where, was="a", but="tags"))
    assert await NoteTable.find(notes, "1") == msgspec.structs.replace(ONE, group="c")
    assert await NoteTable.find(notes, "2") == OTHER


async def test_a_record_is_deleted_once(notes: Database) -> None:
    assert await notes.write(lambda tx: NoteTable.delete(tx, "1"))
    assert not await notes.write(lambda tx: NoteTable.delete(tx, "1"))
    assert await NoteTable.select(notes, "") == [OTHER]
