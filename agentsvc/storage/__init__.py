"""Durable storage: the SQLite database, its migrations, the vault for secrets.

Begin with `database`. The SQL for a table is in the package that owns it. Imports `base` and
`config`.
"""

from agentsvc.storage.database import Database as Database
from agentsvc.storage.database import Reader as Reader
from agentsvc.storage.database import Transaction as Transaction
from agentsvc.storage.database_file import NEWER as NEWER
from agentsvc.storage.database_file import check_file as check_file
from agentsvc.storage.database_file import check_schema as check_schema
from agentsvc.storage.database_file import copy_running as copy_running
from agentsvc.storage.database_file import lock_data_dir as lock_data_dir
from agentsvc.storage.database_file import read_foreign as read_foreign
from agentsvc.storage.database_file import statements_of as statements_of
from agentsvc.storage.database_file import vacuum_file as vacuum_file
from agentsvc.storage.installation import Installation as Installation
from agentsvc.storage.installation import change_master_key as change_master_key
from agentsvc.storage.installation import check_master_key as check_master_key
from agentsvc.storage.paging import SqlPage as SqlPage
from agentsvc.storage.paging import cut as cut
from agentsvc.storage.queries import Queryable as Queryable
from agentsvc.storage.queries import Row as Row
from agentsvc.storage.records import record_of as record_of
from agentsvc.storage.records import row_of as row_of
from agentsvc.storage.request_effects import is_watched as is_watched
from agentsvc.storage.request_effects import note_effect as note_effect
from agentsvc.storage.request_effects import recording_effects as recording_effects
from agentsvc.storage.tar_reader import BLOCK as BLOCK
from agentsvc.storage.tar_reader import SPARSE as SPARSE
from agentsvc.storage.tar_reader import BadTar as BadTar
from agentsvc.storage.tar_reader import Gunzip as Gunzip
from agentsvc.storage.tar_reader import Member as Member
from agentsvc.storage.tar_reader import MemberKind as MemberKind
from agentsvc.storage.tar_reader import Readable as Readable
from agentsvc.storage.tar_reader import TarStream as TarStream
from agentsvc.storage.tar_reader import safe_name as safe_name
from agentsvc.storage.tar_reader import stays_inside as stays_inside
from agentsvc.storage.vault import Vault as Vault
