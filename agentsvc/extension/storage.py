"""What plugins keep things with: the database, the vault, the audit log, pages of lists."""

from agentsvc.accounts import note_by_server
from agentsvc.storage import (
    Database,
    Queryable,
    Row,
    Transaction,
    Vault,
    cut,
    note_effect,
    read_foreign,
    record_of,
    row_of,
)

__all__ = [
    "Database",
    "Queryable",
    "Row",
    "Transaction",
    "Vault",
    "cut",
    "note_by_server",
    "note_effect",
    "read_foreign",
    "record_of",
    "row_of",
]
