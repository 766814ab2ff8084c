"""What plugins keep things with: the database, the vault, pages of lists."""

from agentsvc.db import Database, Queryable, Row, Transaction
from agentsvc.dbfile import read_foreign
from agentsvc.effects import note_effect
from agentsvc.paging import cut
from agentsvc.vault import Vault

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
