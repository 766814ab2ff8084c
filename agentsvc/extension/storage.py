"""What plugins keep things with: the database, the vault, pages of lists."""

from agentsvc.storage.database import Database, Queryable, Row, Transaction
from agentsvc.storage.database_file import read_foreign
from agentsvc.storage.paging import cut
from agentsvc.storage.request_effects import note_effect
from agentsvc.storage.vault import Vault

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
