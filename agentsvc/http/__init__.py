"""The HTTP API: what is on the wire, and nothing that decides anything.

Begin with `routes` (what a route is) and `middleware` (what every request passes through). `v0` and `v1` are
the two generations and never import each other, `gateway` passes requests on to sandboxes, `web` is the
console, `server` the connections, `openapi` the description. Imports everything but `extension`, `app`
and `cli`.
"""

from agentsvc.http.gateway.admission import Admission
from agentsvc.http.gateway.service import mount_short_paths
from agentsvc.http.keys import (
    AUDITED,
    BACKENDS,
    CONFIG,
    DATABASE,
    FILES,
    KEYRING,
    LOGIN_PROVIDERS,
    LOGINS,
    OPEN_CONNECTIONS,
    PENDING,
    PRINCIPAL,
    REQUEST_ID,
    SANDBOXES,
    SUPERVISOR,
    Audited,
)
from agentsvc.http.middleware.authentication import keys_of
from agentsvc.http.middleware.host_names import known_hosts
from agentsvc.http.middleware.pipeline import install, trace_request
from agentsvc.http.middleware.rate_limit import Limit as RateLimit
from agentsvc.http.middleware.rate_limit import enforce
from agentsvc.http.middleware.websocket_auth import FIRST_MESSAGE_AUTH, FirstMessageAuth
from agentsvc.http.openapi.document import describe
from agentsvc.http.routes import (
    EXAMPLE_ID,
    FORM,
    HTML,
    JSON,
    LOGIN_PATH,
    OF_SANDBOXES,
    Effect,
    Example,
    Handler,
    Route,
    Scope,
    check_scope,
    mount,
    mounted,
    route_of,
)
from agentsvc.http.server.application import Runner, make_runner
from agentsvc.http.streaming import LIVE, LiveAnswers
from agentsvc.http.urls import (
    TRUSTED,
    Links,
    address_of,
    is_from_proxy,
    links_of,
    prefix_of,
    to_networks,
)
from agentsvc.http.v1.forms import read_form
from agentsvc.http.v1.logins import NewLogin, answer_login, browser_of, check_login, note_login
from agentsvc.http.v1.types_agent_settings import LlmBody, to_llm
from agentsvc.http.v1.types_events import EventFilter, EventSearch, StoredEvent, to_query
from agentsvc.http.v1.types_settings import SettingsBody, to_change
from agentsvc.http.web.guide import mount_guide
from agentsvc.http.web.handlers import mount_console
from agentsvc.http.wire import (
    SUCCESS,
    ClientId,
    EnvName,
    EnvValue,
    Limit,
    Page,
    Success,
    Time,
    check_extremes,
    decode,
    json_response,
    path_id,
    path_text,
    raw_array,
    raw_json_response,
    raw_page,
    read_body,
    read_json,
    read_query,
)

__all__ = [
    "AUDITED",
    "BACKENDS",
    "CONFIG",
    "DATABASE",
    "EXAMPLE_ID",
    "FILES",
    "FIRST_MESSAGE_AUTH",
    "FORM",
    "GIT_PROVIDERS",
    "HTML",
    "IDEMPOTENCY",
    "JSON",
    "KEYRING",
    "LIVE",
    "LOGINS",
    "LOGIN_PATH",
    "LOGIN_PROVIDERS",
    "OF_SANDBOXES",
    "OPEN_CONNECTIONS",
    "PENDING",
    "PRINCIPAL",
    "REQUEST_ID",
    "SANDBOXES",
    "SUCCESS",
    "SUPERVISOR",
    "TRUSTED",
    "Admission",
    "Audited",
    "ClientId",
    "Effect",
    "EnvName",
    "EnvValue",
    "EventFilter",
    "EventSearch",
    "Example",
    "FirstMessageAuth",
    "Handler",
    "Limit",
    "Links",
    "LiveAnswers",
    "LlmBody",
    "NewLogin",
    "Page",
    "RateLimit",
    "Route",
    "Runner",
    "Scope",
    "SettingsBody",
    "StoredEvent",
    "Success",
    "Time",
    "address_of",
    "answer_login",
    "browser_of",
    "check_extremes",
    "check_login",
    "check_scope",
    "decode",
    "describe",
    "enforce",
    "install",
    "is_from_proxy",
    "json_response",
    "keys_of",
    "known_hosts",
    "links_of",
    "make_runner",
    "mount",
    "mount_console",
    "mount_guide",
    "mount_short_paths",
    "mounted",
    "note_login",
    "path_id",
    "path_text",
    "prefix_of",
    "raw_array",
    "raw_json_response",
    "raw_page",
    "read_body",
    "read_form",
    "read_json",
    "read_query",
    "route_of",
    "to_change",
    "to_llm",
    "to_networks",
    "to_query",
    "trace_request",
]
