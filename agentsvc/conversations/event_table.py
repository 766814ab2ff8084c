"""The SQL of events."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentsvc.base import NotFound, decode_cursor, encode_cursor, values
from agentsvc.storage import Queryable, Transaction, record_of


class StoredEvent(msgspec.Struct, frozen=True):
    """One event of a conversation; `seq` counts from 0 in the order of arrival.

    The fields have the order of the columns in `_COLUMNS`, so that rows convert fast.
    """

    conversation_id: str
    seq: int
    id: str
    kind: str
    timestamp: str
    source: str
    body: bytes


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter and an order for events; times compare as text, as at the agent server.

    `logged` excludes the events that the agent server sends but does not log: deltas and full
    states. `kinds` are the kinds to include, empty for all.
    """

    kind: str | None = None
    kinds: tuple[str, ...] = ()
    timestamp_gte: str | None = None
    timestamp_lt: str | None = None
    descending: bool = False
    logged: bool = False


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """The next sequence number of a conversation's log, and which of some ids it has."""

    user_id: str
    next_seq: int
    known: set[str]


_SMALL_BYTES = 64 * 1024
_MAX_LARGE_BYTES = 16 * 1024 * 1024
"""A page ends with the event by which its events over `_SMALL_BYTES` reach this total."""
_COLUMNS = "SELECT conversation_id, seq, id, kind, timestamp, source, body FROM events"
_SMALL = f"CASE WHEN LENGTH(body) <= {_SMALL_BYTES} THEN body END AS body FROM events"
EVENTS = f"SELECT conversation_id, seq, id, kind, timestamp, source, {_SMALL}"
BODIES = f"SELECT timestamp, seq, {_SMALL}"
_WHERE = "WHERE conversation_id = :conversation_id"
OF_IDS = "AND id IN (SELECT value FROM json_each(:ids))"
RANGE = "AND seq >= :from_seq ORDER BY seq LIMIT :limit"
FIRST = " ".join(["SELECT seq FROM events", _WHERE, "ORDER BY seq LIMIT 1"])
_OLDEST_FIRST = "ORDER BY timestamp, seq LIMIT :limit"
_NEWEST_FIRST = "ORDER BY timestamp DESC, seq DESC LIMIT :limit"
_BODY = "SELECT body FROM events WHERE conversation_id = :conversation_id AND seq = :seq"
STRETCH = """
    AND seq >= :from_seq
    AND seq <= (
        SELECT MAX(seq)
        FROM (
            SELECT seq, SUM(size) OVER (ORDER BY seq) - size AS bytes_before
            FROM (
                SELECT seq, LENGTH(body) AS size
                FROM events
                WHERE conversation_id = :conversation_id
                  AND seq BETWEEN :from_seq AND :to_seq
                ORDER BY seq
                LIMIT :limit
            )
        )
        WHERE bytes_before < :max_bytes
    )
    ORDER BY seq
"""
_LOGGED = """
    AND kind <> 'StreamingDeltaEvent'
    AND CASE
        WHEN kind <> 'ConversationStateUpdateEvent' THEN TRUE
        WHEN NOT json_valid(CAST(body AS TEXT)) THEN TRUE
        ELSE json_extract(CAST(body AS TEXT), '$.key') IS NOT 'full_state'
    END
"""


async def find_state(
    source: Queryable, conversation_id: str, ids: Iterable[str]
) -> LogState | None:
    """Return the state of a conversation's log and which of the ids it has, or None."""
    sql = """
        SELECT c.user_id, c.next_seq, (
            SELECT json_group_array(e.id)
            FROM events AS e
            WHERE e.conversation_id = c.id
              AND e.id IN (SELECT value FROM json_each(:ids))
        ) AS known
        FROM conversations AS c
        WHERE c.id = :conversation_id
    """
    row = await source.one(sql, {"conversation_id": conversation_id, "ids": to_json(ids)})
    return record_of(row, LogState) if row else None


async def insert_many(tx: Transaction, events: Iterable[StoredEvent]) -> None:
    """Insert events."""
    sql = """
        INSERT INTO events
            (conversation_id, seq, id, kind, timestamp, source, body, received_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    """
    received_at = values.to_stored(values.now())
    rows = [(*msgspec.structs.astuple(event), received_at) for event in events]
    await tx.run_many(sql, rows)


async def copy(tx: Transaction, from_id: str, to_id: str, until: int | None) -> None:
    """Copy events, up to a number, to a conversation without events; raises NotFound."""
    # Set the number first: webhooks deliver no event below it.
    sql = """
        UPDATE conversations
        SET next_seq = first.next_seq
        FROM (
            SELECT MIN(next_seq, COALESCE(:until + 1, next_seq)) AS next_seq
            FROM conversations
            WHERE id = :from_id
        ) AS first
        WHERE id = :to_id
    """
    if not await tx.run(sql, {"from_id": from_id, "to_id": to_id, "until": until}):
        raise NotFound("The conversation to be forked does not exist any more")
    sql = """
        INSERT INTO events
            (conversation_id, seq, id, kind, timestamp, source, body, received_at)
        SELECT :to_id, seq, id, kind, timestamp, source, body, :received_at
        FROM events
        WHERE conversation_id = :from_id AND (:until IS NULL OR seq <= :until)
        ORDER BY seq
    """
    received_at = values.to_stored(values.now())
    copied = {"from_id": from_id, "to_id": to_id, "until": until, "received_at": received_at}
    await tx.run(sql, copied)


