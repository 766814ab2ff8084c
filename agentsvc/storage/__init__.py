"""Durable storage: the SQLite database, its migrations, the vault for secrets.

Begin with `database`. The SQL of a table stands with the package that owns it. Imports `base` and
`config`.
"""

from agentsvc.storage.database import Database, IntegrityError, Queryable, Reader, Row, Transaction
from agentsvc.storage.database_file import (
    check_file,
    check_schema,
    copy_running,
    lock_data_dir,
    read_foreign,
    statements_of,
    vacuum_file,
)
from agentsvc.storage.installation import Installation, change_master_key
from agentsvc.storage.paging import Page, cut
from agentsvc.storage.request_effects import is_watched, note_effect, watched_by
from agentsvc.storage.tar_reader import (
    BLOCK,
    SPARSE,
    BadTar,
    Gunzip,
    Kind,
    Member,
    Readable,
    TarStream,
    safe_name,
    stays_inside,
)
from agentsvc.storage.vault import Vault

__all__ = [
    "BLOCK",
    "SPARSE",
    "BadTar",
    "Database",
    "Gunzip",
    "Installation",
    "IntegrityError",
    "Kind",
    "Member",
    "Page",
    "Queryable",
    "Readable",
    "Reader",
    "Row",
    "TarStream",
    "Transaction",
    "Vault",
    "change_master_key",
    "check_file",
    "check_schema",
    "copy_running",
    "cut",
    "is_watched",
    "lock_data_dir",
    "note_effect",
    "read_foreign",
    "safe_name",
    "statements_of",
    "stays_inside",
    "vacuum_file",
    "watched_by",
]
