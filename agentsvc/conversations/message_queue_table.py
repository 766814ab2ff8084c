"""SQL of the message queue."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from agentsvc.base import now
from agentsvc.domain import Message
from agentsvc.storage import Queryable, Row, Transaction, record_of, row_of


class PendingKind(StrEnum):
    """The kind of a queued message or command to an agent."""

    MESSAGE = "message"
    RECORDED = "recorded"
    """A message of a recording, sent while the agent runs."""
    ACCEPT = "accept"
    REJECT = "reject"
    RUN = "run"
    PAUSE = "pause"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    """Files are restored first; then it becomes a message that tells the agent so."""


type Lane = tuple[PendingKind, ...]

ANSWERS: Final = (PendingKind.ACCEPT, PendingKind.REJECT)
STOPS: Final = (PendingKind.PAUSE, PendingKind.INTERRUPT)

ORDERED: Final[Lane] = (PendingKind.MESSAGE, *ANSWERS, PendingKind.RUN, PendingKind.ROLLBACK)
"""The kinds that share one lane. Each other kind has a lane of its own."""

LANES: Final[tuple[Lane, ...]] = (
    ORDERED,
    *((kind,) for kind in PendingKind if kind not in ORDERED),
)

# A stop does not wait for messages, because they may wait for a tool call. But later messages do
# not overtake a stop, and a stop does not overtake an answer, which would make the agent run again.
_ALSO_BEFORE: Final[dict[Lane, Lane]] = {ORDERED: STOPS, **{(kind,): ANSWERS for kind in STOPS}}


def lane_of(kind: PendingKind) -> Lane:
    """Return the lane of a kind."""
    return next(lane for lane in LANES if kind in lane)


def lanes_behind(kind: PendingKind) -> list[Lane]:
    """Return the other lanes whose messages may wait for one of this kind."""
    return [lane for lane, before in _ALSO_BEFORE.items() if kind in before]


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A queued message or command to an agent.

    `last_event` is the id of the last event in the agent's log before the first attempt: "" for an
    empty log, None before that is known. `said_before` is the number of equal messages after
    that event which are not this one.
    """

    id: str
    conversation_id: str
    kind: PendingKind
    message: Message
    """The message itself, or the reason for a rejection."""
    run: bool = True
    """Whether the agent is to run after it."""
    about: tuple[str, ...] = ()
    """The ids of the actions that an answer is for, or of the checkpoint to restore."""
    last_event: str | None = None
    said_before: int = 0
    is_tried: bool = False
    """Whether an earlier attempt may have succeeded."""


_encode = msgspec.json.encode


async def insert(tx: Transaction, pending: PendingMessage) -> None:
    """Append a message to the queue; no-op if its id is queued."""
    row = row_of(pending, message=_encode(pending.message), created_at=now())
    await tx.insert("pending_messages", row, "ON CONFLICT (id) DO NOTHING")


async def count(reader: Queryable, conversation_id: str, kinds: Sequence[str]) -> int:
    """Return how many messages of these kinds a conversation has queued."""
    sql = """
        SELECT count(*)
        FROM pending_messages
        WHERE conversation_id = :conversation_id
            AND kind IN (SELECT value FROM json_each(:kinds))
    """
    return int(await reader.value(sql, _of(conversation_id, kinds)) or 0)


async def find_first(reader: Queryable, conversation_id: str, lane: Lane) -> PendingMessage | None:
    """Return the next message of a lane; None if it is empty or waits for another lane."""
    sql = """
        SELECT id, conversation_id, kind, message, run, about, last_event, said_before, is_tried
        FROM pending_messages
        WHERE conversation_id = :conversation_id
            AND kind IN (SELECT value FROM json_each(:kinds))
            AND NOT EXISTS (
                SELECT 1
                FROM pending_messages AS before
                WHERE before.conversation_id = :conversation_id
                    AND before.seq < pending_messages.seq
                    AND before.kind IN (SELECT value FROM json_each(:before))
                    AND (before.about != '[]' OR before.kind NOT IN ('accept', 'reject'))
            )
        ORDER BY seq
        LIMIT 1
    """
    before = _encode(_ALSO_BEFORE.get(lane, ())).decode()
    values = {**_of(conversation_id, lane), "before": before}
    row = await reader.one(sql, values)
    return _from_row(row) if row else None


async def messages(reader: Queryable, conversation_id: str) -> list[PendingMessage]:
    """Return the queued messages of a conversation in their order, without commands."""
    sql = """
        SELECT id, conversation_id, kind, message, run, about, last_event, said_before, is_tried
        FROM pending_messages
        WHERE conversation_id = :conversation_id AND kind = 'message'
        ORDER BY seq
    """
    rows = await reader.all(sql, {"conversation_id": conversation_id})
    return [_from_row(row) for row in rows]


async def begin(tx: Transaction, pending: PendingMessage, last_event: str) -> bool | None:
    """Store the first attempt and the last event of the agent's log before it.

    Returns whether the agent is still to run after it, or None if it was cancelled. A stop clears
    that flag of all earlier messages.
    """
    sql = """
        UPDATE pending_messages
        SET is_tried = 1, last_event = :last_event
        WHERE id = :id
        RETURNING seq, run
    """
    row = await tx.one(sql, {"id": pending.id, "last_event": last_event})
    if row is None:
        return None
    if pending.kind in STOPS:
        sql = """
            UPDATE pending_messages
            SET run = 0
            WHERE conversation_id = :conversation_id
                AND seq < :seq
                AND kind IN ('message', 'run')
        """
        before = {"conversation_id": pending.conversation_id, "seq": row["seq"]}
        await tx.run(sql, before)
    return bool(row["run"])


async def set_rolled_back(tx: Transaction, pending_id: str) -> None:
    """Turn a completed roll-back into a message, at the same place in the queue."""
    sql = "UPDATE pending_messages SET kind = 'message', about = '[]' WHERE id = :id"
    await tx.run(sql, {"id": pending_id})


async def delete(tx: Transaction, pending_id: str) -> None:
    """Delete a message from the queue."""
    await tx.run("DELETE FROM pending_messages WHERE id = :id", {"id": pending_id})


async def set_run_asked(tx: Transaction, conversation_id: str, at: str) -> None:
    """Store when an agent was told to run, in the time format of events."""
    sql = """
        UPDATE conversations
        SET facts = CAST(json_set(CAST(facts AS TEXT), '$.run_asked_at', :at) AS BLOB)
        WHERE id = :id
    """
    await tx.run(sql, {"id": conversation_id, "at": at})


async def all_waiting(reader: Queryable) -> list[tuple[str, str, PendingKind]]:
    """Return user, conversation and kind of all queued messages, without duplicates."""
    sql = """
        SELECT DISTINCT c.user_id, c.id, p.kind
        FROM pending_messages AS p
        JOIN conversations AS c ON c.id = p.conversation_id
    """
    rows = await reader.all(sql)
    return [(row["user_id"], row["id"], PendingKind(row["kind"])) for row in rows]


def _of(conversation_id: str, kinds: Sequence[str]) -> dict[str, str]:
    return {"conversation_id": conversation_id, "kinds": _encode(kinds).decode()}


def _from_row(row: Row) -> PendingMessage:
    return record_of(row, PendingMessage, said_before=row["said_before"] or 0)
