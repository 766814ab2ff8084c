"""Users, API keys, logins, quotas, the audit log and stored responses of idempotent requests.

Begin with `keys`. How a request is authenticated is in `http.middleware`. Imports `storage`, `config` and
`base`.
"""

from agentsvc.accounts.audit import (
    COMMAND_LINE,
    AuditLog,
    Entry,
    EntryQuery,
    note_by_server,
    note_command,
    of_caller,
)
from agentsvc.accounts.device_logins import Claim, ClaimState, DeviceLogin, DeviceLogins
from agentsvc.accounts.idempotency import IdempotencySlot, IdempotencyStore, Kept
from agentsvc.accounts.keys import (
    KEY_PREFIX,
    SHORTEST_KEY,
    ApiKey,
    KeyRing,
    KeyScope,
    Principal,
    Role,
    UserTable,
    insert_key,
)
from agentsvc.accounts.logins import (
    LINK_LIFETIME,
    Login,
    LoginProvider,
    Logins,
    LoginToken,
    join_parts,
)
from agentsvc.accounts.open_connections import LOOK_SECONDS, OpenConnections
from agentsvc.accounts.quotas import (
    DayOfUse,
    Quotas,
    QuotaStore,
    Used,
    check_running,
    check_spend,
    check_starts,
    find_running,
)
from agentsvc.accounts.service_keys import ServiceKeys
from agentsvc.accounts.users import User, UserPatch, Users, add_user, change_user, get_user

__all__ = [
    "COMMAND_LINE",
    "KEY_PREFIX",
    "LINK_LIFETIME",
    "LOOK_SECONDS",
    "SHORTEST_KEY",
    "ApiKey",
    "AuditLog",
    "Claim",
    "ClaimState",
    "DayOfUse",
    "DeviceLogin",
    "DeviceLogins",
    "Entry",
    "EntryQuery",
    "IdempotencySlot",
    "IdempotencyStore",
    "Kept",
    "KeyRing",
    "KeyScope",
    "Login",
    "LoginProvider",
    "LoginToken",
    "Logins",
    "OpenConnections",
    "Principal",
    "QuotaStore",
    "Quotas",
    "Role",
    "ServiceKeys",
    "Used",
    "User",
    "UserPatch",
    "UserTable",
    "Users",
    "add_user",
    "change_user",
    "check_running",
    "check_spend",
    "check_starts",
    "find_running",
    "get_user",
    "insert_key",
    "join_parts",
    "note_by_server",
    "note_command",
    "of_caller",
]
