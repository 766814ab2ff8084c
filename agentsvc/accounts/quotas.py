"""Quotas per user: running sandboxes, conversations per hour, dollars per day and per month.

Nothing is limited unless an administrator sets a quota. Days and months are in UTC. Spending is the
model cost that agent servers report.
"""

import math
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from agentsvc.base import QuotaExceeded, values
from agentsvc.storage import Database, Queryable, Transaction, row_of

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_RUNNING_RETRY_SECONDS: Final = 60
_MONTH_LETTERS: Final = len("2026-01")


type Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
type Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a user; None means no limit. Amounts are in US dollars."""

    running_sandboxes: Count | None = None
    """Maximum number of sandboxes running at a time; null: no limit"""
    conversations_per_hour: Count | None = None
    """Maximum number of conversations started within 60 minutes; null: no limit"""
    spend_per_day: Dollars | None = None
    """Maximum spending on models per day (UTC), in US dollars; null: no limit"""
    spend_per_month: Dollars | None = None
    """Maximum spending on models per month (UTC), in US dollars; null: no limit"""


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """A user's current usage of the quotas."""

    conversations_last_hour: int
    """Conversations started in the last 60 minutes"""
    spent_today: float
    """US dollars spent on models since midnight UTC"""
    spent_this_month: float
    """US dollars spent on models since the first of the month, UTC"""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a model; the model is "" if unknown."""

    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


NONE: Final = Tokens()


class DayOfUse(msgspec.Struct, frozen=True, kw_only=True):
    """A user's usage of one model on one day (UTC)."""

    day: str
    """The day, such as `2026-01-31`"""
    user_id: str
    """Id of the user"""
    user_name: str
    """Name of the user"""
    model: str
    """Provider and name of the model; empty if unknown"""
    prompt_tokens: int
    """Prompt tokens sent to the model"""
    completion_tokens: int
    """Completion tokens returned by the model"""
    dollars: float
    """Cost in US dollars, as far as prices are known"""


class QuotaStore:
    """Reads and stores quotas, and reports usage."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, user_id: str) -> Quotas:
        """Return the quotas of a user."""
        return await _find(self._db, user_id)

    async def set(self, user_id: str, quotas: Quotas) -> None:
        """Store the quotas of a user, who must exist."""
        row = {"user_id": user_id, **msgspec.structs.asdict(quotas)}
        await self._db.write(lambda tx: tx.insert("quotas", row, _UPSERT))

    async def used(self, user_id: str) -> QuotaUse:
        """Return the current usage of a user."""
        moment = values.now()
        day, month = await _spent(self._db, user_id, moment)
        starts = await _starts(self._db, user_id, moment)
        return QuotaUse(
            conversations_last_hour=len(starts), spent_today=day, spent_this_month=month
        )

    async def days(self, days: int, user_id: str | None = None) -> list[DayOfUse]:
        """Return the usage of the last days, of one user or of all, oldest day first."""
        sql = """
            SELECT s.day, s.user_id, u.name AS user_name, s.model, s.prompt_tokens,
                s.completion_tokens, s.dollars
            FROM spending AS s
            JOIN users AS u ON u.id = s.user_id
            WHERE s.day >= :since AND (:user_id IS NULL OR s.user_id = :user_id)
            ORDER BY s.day, u.name, s.model
        """
        since = _day_of(values.now() - (days - 1) * _DAY)
        rows = await self._db.all(sql, {"since": since, "user_id": user_id})
        return [DayOfUse(**row) for row in rows]


async def find_running(reader: Queryable, user_id: str) -> int | None:
    """Return a user's quota of running sandboxes, or None for no limit."""
    return (await _find(reader, user_id)).running_sandboxes


def check_running(most: int | None, running: int) -> None:
    """Raise QuotaExceeded if one more running sandbox would exceed the quota."""
    if most is not None and running >= most:
        raise QuotaExceeded(
            f"You may have {most} sandboxes running, and have {running}",
            retry_after_seconds=_RUNNING_RETRY_SECONDS,
        )


async def check_spend(reader: Queryable, user_id: str) -> None:
    """Raise QuotaExceeded if a user's spending quota of this day or month is used up."""
    await left_to_spend(reader, user_id)


async def left_to_spend(reader: Queryable, user_id: str) -> float:
    """Return the US dollars a user may still spend, or infinity; raises QuotaExceeded at zero."""
    quotas, moment = await _find(reader, user_id), values.now()
    if quotas.spend_per_day is None and quotas.spend_per_month is None:
        return math.inf
    day, month = await _spent(reader, user_id, moment)
    limits = (
        (quotas.spend_per_month, month, "month", next_month(moment) - moment),
        (quotas.spend_per_day, day, "day", _midnight(moment) + _DAY - moment),
    )
    left = math.inf
    for most, spent, what, rest in limits:
        if most is not None and spent >= most:
            raise QuotaExceeded(
                f"You may spend {most:.2f} US dollars a {what}, and have spent {spent:.2f}",
                retry_after_seconds=_seconds(rest),
            )
        left = left if most is None else min(left, most - spent)
    return left


