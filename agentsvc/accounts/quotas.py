"""Quotas per user: running sandboxes, conversations per hour, dollars per day and per month.

Nothing is limited unless an administrator says so. Days and months are those of UTC. What is spent is
what agent servers say that models have cost.
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
    """The limits of a user; None is no limit. Amounts are US dollars."""

    running_sandboxes: Count | None = None
    """Most sandboxes that run at a time; null: no limit"""
    conversations_per_hour: Count | None = None
    """Most conversations started in 60 minutes; null: no limit"""
    spend_per_day: Dollars | None = None
    """Most US dollars spent on models in a day of UTC; null: no limit"""
    spend_per_month: Dollars | None = None
    """Most US dollars spent on models in a month of UTC; null: no limit"""


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has used of that."""

    conversations_last_hour: int
    """Conversations started in the last 60 minutes"""
    spent_today: float
    """US dollars spent on models since midnight UTC"""
    spent_this_month: float
    """US dollars spent on models since the first of the month, UTC"""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that a model has used; the model is "" where nobody knows."""

    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


NONE: Final = Tokens()


class DayOfUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has used of one model in a day of UTC."""

    day: str
    """The day, such as `2026-01-31`"""
    user_id: str
    """Id of the user"""
    user_name: str
    """Name of the user"""
    model: str
    """Provider and name of the model; empty where nobody knows"""
    prompt_tokens: int
    """Tokens the model was told"""
    completion_tokens: int
    """Tokens the model has said"""
    dollars: float
    """US dollars that cost, as far as the price is known"""


class QuotaStore:
    """The limits of every user."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, user_id: str) -> Quotas:
        """Return the limits of a user."""
        return await _find(self._db, user_id)

    async def set(self, user_id: str, quotas: Quotas) -> None:
        """Store the limits of a user, who exists."""
        row = {"user_id": user_id, **msgspec.structs.asdict(quotas)}
        await self._db.write(lambda tx: tx.insert("quotas", row, _OVER))

    async def used(self, user_id: str) -> QuotaUse:
        """Return what a user has used."""
        moment = values.now()
        day, month = await _spent(self._db, user_id, moment)
        starts = await _starts(self._db, user_id, moment)
        return QuotaUse(
            conversations_last_hour=len(starts), spent_today=day, spent_this_month=month
        )

    async def days(self, days: int, user_id: str | None = None) -> list[DayOfUse]:
        """Return what was used in the last days, of one user or of all, the first day first."""
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
    """Return how many sandboxes of a user may run, or None for no limit."""
    return (await _find(reader, user_id)).running_sandboxes


def check_running(most: int | None, running: int) -> None:
    """Raise QuotaExceeded where one more sandbox beside those that run would be too many."""
    if most is not None and running >= most:
        raise QuotaExceeded(
            f"You may have {most} sandboxes running, and have {running}",
            retry_after_seconds=_RUNNING_RETRY_SECONDS,
        )


async def check_spend(reader: Queryable, user_id: str) -> None:
    """Raise QuotaExceeded for a user who has spent what may be spent today, or this month."""
    await left_to_spend(reader, user_id)


async def left_to_spend(reader: Queryable, user_id: str) -> float:
    """Return how many dollars a user may spend, infinite without a limit; raises QuotaExceeded."""
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
    """Count a conversation that is to start; raises QuotaExceeded where it may not."""
    moment = values.now()
    sql = "DELETE FROM conversation_starts WHERE user_id = :user_id AND started_at <= :until"
    await tx.run(sql, {"user_id": user_id, "until": values.to_stored(moment - _HOUR)})
    await check_starts(tx, user_id)
    row = {"user_id": user_id, "started_at": values.to_stored(moment)}
    await tx.insert("conversation_starts", row)


async def check_starts(reader: Queryable, user_id: str, count: int = 1) -> None:
    """Raise QuotaExceeded where so many conversations more may not be started now."""
    await check_spend(reader, user_id)
    most = (await _find(reader, user_id)).conversations_per_hour
    if most is None:
        return
    moment = values.now()
    starts = await _starts(reader, user_id, moment)
    too_many = len(starts) + count - most
    if too_many > 0:
        # As many as are too many have to be an hour old.
        due = starts[too_many - 1] + _HOUR if too_many <= len(starts) else moment + _HOUR
        wanted = "" if count == 1 else f"; these are {count} more"
        raise QuotaExceeded(
            f"You may start {most} conversations an hour, and have started {len(starts)}{wanted}",
            retry_after_seconds=_seconds(due - moment),
        )


async def note_spend(tx: Transaction, user_id: str, dollars: float, used: Tokens = NONE) -> str:
    """Count what something has cost; return why no more may be spent, or an empty text."""
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
    """Return when the next month begins."""
    # The fourth day after the 28th is in the next month, whichever this one is.
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
    """Return what a user has spent today and this month."""
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
    """Return when a user has started conversations in the hour before, the first one first.

    What was started while the clock was ahead is not of that hour.
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


_OVER: Final = """
    ON CONFLICT (user_id) DO UPDATE
    SET running_sandboxes = excluded.running_sandboxes,
        conversations_per_hour = excluded.conversations_per_hour,
        spend_per_day = excluded.spend_per_day,
        spend_per_month = excluded.spend_per_month
"""