async def set_next_seq(tx: Transaction, conversation_id: str, next_seq: int) -> None:
    """Set the sequence number of the next event."""
    sql = "UPDATE conversations SET next_seq = :next_seq WHERE id = :conversation_id"
    await tx.run(sql, {"conversation_id": conversation_id, "next_seq": next_seq})


async def read_page(
    source: Queryable,
    columns: str,
    conversation_id: str,
    query: EventQuery,
    *,
    page_id: str | None,
    limit: int,
) -> tuple[list[Sequence[Any]], str | None]:
    """Return a page of rows with the body in the last column, and the id of the next page.

    A page with large events may be shorter than `limit`. Raises InvalidRequest for an invalid id.
    """
    after = None if page_id is None else decode_cursor(page_id, str, int)
    conditions, params = _conditions(conversation_id, query, after)
    order = _NEWEST_FIRST if query.descending else _OLDEST_FIRST
    sql = f"{columns} {conditions} {order}"
    rows = await source.all(sql, {**params, "limit": limit + 1})
    page: list[Sequence[Any]] = []
    read_count, left = 0, _MAX_LARGE_BYTES
    for row in rows[:limit]:
        if left <= 0:
            break
        read_count += 1
        if row[-1] is not None:
            page.append(row)
            continue
        body = await source.value(_BODY, {**params, "seq": row["seq"]})
        # The event may have been deleted since the query.
        if body is not None:
            page.append((*row[:-1], body))
            left -= len(body)
    if read_count == len(rows):
        return page, None
    last = rows[read_count - 1]
    return page, encode_cursor(last["timestamp"], last["seq"])


async def count(source: Queryable, conversation_id: str, query: EventQuery) -> int:
    """Return the number of events that match a query."""
    conditions, params = _conditions(conversation_id, query, None)
    sql = " ".join(["SELECT COUNT(*) FROM events", conditions])
    return int(await source.value(sql, params) or 0)


async def has_agent_event(
    source: Queryable, conversation_id: str, kinds: Iterable[str], after: int
) -> bool:
    """Return whether the agent has an event of one of these kinds after a number."""
    # The unary plus makes SQLite use the index by number: mostly, few events follow this one.
    sql = """
        SELECT 1 FROM events
        WHERE conversation_id = :conversation_id AND seq > :after AND source = 'agent'
          AND +kind IN (SELECT value FROM json_each(:kinds))
        LIMIT 1
    """
    params = {"conversation_id": conversation_id, "after": after, "kinds": to_json(kinds)}
    return await source.one(sql, params) is not None


async def size_of_many(source: Queryable, conversation_id: str, ids: Iterable[str]) -> int:
    """Return the total size of the events with these ids, in bytes."""
    sql = " ".join(["SELECT SUM(LENGTH(body)) FROM events", _WHERE, OF_IDS])
    params = {"conversation_id": conversation_id, "ids": to_json(ids)}
    return int(await source.value(sql, params) or 0)


async def read(source: Queryable, which: str, params: Mapping[str, Any]) -> list[StoredEvent]:
    """Return the events of a conversation that match a condition, such as `RANGE`."""
    rows = await source.all(f"{_COLUMNS} {_WHERE} {which}", params)
    return [StoredEvent(*row) for row in rows]


def _conditions(
    conversation_id: str, query: EventQuery, after: tuple[str, int] | None
) -> tuple[str, dict[str, str | int]]:
    # At most one lower and one upper bound, both on the columns of the indexes, and only if set:
    # SQLite chooses the index, and the position in it to start from, by the text of the statement.
    low = None if query.timestamp_gte is None else (query.timestamp_gte, -1)
    high = None if query.timestamp_lt is None else (query.timestamp_lt, -1)
    if after and query.descending:
        high = min(high or after, after)
    elif after:
        low = max(low or after, after)
    sql = [_WHERE]
    params: dict[str, str | int] = {"conversation_id": conversation_id}
    if query.kind is not None:
        sql.append("AND kind = :kind")
        params["kind"] = query.kind
    if query.kinds:
        sql.append("AND kind IN (SELECT value FROM json_each(:kinds))")
        params["kinds"] = to_json(query.kinds)
    if query.logged:
        sql.append(_LOGGED)
    if low:
        sql.append("AND (timestamp, seq) > (:low_timestamp, :low_seq)")
        params["low_timestamp"], params["low_seq"] = low
    if high:
        sql.append("AND (timestamp, seq) < (:high_timestamp, :high_seq)")
        params["high_timestamp"], params["high_seq"] = high
    return " ".join(sql), params


def to_json(ids: Iterable[str]) -> str:
    """Return ids as the JSON array that `json_each` takes."""
    return msgspec.json.encode(list(ids)).decode()
