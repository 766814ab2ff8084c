"""Cron expressions against clocks that are put forward and back."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from agentsvc.base.errors import InvalidRequest
from tests.plugin_loading import part

if TYPE_CHECKING:
    from automations.cron import parse_cron
else:
    parse_cron = part("automations.cron").parse_cron

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def moments(schedule: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next moments as UTC has them."""
    cron, moment, found = parse_cron(schedule, zone), datetime.fromisoformat(after), []
    for _ in range(count):
        following = cron.find_next(moment)
        assert following is not None
        assert following > moment
        moment = following
        found.append(f"{moment.astimezone(UTC):%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("*/20 * * * *", "2026-01-01T10:05Z", ["01-01 10:20", "01-01 10:40", "01-01 11:00"]),
        ("5,10-12/2 9 * * *", "2026-01-01T09:04Z", ["01-01 09:05", "01-01 09:10", "01-01 09:12"]),
        ("0 0 * * 1-5", "2026-01-02T00:00Z", ["01-05 00:00", "01-06 00:00"]),
        ("0 0 * * 7", "2026-01-01T00:00Z", ["01-04 00:00", "01-11 00:00"]),
        ("0 0 * jan,MAR mon", "2026-01-25T00:00Z", ["01-26 00:00", "03-02 00:00"]),
        # Where the day is restricted twice, either will do.
        ("0 0 13 * 5", "2026-02-01T00:00Z", ["02-06 00:00", "02-13 00:00", "02-20 00:00"]),
        ("0 0 */2 * 5", "2026-02-01T00:00Z", ["02-13 00:00", "02-27 00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00Z", ["03-31 00:00", "05-31 00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00Z", ["02-29 00:00", "02-29 00:00"]),
        ("@weekly", "2026-01-01T00:00Z", ["01-04 00:00"]),
        (" 0  5 * * * ", "2026-01-01T00:00Z", ["01-01 05:00"]),
        ("10/25 5 * * *", "2026-01-01T00:00Z", ["01-01 05:10", "01-01 05:35", "01-02 05:10"]),
    ],
)
def test_a_schedule_comes_true_when_it_says(schedule: str, after: str, expected: list[str]) -> None:
    assert moments(schedule, "UTC", after, len(expected)) == expected


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        # Forward: 2:30 does not exist on 29 March in Berlin, and is 3:30 then.
        ("30 2 * * *", BERLIN, "2026-03-27T12:00Z", ["03-28 01:30", "03-29 01:30", "03-30 00:30"]),
        ("30 2,3 * * *", BERLIN, "2026-03-28T12:00Z", ["03-29 01:30", "03-30 00:30"]),
        ("0 3 * * *", BERLIN, "2026-03-28T12:00Z", ["03-29 01:00", "03-30 01:00"]),
        ("0,30 2,3 * * *", BERLIN, "2026-03-28T12:00Z", ["03-29 01:00", "03-29 01:30"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00Z", ["03-08 07:30", "03-09 06:30"]),
        # What follows elapsed time leaves out what is skipped.
        ("0 * * * *", BERLIN, "2026-03-28T23:30Z", ["03-29 00:00", "03-29 01:00", "03-29 02:00"]),
        # Back: 2:30 comes twice on 25 October in Berlin, and counts the first time.
        ("30 2 * * *", BERLIN, "2026-10-23T12:00Z", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00Z", ["11-01 05:30", "11-02 06:30"]),
        ("0 3 * * *", BERLIN, "2026-10-24T12:00Z", ["10-25 02:00", "10-26 02:00"]),
        (
            "*/30 * * * *",
            BERLIN,
            "2026-10-24T23:40Z",
            ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"],
        ),
        ("0 */2 * * *", BERLIN, "2026-10-24T22:30Z", ["10-25 00:00", "10-25 01:00", "10-25 03:00"]),
        # Half an hour, both ways.
        ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", ["10-03 15:45", "10-04 15:15"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T00:00Z", ["04-04 14:45", "04-05 15:15"]),
    ],
)
def test_clocks_that_are_changed_lose_nothing_and_double_nothing(
    schedule: str, zone: str, after: str, expected: list[str]
) -> None:
    assert moments(schedule, zone, after, len(expected)) == expected


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata"])
@pytest.mark.parametrize(("schedule", "count"), [("10 2 * * *", 365), ("0 * * * *", 365 * 24)])
def test_a_year_has_its_days_and_hours(zone: str, schedule: str, count: int) -> None:
    begin, end = (datetime(year, 6, 1, 12, tzinfo=UTC) for year in (2025, 2026))
    cron, moment, found = parse_cron(schedule, zone), begin, 0
    while (following := cron.find_next(moment)) is not None and following <= end:
        moment, found = following, found + 1
    # Where clocks are put on by half an hour, an hour may begin twice or not at all.
    assert abs(found - count) <= (1 if zone == LORD_HOWE else 0)


def test_the_latest_of_many_moments_are_found_without_counting_them_all() -> None:
    cron = parse_cron("* * * * *")
    first, until = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    found = cron.find_latest(first, until, 3)
    assert [f"{one:%m-%d %H:%M}" for one in found] == ["12-31 23:58", "12-31 23:59", "01-01 00:00"]
    assert cron.find_latest(until, until, 3) == [until]
    yearly = parse_cron("@yearly").find_latest(first, until, 3)
    assert [one.year for one in yearly] == [2024, 2025, 2026]


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "*-5 * * * *",
        "-1 * * * *",
        "1,,2 * * * *",
        "x * * * *",
        "* * * mon *",
        "0 0 30 2 *",
        "9999999999999 * * * *",
        "٣ * * * *",
        "@reboot",
        "*/00 * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cron(schedule)


@pytest.mark.parametrize("zone", ["", "Nowhere", "../../etc/passwd", "/etc/passwd", "Europe", "\0"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cron("* * * * *", zone)
