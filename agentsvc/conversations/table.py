"""The SQL of conversations. No logic; each write is announced on the bus after the commit."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from agentsvc.base import EventBus, Notice, Subject, from_stored, now, stored_or_none, to_stored
from agentsvc.conversations.model import Conversation, ConversationQuery, Generation
from agentsvc.conversations.sorting import cut_sorted, page_of
from agentsvc.conversations.starting.grouping import Occupancy
from agentsvc.plugin import NOT_CALLING
from agentsvc.storage import Database, Queryable, Row, Transaction, record_of, row_of

_SELECT: Final = """SELECT c.id, c.user_id, c.alias, c.sandbox_id, c.title, c.title_source,
    c.selected_repository, c.selected_branch, c.git_provider, c.trigger, c.pr_number, c.llm_model,
    c.agent_kind, replace(c.metrics, '"accumulated_cost":null', '"accumulated_cost":0') AS metrics,
    c.facts, c.parent_id, c.is_public, c.tags, c.working_dir,
    c.execution_status, c.max_budget, c.ready_at, c.created_at, c.updated_at,
    (SELECT json_group_array(s.id) FROM conversations AS s
      WHERE s.parent_id = c.id AND s.ready_at IS NOT NULL) AS sub_ids,
    (SELECT t.detail FROM start_tasks AS t
      WHERE t.conversation_id = c.id AND +t.status = 'ERROR') AS start_detail,
    EXISTS (SELECT 1 FROM start_tasks AS t
      WHERE t.conversation_id = c.id AND +t.status = 'ERROR') AS start_failed,
    EXISTS (SELECT 1 FROM start_tasks AS t
      WHERE t.conversation_id = c.id AND t.generation = 'v0') AS is_v0,
    (SELECT count(*) FROM pending_messages AS m
      WHERE m.conversation_id = c.id AND m.kind = 'message') AS queued_messages,
    EXISTS (SELECT 1 FROM pending_messages AS m
      WHERE m.conversation_id = c.id AND m.run) AS has_run_queued
    FROM conversations AS c"""
"""The unary plus keeps SQLite from using the index by status, which has all failed starts.