async def note_start(tx: Transaction, user_id: str) -> None:
    """Count the start of a conversation; raises QuotaExceeded if it is over quota."""
    moment = values.now()
    sql = "DELETE FROM conversation_starts WHERE user_id = :user_id AND started_at <= :until"
    await tx.run(sql, {"user_id": user_id, "until": values.to_stored(moment - _HOUR)})
    await check_starts(tx, user_id)
    row = {"user_id": user_id, "started_at": values.to_stored(moment)}
    await tx.insert("conversation_starts", row)


async def check_starts(reader: Queryable, user_id: str, count: int = 1) -> None:
    """Raise QuotaExceeded if starting `count` more conversations now would exceed a quota."""
    await check_spend(reader, user_id)
    most = (await _find(reader, user_id)).conversations_per_hour
    if most is None:
        return
    moment = values.now()
    starts = await _starts(reader, user_id, moment)
    too_many = len(starts) + count - most
    if too_many > 0:
        # Retry once as many starts as are in excess are an hour old.
        due = starts[too_many - 1] + _HOUR if too_many <= len(starts) else moment + _HOUR
        wanted = "" if count == 1 else f"; these are {count} more"
        raise QuotaExceeded(
            f"You may start {most} conversations an hour, and have started {len(starts)}{wanted}",
            retry_after_seconds=_seconds(due - moment),
        )


async def note_spend(tx: Transaction, user_id: str, dollars: float, used: Tokens = NONE) -> str:
    """Add a cost to today's spending; return why no more may be spent, or ""."""
    sql = """
        INSERT INTO spending (user_id, day, model, prompt_tokens, completion_tokens, dollars)
        VALUES (:user_id, :day, :model, :prompt_tokens, :completion_tokens, :dollars)
        ON CONFLICT (user_id, day, model) DO UPDATE
        SET prompt_tokens = prompt_tokens + excluded.prompt_tokens,
            completion_tokens = completion_tokens + excluded.completion_tokens,
            dollars = dollars + excluded.dollars
    """
    day = _day_of(values.now())
    await tx.run(sql, row_of(used, user_id=user_id, day=day, dollars=dollars))
    try:
        await check_spend(tx, user_id)
    except QuotaExceeded as exc:
        return exc.message
    return ""


def next_month(moment: datetime) -> datetime:
    """Return the start of the next month."""
    # The fourth day after the 28th is in the next month, whatever the length of this one.
    return _midnight((moment.replace(day=28) + 4 * _DAY).replace(day=1))


async def _find(reader: Queryable, user_id: str) -> Quotas:
    sql = """
        SELECT running_sandboxes, conversations_per_hour, spend_per_day, spend_per_month
        FROM quotas
        WHERE user_id = :user_id
    """
    row = await reader.one(sql, {"user_id": user_id})
    return Quotas() if row is None else Quotas(**row)


async def _spent(reader: Queryable, user_id: str, moment: datetime) -> tuple[float, float]:
    """Return a user's spending of today and of this month."""
    sql = """
        SELECT day, SUM(dollars) AS dollars
        FROM spending
        WHERE user_id = :user_id AND day BETWEEN :month AND :month || '~'
        GROUP BY day
    """
    today = _day_of(moment)
    rows = await reader.all(sql, {"user_id": user_id, "month": today[:_MONTH_LETTERS]})
    days = {row["day"]: row["dollars"] for row in rows}
    return days.get(today, 0.0), sum(days.values())


async def _starts(reader: Queryable, user_id: str, moment: datetime) -> list[datetime]:
    """Return a user's start times of the last hour, oldest first.

    Excludes times in the future, stored while the clock was ahead.
    """
    sql = """
        SELECT started_at
        FROM conversation_starts
        WHERE user_id = :user_id AND started_at > :since AND started_at <= :moment
        ORDER BY started_at
    """
    times = {"since": values.to_stored(moment - _HOUR), "moment": values.to_stored(moment)}
    starts = await reader.column(sql, {"user_id": user_id, **times})
    return [values.from_stored(start) for start in starts]


def _seconds(rest: timedelta) -> int:
    return max(1, int(rest.total_seconds()) + 1)


def _day_of(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


_UPSERT: Final = """
    ON CONFLICT (user_id) DO UPDATE
    SET running_sandboxes = excluded.running_sandboxes,
        conversations_per_hour = excluded.conversations_per_hour,
        spend_per_day = excluded.spend_per_day,
        spend_per_month = excluded.spend_per_month
"""
