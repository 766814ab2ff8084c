"""Storage for plugins: the database, the vault, the audit log, pages of lists."""

from agentsvc.accounts import note_by_server as note_by_server
from agentsvc.storage import Database as Database
from agentsvc.storage import Queryable as Queryable
from agentsvc.storage import Row as Row
from agentsvc.storage import Transaction as Transaction
from agentsvc.storage import Vault as Vault
from agentsvc.storage import cut as cut
from agentsvc.storage import note_effect as note_effect
from agentsvc.storage import read_foreign as read_foreign
from agentsvc.storage import record_of as record_of
from agentsvc.storage import row_of as row_of
