"""Tests of what the soak counts: it must see every way in which a log can be told wrong."""

import pytest

from tests.bench.soak import Faults, find_faults


@pytest.mark.parametrize(
    ("told", "gaps", "duplicates", "reorders"),
    [
        ([3, 4, 5, 6], 0, 0, 0),
        ([3, 5, 6], 1, 0, 0),
        ([4, 5, 6], 1, 0, 0),
        ([3, 4], 2, 0, 0),
        ([], 4, 0, 0),
        ([3, 4, 4, 5, 6], 0, 1, 0),
        ([3, 4, 3, 4, 5, 6], 0, 2, 0),
        ([3, 5, 4, 6], 0, 0, 1),
        ([6, 3, 4, 5], 0, 0, 3),
        ([3, 4, 5, 6, 7], 0, 0, 1),
        ([2, 3, 4, 5, 6], 0, 0, 1),
        ([3, 3, 6, 5], 1, 1, 1),
    ],
)
def test_each_fault_is_counted_as_what_it_is(
    told: list[int], gaps: int, duplicates: int, reorders: int
) -> None:
    faults = find_faults(told, range(3, 7))
    assert faults == Faults(gaps=gaps, duplicates=duplicates, reorders=reorders)
    assert faults.any == (gaps + duplicates + reorders > 0)
