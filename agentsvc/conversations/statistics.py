"""Statistics of the stored data, for `/metrics`: counts, queues, costs.

Each is one query that reads few rows, or an index, so that it can run every few seconds.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from agentsvc.base import from_stored, now, to_stored
from agentsvc.conversations.model import Stage
from agentsvc.storage import Database, Reader

RECENTLY: Final = timedelta(hours=1)
_NEWEST_EVENTS: Final = 200
_MAX_STARTS: Final = 500
_MAX_MODELS: Final = 100
_MAX_AGE: Final = timedelta(minutes=5)
_stages = msgspec.json.Decoder(tuple[Stage, ...])


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics at one moment."""

    sandboxes: dict[tuple[str, str, str], int]
    """Counts by backend, target and phase."""
    conversations: dict[str, int]
    """Counts by execution status."""
    starts: dict[str, int]
    """Counts of start tasks that changed recently, by status."""
    stage_seconds: dict[str, list[float]]
    """Durations of the stages of recent starts."""
    queues: dict[str, int]
    """Lengths of queues: admission, messages to agents, webhooks, retried sandbox removals."""
    event_lag_seconds: float
    """The longest delay from an event to its receipt, among the newest events."""
    cost_dollars: dict[str, float]
    """Costs of the stored conversations by model; models after the 100 dearest as `other`."""
    read_seconds: float
    """How long these queries took."""


async def read_figures(database: Database) -> Figures:
    """Return the statistics of this moment."""
    return await database.read(_read)


async def _read(db: Reader) -> Figures:
    began = now()
    starts, stages = await _starts(db)
    sandboxes = await db.all(
        "SELECT backend, target, COALESCE(phase, 'none') AS phase, COUNT(*) AS count"
        " FROM sandboxes GROUP BY 1, 2, 3"
    )
    conversations = await db.all(
        "SELECT COALESCE(execution_status, 'none') AS status, COUNT(*) AS count"
        " FROM conversations GROUP BY 1"
    )
    costs = await db.all(
        "SELECT COALESCE(llm_model, '') AS model,"
        " SUM(COALESCE(json_extract(CAST(metrics AS TEXT), '$.accumulated_cost'), 0)) AS cost"
        " FROM conversations WHERE metrics IS NOT NULL GROUP BY 1 ORDER BY 2 DESC"
    )
    queues = await _queues(db)
    lag = await _event_lag(db)
    return Figures(
        sandboxes={
            (row["backend"], row["target"], row["phase"]): row["count"] for row in sandboxes
        },
        conversations={row["status"]: row["count"] for row in conversations},
        starts=starts,
        stage_seconds=stages,
        queues=queues,
        event_lag_seconds=lag,
        cost_dollars=_limit_models({row["model"]: row["cost"] for row in costs}),
        read_seconds=(now() - began).total_seconds(),
    )


def _limit_models(costs: dict[str, float]) -> dict[str, float]:
    """Merge all but the dearest models into `other`, because users may name any number."""
    if len(costs) <= _MAX_MODELS:
        return costs
    rest = sum(costs.pop(model) for model in list(costs)[_MAX_MODELS:])
    return {**costs, "other": rest + costs.get("other", 0)}


async def _starts(db: Reader) -> tuple[dict[str, int], dict[str, list[float]]]:
    since = {"since": to_stored(now() - RECENTLY), "most": _MAX_STARTS}
    rows = await db.all(
        "SELECT status, stages FROM start_tasks WHERE updated_at >= :since"
        " ORDER BY rowid DESC LIMIT :most",
        since,
    )
    counts = Counter(row["status"] for row in rows)
    seconds: dict[str, list[float]] = {}
    for row in rows:
        for stage in _stages.decode(row["stages"]):
            if stage.duration_ms is not None:
                seconds.setdefault(stage.status, []).append(stage.duration_ms / 1000)
    return counts, seconds


async def _queues(db: Reader) -> dict[str, int]:
    row = await db.one(
        "SELECT"
        " (SELECT COUNT(*) FROM sandbox_uses WHERE queued_at IS NOT NULL) AS starts,"
        " (SELECT COUNT(*) FROM pending_messages) AS messages,"
        " (SELECT COUNT(*) FROM webhook_deliveries WHERE state = 'pending') AS webhooks,"
        " (SELECT COUNT(*) FROM sandbox_uses WHERE removal_tries > 0) AS removals"
    )
    return {} if row is None else {**row}


async def _event_lag(db: Reader) -> float:
    rows = await db.all(
        "SELECT timestamp, received_at FROM events ORDER BY rowid DESC LIMIT :most",
        {"most": _NEWEST_EVENTS},
    )
    since = now() - _MAX_AGE
    lags = [
        lag_seconds(row["timestamp"], received)
        for row in rows
        if (received := from_stored(row["received_at"])) >= since
    ]
    return max(lags, default=0.0)


def lag_seconds(timestamp: str, received: datetime) -> float:
    """Return the delay from the timestamp of an event to its receipt, or 0 if unknown.

    Agent servers write timestamps without a time zone: local time of this machine, or UTC in a
    container. The smaller delay that is not negative is returned.
    """
    try:
        parsed = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0.0
    moments = [parsed] if parsed.tzinfo else [parsed.replace(tzinfo=UTC), parsed.astimezone(UTC)]
    lags = [(received - moment).total_seconds() for moment in moments]
    return min((lag for lag in lags if lag >= 0), default=0.0)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the quantile of values, which must not be empty; 0.5 is the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
