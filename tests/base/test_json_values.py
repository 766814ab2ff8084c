"""How much is in JSON, before it is decoded."""

import tracemalloc

import pytest

from agentsvc.base.json_values import MAX_VALUES, exceeds_value_limit


@pytest.mark.parametrize("part", [b"1,", b"[],", b'"",', b'{"":[[]]},'])
def test_what_has_very_many_values_is_known_in_little_memory(part: bytes) -> None:
    body = b'{"items":[' + part * MAX_VALUES + b"1]}"
    tracemalloc.start()
    try:
        assert exceeds_value_limit(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b",", b"[{", rb"\"\\,"])
def test_what_is_in_a_string_is_no_value(text: bytes) -> None:
    assert not exceeds_value_limit(b'{"a":"' + text * MAX_VALUES + b'","b":[1,{}]}')


def test_a_text_of_escapes_is_not_copied_as_a_whole() -> None:
    body = b'{"a":"' + rb"\"\\," * (2 * MAX_VALUES) + b'"}'
    tracemalloc.start()
    try:
        assert not exceeds_value_limit(body)
        assert tracemalloc.get_traced_memory()[1] < len(body) / 4
    finally:
        tracemalloc.stop()


def test_as_many_as_may_be_are_decoded() -> None:
    assert not exceeds_value_limit(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")
