"""The small values every module shares."""

from datetime import UTC, datetime

import msgspec
import pytest

from agentsvc.base.values import copy_to, decoder_of, from_stored, has_control, to_stored, view_of


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int = 0
    note: str = "none"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int
    key: str = "secret"


@pytest.mark.parametrize("char", ["\0", "\t", "\n", "\r", "\x1f", "\x7f"])
def test_a_control_character_is_found_anywhere(char: str) -> None:
    assert has_control(char)
    assert has_control(f"before{char}after")


@pytest.mark.parametrize("text", ["", "a text", "~", "\x80", "ünïcödé"])
def test_other_characters_are_none(text: str) -> None:
    assert not has_control(text)


def test_stored_times_of_all_years_come_back_and_sort_as_text() -> None:
    moments = [datetime(year, 7, 27, 18, 29, 5, 7, tzinfo=UTC) for year in (1, 801, 2026, 9999)]
    stored = [to_stored(moment) for moment in moments]
    assert [from_stored(text) for text in stored] == moments
    assert stored == sorted(stored)


def test_a_copy_has_what_is_called_the_same_and_what_is_given_counts() -> None:
    source = Stored(name="a", size=3)
    assert copy_to(Shown, source) == Shown(name="a", size=3)
    assert copy_to(Shown, source, size=4, note="b") == Shown(name="a", size=4, note="b")
    with pytest.raises(TypeError, match="name"):
        copy_to(Shown, object())


def test_the_decoder_of_a_type_is_made_once_and_a_given_one_is_taken() -> None:
    given = msgspec.json.Decoder(list[int])
    assert decoder_of(given) is given
    assert decoder_of(list[int]) is decoder_of(list[int])
    assert decoder_of(Shown).decode(b'{"name": "a"}') == Shown(name="a")


def test_a_view_has_what_a_record_calls_the_same_with_times_as_texts() -> None:
    class Record(msgspec.Struct, frozen=True, kw_only=True):
        name: str
        made_at: datetime
        ended_at: datetime | None
        inner: str

    class View(msgspec.Struct, frozen=True, kw_only=True):
        name: str
        made_at: str
        ended_at: str | None
        size: int

    record = Record(name="a", made_at=datetime(2026, 1, 2, tzinfo=UTC), ended_at=None, inner="b")
    assert view_of(View, record, size=3) == View(
        name="a", made_at="2026-01-02T00:00:00.000000Z", ended_at=None, size=3
    )
