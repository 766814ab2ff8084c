"""Records as rows, and rows as records."""

import sqlite3
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
import pytest

from agentsvc.storage import Database, record_of, row_of

NOW = datetime(2026, 7, 27, 18, 29, 5, 7, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    colour: Colour
    is_new: bool
    at: datetime
    gone_at: datetime | None
    parts: tuple[int, ...] = ()


THING = Thing(id="null", colour=Colour.RED, is_new=True, at=NOW, gone_at=None, parts=(1, 2))


def _stored(thing: Thing) -> sqlite3.Row:
    with sqlite3.connect(":memory:") as db:
        db.row_factory = sqlite3.Row
        sql = "SELECT :id AS id, :colour AS colour, :is_new AS is_new, :at AS at, NULL AS gone_at"
        row: sqlite3.Row = db.execute(sql, row_of(thing)).fetchone()
    db.close()
    return row


def test_a_record_comes_back_from_its_row() -> None:
    back = record_of(_stored(THING), Thing, parts=(1, 2))
    assert back == THING
    assert back.at.tzinfo is UTC


def test_what_is_given_counts_instead_of_what_is_there() -> None:
    assert row_of(THING, parts="[1,2]", at=None)["parts"] == "[1,2]"
    assert row_of(THING, parts="[1,2]", at=None)["at"] is None
    assert record_of(_stored(THING), Thing, id="b", parts=()).id == "b"


def test_a_column_that_is_missing_is_not_taken_for_the_default() -> None:
    with pytest.raises(IndexError):
        record_of(_stored(THING), Thing)


def test_a_row_that_fits_no_record_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="colour"):
        record_of(_stored(THING), Thing, colour="blue", parts=())


class Part(msgspec.Struct, frozen=True):
    name: str
    at: datetime | None = None


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    names: tuple[str, ...]
    tags: dict[str, str]
    part: Part | None
    parts: tuple[Part, ...]


async def _read_back(db: Database, whole: Whole) -> Whole:
    values = ", ".join(f":{name} AS {name}" for name in Whole.__struct_fields__)
    row = await db.one(f"SELECT {values}", row_of(whole))
    assert row is not None
    return record_of(row, Whole)


async def test_what_has_parts_is_json_in_its_column(db: Database) -> None:
    part = Part("a", NOW)
    whole = Whole(id="x", names=("b", "ü"), tags={"k": "v"}, part=part, parts=(part,))
    assert row_of(whole)["names"] == '["b","ü"]'
    assert await _read_back(db, whole) == whole


async def test_what_is_nothing_stays_nothing(db: Database) -> None:
    whole = Whole(id="[1]", names=(), tags={}, part=None, parts=())
    assert row_of(whole)["part"] is None
    assert await _read_back(db, whole) == whole


async def test_single_values_and_columns_are_read(db: Database) -> None:
    assert await db.value("SELECT 1 AS n WHERE 0") is None
    assert await db.value("SELECT 2 AS n, 3 AS m") == 2
    assert await db.column("SELECT 1 AS n UNION SELECT 2") == [1, 2]