An infinite cost was stored as null by earlier versions.
"""


_COLUMNS: Final = (
    *("id", "user_id", "alias", "sandbox_id", "title", "title_source", "selected_repository"),
    *("selected_branch", "git_provider", "trigger", "pr_number", "llm_model", "agent_kind"),
    *("metrics", "facts", "parent_id", "is_public", "tags", "working_dir", "execution_status"),
    *("max_budget", "ready_at", "created_at", "updated_at"),
)


_UPDATE: Final = """UPDATE conversations SET sandbox_id = :sandbox_id, title = :title,
    title_source = :title_source, selected_repository = :selected_repository,
    selected_branch = :selected_branch, git_provider = :git_provider,
    llm_model = :llm_model, metrics = :metrics, facts = :facts,
    is_public = :is_public, tags = :tags, working_dir = :working_dir,
    execution_status = :execution_status, max_budget = :max_budget,
    ready_at = coalesce(ready_at, :ready_at), updated_at = :updated_at
    WHERE id = :id"""
_UPDATE_REST: Final = _UPDATE.replace("sandbox_id = :sandbox_id, title = :title,", "")
"""Without two indexed columns: SQLite rewrites the indexes of all columns that are set."""


_COUNT: Final = "SELECT count(*) AS n FROM conversations AS c WHERE "


_BY_IDS: Final = """ WHERE c.user_id = :user_id AND (:include_starting OR c.ready_at IS NOT NULL)
    AND c.id IN (SELECT value FROM json_each(:ids))"""

_FAMILY: Final = """ WHERE c.id IN (WITH RECURSIVE family(id) AS (SELECT :id UNION
    SELECT d.id FROM conversations AS d JOIN family ON d.parent_id = family.id)
    SELECT id FROM family)"""

_FAILED_BEFORE: Final = """ JOIN sandboxes AS b ON b.id = c.sandbox_id
    WHERE b.target <> 'deleted' AND EXISTS (SELECT 1 FROM start_tasks AS t
    WHERE t.conversation_id = c.id AND t.status = 'ERROR' AND t.updated_at < :moment)"""

_MAX_DECODED: Final = 1024

_encode = msgspec.json.encode


class ConversationTable:
    """Inserts, updates and finds conversation rows; each method is one statement."""

    def __init__(self, db: Database, event_bus: EventBus) -> None:
        self._db = db
        self._event_bus = event_bus

    async def insert(self, tx: Transaction, conversation: Conversation) -> None:
        """Insert a new conversation."""
        row = _to_row(conversation)
        await tx.insert("conversations", {name: row[name] for name in _COLUMNS})
        self.announce(tx, conversation.user_id, conversation.id)

    async def update(
        self, tx: Transaction, conversation: Conversation, *, before: Conversation | None = None
    ) -> None:
        """Store a changed conversation; cheaper if `before` is given.

        `ready_at` is set once and never changed.
        """
        after = conversation
        is_unmoved = before and (before.sandbox_id, before.title) == (after.sandbox_id, after.title)
        await tx.run(_UPDATE_REST if is_unmoved else _UPDATE, _to_row(conversation))
        self.announce(tx, conversation.user_id, conversation.id)

    async def delete(self, tx: Transaction, conversations: Sequence[Conversation]) -> None:
        """Delete conversations with their start tasks and, by foreign keys, their events."""
        params = {"ids": _encode([one.id for one in conversations]).decode()}
        for statement in (
            "DELETE FROM start_tasks WHERE conversation_id IN (SELECT value FROM json_each(:ids))",
            "DELETE FROM conversations WHERE id IN (SELECT value FROM json_each(:ids))",
        ):
            await tx.run(statement, params)
        for conversation in conversations:
            self.announce(tx, conversation.user_id, conversation.id, is_deleted=True)

    async def find(
        self, conversation_id: str, reader: Queryable | None = None
    ) -> Conversation | None:
        """Return a conversation of any user, or None."""
        row = await (reader or self._db).one(_SELECT + " WHERE c.id = :id", {"id": conversation_id})
        return _from_row(row) if row else None

    async def find_of_user(
        self, user_id: str, ids: Sequence[str], *, include_starting: bool
    ) -> dict[str, Conversation]:
        """Return the conversations with these ids that belong to a user, by id."""
        rows = await self._db.all(
            _SELECT + _BY_IDS,
            {
                "user_id": user_id,
                "include_starting": include_starting,
                "ids": _encode(list(ids)).decode(),
            },
        )
        return {row["id"]: _from_row(row) for row in rows}

    async def is_of_user(self, user_id: str, conversation_id: str) -> bool:
        """Return whether a conversation belongs to a user."""
        sql = "SELECT 1 FROM conversations WHERE id = :id AND user_id = :user_id"
        return await self._db.one(sql, {"id": conversation_id, "user_id": user_id}) is not None

    async def occupancy(self, sandbox_ids: Sequence[str]) -> dict[str, Occupancy]:
        """Return the occupancy of sandboxes by id, without those that have no conversation."""
        rows = await self._db.all(
            "SELECT sandbox_id, COUNT(*) AS mates, MAX(updated_at) AS used_at FROM conversations"
            " WHERE sandbox_id IN (SELECT value FROM json_each(:ids)) GROUP BY sandbox_id",
            {"ids": _encode(list(sandbox_ids)).decode()},
        )
        return {
            row["sandbox_id"]: Occupancy(count=row["mates"], used_at=from_stored(row["used_at"]))
            for row in rows
        }

    async def find_by_alias(
        self, user_id: str, alias: str, reader: Queryable | None = None
    ) -> str | None:
        """Return the id of a user's conversation by its alias, or None."""
        return await (reader or self._db).value(
            "SELECT id FROM conversations WHERE user_id = :user_id AND alias = :alias",
            {"user_id": user_id, "alias": alias},
        )

    async def search(
        self, user_id: str, query: ConversationQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[Conversation], str | None]:
        """Return a page of a user's conversations and the id of the next page."""
        page = page_of(query.sort, page_id)
        where, params = _conditions(user_id, query)
        end = page.sql("c.", where, params, limit + 1)
        rows = await self._db.all(_SELECT + end, params)
        found, next_page_id = cut_sorted(rows, query.sort, limit)
        return [_from_row(row) for row in found], next_page_id

    async def count(self, user_id: str, query: ConversationQuery) -> int:
        """Return how many of a user's conversations match a query."""
        where, params = _conditions(user_id, query)
        return int(await self._db.value(_COUNT + " AND ".join(where), params) or 0)

    async def of_sandbox(
        self, sandbox_id: str, reader: Queryable | None = None
    ) -> list[Conversation]:
        """Return the conversations in a sandbox."""
        sql = _SELECT + " WHERE c.sandbox_id = :id"
        rows = await (reader or self._db).all(sql, {"id": sandbox_id})
        return [_from_row(row) for row in rows]

    async def used_by(self, reader: Queryable, sandbox_id: str) -> tuple[int, int]:
        """Return the event bytes of a sandbox, and the number of its adopted conversations."""
        sql = """
            SELECT
                SUM(json_extract(CAST(facts AS TEXT), '$.event_bytes')) AS event_bytes,
                SUM(json_extract(CAST(facts AS TEXT), '$.is_adopted')) AS adopted
            FROM conversations
            WHERE sandbox_id = :sandbox_id
        """
        row = await reader.one(sql, {"sandbox_id": sandbox_id})
        return (row["event_bytes"] or 0, row["adopted"] or 0) if row is not None else (0, 0)

    async def family(self, reader: Queryable, conversation_id: str) -> list[Conversation]:
        """Return a conversation and all its descendants."""
        rows = await reader.all(_SELECT + _FAMILY, {"id": conversation_id})
        return [_from_row(row) for row in rows]

    async def failed_before(self, moment: datetime) -> list[Conversation]:
        """Return the conversations with a sandbox whose start failed before a time."""
        rows = await self._db.all(_SELECT + _FAILED_BEFORE, {"moment": to_stored(moment)})
        return [_from_row(row) for row in rows]

    async def active_ids(self) -> list[str]:
        """Return ids of ready conversations in running sandboxes: running agents first, then newest."""
        return await self._db.column(
            "SELECT c.id FROM conversations AS c JOIN sandboxes AS b ON b.id = c.sandbox_id"
            " WHERE c.ready_at IS NOT NULL AND b.phase = 'running'"
            " ORDER BY c.execution_status = 'running' DESC, c.updated_at DESC",
        )

    async def all_uncalled(self) -> list[Conversation]:
        """Return the ready conversations of running sandboxes that cannot reach this server."""
        [(fact, value)] = NOT_CALLING.items()
        rows = await self._db.all(
            _SELECT + " JOIN sandboxes AS b ON b.id = c.sandbox_id"
            " WHERE c.ready_at IS NOT NULL AND b.phase = 'running'"
            " AND json_extract(CAST(b.facts AS TEXT), :path) = :value",
            {"path": f"$.{fact}", "value": value},
        )
        return [_from_row(row) for row in rows]

    def announce(
        self, tx: Transaction, user_id: str, conversation_id: str, *, is_deleted: bool = False
    ) -> None:
        """Announce a change of a conversation on the bus after the commit."""
        notice = Notice(
            subject=Subject.CONVERSATION,
            user_id=user_id,
            id=conversation_id,
            conversation_id=conversation_id,
            is_deleted=is_deleted,
        )
        tx.after_commit(partial(self._event_bus.announce, notice))


