"""Users, API keys, logins, quotas, the audit log and stored responses of idempotent requests.

Begin with `keys`. `http.middleware` authenticates requests. Imports `storage`, `config` and `base`.
"""

from agentsvc.accounts.audit import COMMAND_LINE as COMMAND_LINE
from agentsvc.accounts.audit import AuditLog as AuditLog
from agentsvc.accounts.audit import Entry as Entry
from agentsvc.accounts.audit import EntryQuery as EntryQuery
from agentsvc.accounts.audit import note_by_server as note_by_server
from agentsvc.accounts.audit import note_command as note_command
from agentsvc.accounts.audit import of_caller as of_caller
from agentsvc.accounts.device_logins import Claim as Claim
from agentsvc.accounts.device_logins import ClaimState as ClaimState
from agentsvc.accounts.device_logins import DeviceLogin as DeviceLogin
from agentsvc.accounts.device_logins import DeviceLogins as DeviceLogins
from agentsvc.accounts.idempotency import IdempotencySlot as IdempotencySlot
from agentsvc.accounts.idempotency import IdempotencyStore as IdempotencyStore
from agentsvc.accounts.idempotency import StoredAnswer as StoredAnswer
from agentsvc.accounts.keys import KEY_PREFIX as KEY_PREFIX
from agentsvc.accounts.keys import SHORTEST_KEY as SHORTEST_KEY
from agentsvc.accounts.keys import ApiKey as ApiKey
from agentsvc.accounts.keys import KeyRing as KeyRing
from agentsvc.accounts.keys import KeyScope as KeyScope
from agentsvc.accounts.keys import Principal as Principal
from agentsvc.accounts.keys import Role as Role
from agentsvc.accounts.keys import User as User
from agentsvc.accounts.keys import add_user as add_user
from agentsvc.accounts.keys import check_name as check_name
from agentsvc.accounts.keys import get_user as get_user
from agentsvc.accounts.keys import insert_key as insert_key
from agentsvc.accounts.keys import is_admin as is_admin
from agentsvc.accounts.keys import list_barred as list_barred
from agentsvc.accounts.logins import LINK_LIFETIME as LINK_LIFETIME
from agentsvc.accounts.logins import Login as Login
from agentsvc.accounts.logins import LoginProvider as LoginProvider
from agentsvc.accounts.logins import Logins as Logins
from agentsvc.accounts.logins import LoginToken as LoginToken
from agentsvc.accounts.logins import join_parts as join_parts
from agentsvc.accounts.open_connections import POLL_SECONDS as POLL_SECONDS
from agentsvc.accounts.open_connections import OpenConnections as OpenConnections
from agentsvc.accounts.quotas import DayOfUse as DayOfUse
from agentsvc.accounts.quotas import Quotas as Quotas
from agentsvc.accounts.quotas import QuotaStore as QuotaStore
from agentsvc.accounts.quotas import QuotaUse as QuotaUse
from agentsvc.accounts.quotas import check_running as check_running
from agentsvc.accounts.quotas import check_spend as check_spend
from agentsvc.accounts.quotas import check_starts as check_starts
from agentsvc.accounts.quotas import find_running as find_running
from agentsvc.accounts.service_keys import ServiceKeys as ServiceKeys
from agentsvc.accounts.users import UserPatch as UserPatch
from agentsvc.accounts.users import Users as Users
from agentsvc.accounts.users import change_user as change_user
