"""The small values every module shares."""

import pytest

from agentsvc.values import has_control


@pytest.mark.parametrize("char", ["\0", "\t", "\n", "\r", "\x1f", "\x7f"])
def test_a_control_character_is_found_anywhere(char: str) -> None:
    assert has_control(char)
    assert has_control(f"before{char}after")


@pytest.mark.parametrize("text", ["", "a text", "~", "\x80", "ünïcödé"])
def test_other_characters_are_none(text: str) -> None:
    assert not has_control(text)
