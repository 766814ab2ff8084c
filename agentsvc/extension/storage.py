"""What plugins keep things with: the database, the vault, pages of lists."""

from agentsvc.storage import (
    Database,
    Queryable,
    Row,
    Transaction,
    Vault,
    cut,
    note_effect,
    read_foreign,
)

__all__ = [
    "Database",
    "Queryable",
    "Row",
    "Transaction",
    "Vault",
    "cut",
    "note_effect",
    "read_foreign",
]
