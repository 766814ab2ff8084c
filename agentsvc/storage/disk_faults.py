"""Errors for callers if the disk is full, fails or is damaged, as SQLite reports it."""

import logging
import sqlite3
from typing import TypeGuard

from agentsvc.base import DatabaseBusy, DiskFull, StorageFailed
from agentsvc.storage.database_file import primary_code

log = logging.getLogger(__name__)

_DAMAGED = "its database is damaged. Stop the server and restore a backup"
# SQLite cannot tell an unreadable disk from a damaged database.
_OF_DISK = {
    sqlite3.SQLITE_FULL: "its disk is full. Free some space there",
    sqlite3.SQLITE_IOERR: "its disk fails, or has no room. Check the disk",
    sqlite3.SQLITE_CANTOPEN: "its database cannot be opened. Check the disk and who owns the files",
    sqlite3.SQLITE_READONLY: "its database is read-only or was replaced. Check the disk and the files",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_BUSY = {sqlite3.SQLITE_BUSY: "another program has locked its database. Close that program"}
_UNKNOWN = "its database refused it. The server's log has the reason"


def is_disk_fault(failure: BaseException) -> TypeGuard[sqlite3.Error]:
    """Return whether an error is a disk fault."""
    return isinstance(failure, sqlite3.Error) and primary_code(failure) in _OF_DISK


def write_error(cause: sqlite3.Error) -> StorageFailed:
    """Return a new error for a caller of a write; never share it, because raising adds a traceback."""
    failure = _error_for("store anything now", cause)
    failure.__cause__ = cause
    return failure


def read_error(cause: sqlite3.Error) -> StorageFailed:
    """Log a failed read, and return the error for its caller."""
    log.error("database not readable", extra={"reason": str(cause)})
    return _error_for("read what it has stored", cause)


def _error_for(what: str, cause: BaseException) -> StorageFailed:
    # If SQLite rolled the transaction back by itself, the reason is further down the chain of causes.
    reasons, found = _OF_DISK | _BUSY, cause
    for _ in range(10):  # bounded, because causes can form a cycle
        if primary_code(found) not in reasons and found.__cause__:
            found = found.__cause__
    code = primary_code(found)
    kinds = {sqlite3.SQLITE_FULL: DiskFull, sqlite3.SQLITE_BUSY: DatabaseBusy}
    why = reasons.get(code, _UNKNOWN)
    return kinds.get(code, StorageFailed)(f"The server cannot {what}: {why}.", detail=str(cause))
