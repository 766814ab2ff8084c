"""The small values every module shares."""

from datetime import UTC, datetime

import pytest

from agentsvc.base.values import from_stored, has_control, to_stored


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
