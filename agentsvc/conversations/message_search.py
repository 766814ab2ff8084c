"""Text search in the messages of a user's conversations: bounded, without an index of its own."""

from typing import Final

import msgspec

from agentsvc.storage import Queryable, record_of

_MAX_CONVERSATIONS: Final = 200
_MAX_EVENTS: Final = 5000
"""The most messages, and the most actions that may contain an answer, that are searched."""
_LARGEST_BYTES: Final = 64 * 1024
_MAX_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of either that are searched: half a second of one of few database readers."""
_MAX_CANDIDATES: Final = 500
_CONTEXT_CHARS: Final = 70

_SQL: Final = """
    WITH recent AS (
        SELECT id
        FROM conversations
        WHERE user_id = :user_id AND ready_at IS NOT NULL
        ORDER BY updated_at DESC
        LIMIT :max_conversations
    ),
    said AS (
        SELECT * FROM (
            SELECT e.rowid AS number, length(e.body) AS size
            FROM recent CROSS JOIN events AS e ON e.conversation_id = recent.id
            WHERE e.kind = :kind
            LIMIT :max_events
        )
        WHERE size < :largest
    ),
    near AS (
        SELECT number, SUM(size) OVER (ROWS UNBOUNDED PRECEDING) AS read FROM said
    )
    SELECT conversation_id, id, source, timestamp, body
    FROM near CROSS JOIN events AS e ON e.rowid = near.number
    WHERE read <= :max_bytes AND instr(lower(CAST(body AS TEXT)), :words) > 0
    LIMIT :max_candidates
"""


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that contains the words."""

    conversation_id: str
    """Conversation it is in, 32 hex digits"""
    event_id: str
    """Id of its event"""
    source: str
    """Who said it: `user` or `agent`"""
    timestamp: str
    """When it was said, as the agent server wrote it"""
    excerpt: str
    """The words with the text around them"""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None = None


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    content: list[_Part] = []


class _Action(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    message: str = ""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    llm_message: _Message | None = None
    thought: list[_Part] = []
    action: msgspec.Raw | None = None


_event = msgspec.json.Decoder(_Event)
_action = msgspec.json.Decoder(_Action)


async def find_messages(
    reader: Queryable, user_id: str, words: str, *, limit: int
) -> list[FoundMessage]:
    """Return the newest messages with these words, in the latest conversations of a user.

    Case-insensitive for the letters a to z.
    """
    wanted = _lower(words)
    params = {
        "user_id": user_id,
        "words": _lower(msgspec.json.encode(words)[1:-1].decode()),
        "max_conversations": _MAX_CONVERSATIONS,
        "max_events": _MAX_EVENTS,
        "largest": _LARGEST_BYTES,
        "max_bytes": _MAX_BYTES,
        "max_candidates": _MAX_CANDIDATES,
    }
    rows = [
        row
        for kind in ("MessageEvent", "ActionEvent")
        for row in await reader.all(_SQL, {**params, "kind": kind})
    ]
    found = [
        record_of(row, FoundMessage, event_id=row["id"], excerpt=excerpt)
        for row in rows
        if (excerpt := _excerpt(_text(row["body"]), wanted))
    ]
    return sorted(found, key=lambda one: one.timestamp, reverse=True)[:limit]


def _lower(text: str) -> str:
    """Return a text in lower case as SQLite's `lower` does: the letters a to z only."""
    return text.encode(errors="replace").lower().decode()


def _text(body: bytes) -> str:
    try:
        event = _event.decode(body)
        action = _action.decode(event.action) if event.action else _Action()
    except msgspec.DecodeError:
        return ""
    parts = [*(event.llm_message.content if event.llm_message else ()), *event.thought]
    texts = [part.text for part in parts if part.text]
    return "\n".join([*texts, action.message] if action.kind == "FinishAction" else texts)


def _excerpt(text: str, wanted: str) -> str:
    at = _lower(text).find(wanted)
    if at < 0:
        return ""
    first, last = max(0, at - _CONTEXT_CHARS), at + len(wanted) + _CONTEXT_CHARS
    cut = " ".join(text[first:last].split())
    return f"{'… ' if first else ''}{cut}{' …' if last < len(text) else ''}"
