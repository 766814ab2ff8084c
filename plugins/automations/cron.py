"""Cron expressions of five fields, evaluated in a time zone. Pure.

When clocks are set forward, a time of day that does not exist is shifted by the length of the jump;
when they are set back, a time that occurs twice matches only its first occurrence. An expression
whose hour begins with `*` follows elapsed time instead: it matches both occurrences, and no skipped
time.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

import msgspec

from agentsvc.base import InvalidRequest

_MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = (
    *(("minute", 0, 59), ("hour", 0, 23)),
    *(("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7)),
)
_NAMES: Final = {
    "month": "- jan feb mar apr may jun jul aug sep oct nov dec",
    "weekday": "sun mon tue wed thu fri sat",
}
"""Names of the numbers of a field; there is no month 0."""
_PART: Final = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(0*[1-9]\d{0,3}))?", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,3}")
_MARGIN: Final = timedelta(hours=3)
"""Longer than any single change of the clocks."""
_MAX_GAP: Final = timedelta(days=9 * 366)
"""Longer than the time between two 29ths of February."""
_ANY_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)
_WEEK: Final = 7
_FIRST_SPAN: Final = timedelta(hours=1)


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed expression; `is_elapsed` says that it follows elapsed time."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_any_day: bool
    """Whether a day matches by its number or its weekday, because both fields are restricted."""
    is_elapsed: bool
    zone: tzinfo

    def find_next(self, after: datetime) -> datetime | None:
        """Return the first match after a moment, in UTC, or None if there is none for nine years."""
        is_near_change = self._offset(after - _MARGIN) != self._offset(after + _MARGIN)
        start = self._local(after)
        best: datetime | None = None
        for local in self._local_times(start - _MARGIN if is_near_change else start):
            # Near a change of the clocks, a later local time can be an earlier moment.
            if best is not None and local > self._local(best) + _MARGIN:
                return best
            later = [moment for moment in self._moments(local) if moment > after]
            best = min(later if best is None else [best, *later], default=None)
            if best is not None and self._offset(best - _MARGIN) == self._offset(best + _MARGIN):
                return best
        return best

    def find_latest(self, first: datetime, until: datetime, maximum: int) -> list[datetime]:
        """Return the latest matches from `first`, a match itself, to `until`, at most `maximum`."""
        span = _FIRST_SPAN
        while True:
            begin = max(first, until - span)
            found = [first] if begin == first else []
            moment = self.find_next(begin)
            while moment is not None and moment <= until:
                found.append(moment)
                moment = self.find_next(moment)
            if begin == first or len(found) >= maximum:
                return found[-maximum:]
            span *= 2

    def _local(self, moment: datetime) -> datetime:
        """Return the local time of a moment, without a time zone."""
        return moment.astimezone(self.zone).replace(tzinfo=None)

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self.zone).utcoffset()

    def _local_times(self, start: datetime) -> Iterator[datetime]:
        """Yield the local times that match, starting with the minute of `start`."""
        first = start.replace(second=0, microsecond=0)
        day, last = first.date(), (first + _MAX_GAP).date()
        while day <= last:
            if self._is_day(day):
                minimum = first.time() if day == first.date() else time()
                for hour in self.hours:
                    if hour >= minimum.hour:
                        times = (time(hour, minute) for minute in self.minutes)
                        yield from (datetime.combine(day, one) for one in times if one >= minimum)
            day += timedelta(days=1)

    def _is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_number, by_weekday = day.day in self.days, day.isoweekday() % _WEEK in self.weekdays
        return by_number or by_weekday if self.is_any_day else by_number and by_weekday

    def _moments(self, local: datetime) -> list[datetime]:
        """Return the moments in UTC at which a local time matches, earliest first."""
        earlier = local.replace(tzinfo=self.zone).astimezone(UTC)
        later = local.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        if earlier == later:
            return [earlier]
        is_shown = self._local(earlier) == local
        if self.is_elapsed:
            return [earlier, later] if is_shown else []
        return [earlier]


def parse_cron(text: str, zone: str = "UTC") -> Cron:
    """Parse an expression; raises InvalidRequest if it is invalid or never matches."""
    fields = _MACROS.get(text.strip().lower(), text).lower().split()
    if len(fields) != len(_FIELDS):
        raise _invalid_trigger("A schedule has five fields: minute, hour, day, month, weekday")
    minutes, hours, days, months, weekdays = (
        _parse_field(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True)
    )
    cron = Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(one % _WEEK for one in weekdays),
        is_any_day=not fields[2].startswith("*") and not fields[4].startswith("*"),
        is_elapsed=fields[1].startswith("*"),
        zone=parse_zone(zone),
    )
    if cron.find_next(_ANY_MOMENT) is None:
        raise _invalid_trigger("This schedule never matches")
    return cron


def parse_zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name; raises InvalidRequest if this machine lacks it."""
    if name == "UTC":
        return UTC
    # Imported on demand: it loads many modules that most servers do not need.
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise _invalid_trigger("Unknown time zone; use an IANA name, such as `Europe/Berlin`")


def _parse_field(text: str, name: str, minimum: int, maximum: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _invalid_trigger(f"`{part[:40]}` is not a valid {name}")
        begin, end, step = match.groups()
        if begin == "*":
            low, high = minimum, maximum
        else:
            low = _number(begin, name)
            high = _number(end, name) if end else maximum if step else low
        if not minimum <= low <= high <= maximum or (begin == "*" and end):
            raise _invalid_trigger(f"`{part[:40]}` is not a valid {name}")
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, name: str) -> int:
    """Return the number that digits or a name denote; -1 for anything else."""
    if text.isdecimal():
        return int(text[:4])
    names = _NAMES.get(name, "").split()
    return names.index(text) if text in names else -1


def _invalid_trigger(text: str) -> InvalidRequest:
    return InvalidRequest(text, loc=("body", "trigger"))
