"""Errors for callers when the disk is full, fails or is damaged, as SQLite reports it."""

import logging
import sqlite3
from typing import TypeGuard

from agentsvc.base import CapacityExceeded
from agentsvc.storage.database_file import primary_code

log = logging.getLogger(__name__)

# SQLite takes a disk that cannot be read for a damaged database, as it cannot tell.
_OF_DISK = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
)


def is_of_disk(failure: BaseException) -> TypeGuard[sqlite3.Error]:
    """Say whether a failure is the disk's."""
    return isinstance(failure, sqlite3.Error) and primary_code(failure) in _OF_DISK


def cannot_store(cause: sqlite3.Error) -> CapacityExceeded:
    """Return an error for a write; one for each caller, as tracebacks grow wherever they are raised."""
    is_locked = primary_code(cause) == sqlite3.SQLITE_BUSY
    why = "another program has locked its database" if is_locked else "its disk is full"
    failure = CapacityExceeded(f"the server cannot store anything now: {why}", detail=str(cause))
    failure.__cause__ = cause
    return failure


def cannot_read(cause: sqlite3.Error) -> CapacityExceeded:
    """Log that nothing can be read, and return an error for whoever wanted to."""
    log.error("database not readable", extra={"reason": str(cause)})
    return CapacityExceeded(
        "the server cannot read what it has stored: its disk fails or is damaged",
        detail=str(cause),
    )