def _conditions(user_id: str, query: ConversationQuery) -> tuple[list[str], dict[str, Any]]:
    where = ["c.user_id = :user_id"]
    params: dict[str, Any] = {"user_id": user_id}
    if not query.include_starting:
        where.append("c.ready_at IS NOT NULL")
    if not query.include_children:
        where.append("c.parent_id IS NULL")
    given: Mapping[str, tuple[str, Any]] = {
        "instr(lower(c.title), lower(:title)) > 0": ("title", query.title_contains),
        "c.created_at >= :created_gte": ("created_gte", stored_or_none(query.created_at_gte)),
        "c.created_at < :created_lt": ("created_lt", stored_or_none(query.created_at_lt)),
        "c.updated_at >= :updated_gte": ("updated_gte", stored_or_none(query.updated_at_gte)),
        "c.updated_at < :updated_lt": ("updated_lt", stored_or_none(query.updated_at_lt)),
        "c.sandbox_id = :sandbox_id": ("sandbox_id", query.sandbox_id),
        "c.selected_repository = :repository": ("repository", query.repository),
        "c.trigger = :trigger": ("trigger", query.trigger),
    }
    for condition, (name, value) in given.items():
        if value is not None:
            where.append(condition)
            params[name] = value
    return where, params


def _to_row(conversation: Conversation) -> dict[str, Any]:
    return row_of(
        conversation,
        pr_number=_encode(conversation.pr_number),
        metrics=_encode(conversation.metrics) if conversation.metrics else None,
        facts=_encode(conversation.facts),
        tags=_encode(conversation.tags),
        ready_at=now() if conversation.is_ready else None,
    )


@lru_cache(maxsize=_MAX_DECODED)
def _from_row(row: Row) -> Conversation:
    """Convert a row; cached, because most rows are read many times before they change."""
    return record_of(
        row,
        Conversation,
        is_ready=row["ready_at"] is not None,
        generation=Generation.V0 if row["is_v0"] else Generation.V1,
    )
