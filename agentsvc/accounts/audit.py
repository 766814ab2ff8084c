"""The audit log: who changed what, when, from where, and with what result.

It has an entry for every request of a user that may change something, including rejected ones, for
every command that changes users or keys, and for changes that the server makes to a user's data by
itself. Actions of agents are in the events of their conversations.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.accounts.keys import Principal, get_user
from agentsvc.base import MAX_INT, StorageFailed, decode_cursor, encode_cursor, values
from agentsvc.storage import Database, Transaction, record_of, row_of

log = logging.getLogger(__name__)

COMMAND_LINE: Final = "command line"
"""Address in the entries of commands on this machine."""

THE_SERVER: Final = "the server"
"""Address in the entries of changes by the server itself."""

_MAX_SUBJECT: Final = 300
_BATCH: Final = 5000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: an executed or rejected change; `status` is the HTTP status.

    `user_id` is empty for commands.
    """

    number: int = 0
    at: datetime = msgspec.field(default_factory=values.now)
    user_id: str = ""
    user_name: str = ""
    key_id: int | None = None
    action: str
    subject: str
    status: int = 0
    address: str
    request_id: str = ""


class EntryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a search; None disables a filter.

    `text` is a part of action or subject, `is_refused` selects entries by whether the status is an
    error.
    """

    user_id: str | None = None
    text: str | None = None
    is_refused: bool | None = None
    at_gte: datetime | None = None
    at_lt: datetime | None = None


class AuditLog:
    """Adds, searches and deletes entries of the audit log."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def note(self, entry: Entry) -> None:
        """Store an entry; a full disk is only logged, because the change itself is done."""
        try:
            await self._db.write_apart(lambda tx: _insert(tx, entry))
        except StorageFailed as exc:
            log.warning(
                "change not written to the audit log",
                extra={"action": entry.action, "user_id": entry.user_id, "reason": exc.detail},
            )

    async def search(
        self, query: EntryQuery, *, page_id: str | None = None, limit: int
    ) -> tuple[list[Entry], str | None]:
        """Return a page of entries, newest first, and the id of the next page."""
        (before,) = (MAX_INT,) if page_id is None else decode_cursor(page_id, int)
        given: Mapping[str, tuple[str, str | int | None]] = {
            "user_id = :user_id": ("user_id", query.user_id),
            "instr(lower(action || ' ' || subject), lower(:text)) > 0": ("text", query.text),
            "(status >= 400) = :refused": ("refused", query.is_refused),
            "at >= :at_gte": ("at_gte", values.stored_or_none(query.at_gte)),
            "at < :at_lt": ("at_lt", values.stored_or_none(query.at_lt)),
        }
        wanted = {text: pair for text, pair in given.items() if pair[1] is not None}
        sql = " AND ".join((_ENTRY, *wanted)) + " ORDER BY number DESC LIMIT :limit"
        params = {"before": before, "limit": limit + 1, **dict(wanted.values())}
        rows = await self._db.all(sql, params)
        found = [record_of(row, Entry) for row in rows[:limit]]
        return found, encode_cursor(found[-1].number) if len(rows) > limit else None

    async def delete_older_than(self, age: timedelta) -> None:
        """Delete the entries older than `age`, in batches."""
        sql = """
            DELETE FROM audit_log
            WHERE number IN (SELECT number FROM audit_log WHERE at < :before LIMIT :most)
        """
        params = {"before": values.to_stored(values.now() - age), "most": _BATCH}
        while await self._db.write(lambda tx: tx.run(sql, params)):
            pass


def of_caller(
    caller: Principal, action: str, subject: str, *, status: int, address: str, request_id: str
) -> Entry:
    """Return an entry, as of now, for a request of a user."""
    said = {"status": status, "address": address, "request_id": request_id}
    return values.copy_to(Entry, caller, action=action, subject=subject, **said)


async def note_command(db: Database, action: str, subject: str) -> None:
    """Store an entry, as of now, for a command on this machine."""
    entry = Entry(action=f"agentsvc {action}", subject=subject, address=COMMAND_LINE)
    await AuditLog(db).note(entry)


async def note_by_server(tx: Transaction, user_id: str, action: str, subject: str) -> None:
    """Store an entry for a change by the server itself, in the transaction of the change."""
    entry = Entry(
        user_id=user_id,
        user_name=(await get_user(tx, user_id)).name,
        action=action,
        subject=subject,
        address=THE_SERVER,
    )
    await _insert(tx, entry)


async def _insert(tx: Transaction, entry: Entry) -> None:
    row = row_of(entry, subject=entry.subject[:_MAX_SUBJECT])
    del row["number"]
    await tx.insert("audit_log", row)


_ENTRY: Final = """
    SELECT number, at, user_id, user_name, key_id, action, subject, status, address, request_id
    FROM audit_log
    WHERE number < :before"""
