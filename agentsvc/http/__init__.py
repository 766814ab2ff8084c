"""The HTTP API: what is on the wire, and nothing that decides anything.

Begin with `routes` (what a route is) and `middleware` (what every request passes through). `v0` and `v1` are
the two generations and never import each other, `gateway` passes requests on to sandboxes, `web` is the
console, `server` the connections, `openapi` the description. Imports everything but `extension`, `app`
and `cli`.
"""

from agentsvc.http.gateway.admission import Admission
from agentsvc.http.gateway.service import mount_short_paths
from agentsvc.http.keys import (
    BACKENDS,
    CONFIG,
    DATABASE,
    KEYRING,
    LOGINS,
    PRINCIPAL,
    REQUEST_ID,
    SANDBOXES,
    SUPERVISOR,
)
from agentsvc.http.middleware.host_names import known_hosts
from agentsvc.http.middleware.pipeline import install, trace_request
from agentsvc.http.middleware.websocket_auth import FIRST_MESSAGE_AUTH, FirstMessageAuth
from agentsvc.http.openapi.document import describe
from agentsvc.http.routes import (
    EXAMPLE_ID,
    LOGIN_PATH,
    OF_SANDBOXES,
    Effect,
    Example,
    Handler,
    Route,
    Scope,
    mount,
    mounted,
    route_of,
)
from agentsvc.http.server.application import Runner, make_runner
from agentsvc.http.streaming import LIVE, LiveAnswers
from agentsvc.http.urls import TRUSTED, Links, links_of, prefix_of, to_networks
from agentsvc.http.v1.types_agent_settings import LlmBody, to_llm
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
    read_body,
    read_json,
    read_query,
)

__all__ = [
    "BACKENDS",
    "CONFIG",
    "DATABASE",
    "EXAMPLE_ID",
    "FIRST_MESSAGE_AUTH",
    "KEYRING",
    "LIVE",
    "LOGINS",
    "LOGIN_PATH",
    "OF_SANDBOXES",
    "PRINCIPAL",
    "REQUEST_ID",
    "SANDBOXES",
    "SUCCESS",
    "SUPERVISOR",
    "TRUSTED",
    "Admission",
    "ClientId",
    "Effect",
    "EnvName",
    "EnvValue",
    "Example",
    "FirstMessageAuth",
    "Handler",
    "Limit",
    "Links",
    "LiveAnswers",
    "LlmBody",
    "Page",
    "Route",
    "Runner",
    "Scope",
    "SettingsBody",
    "Success",
    "Time",
    "check_extremes",
    "decode",
    "describe",
    "install",
    "json_response",
    "known_hosts",
    "links_of",
    "make_runner",
    "mount",
    "mount_console",
    "mount_guide",
    "mount_short_paths",
    "mounted",
    "path_id",
    "path_text",
    "prefix_of",
    "read_body",
    "read_json",
    "read_query",
    "route_of",
    "to_change",
    "to_llm",
    "to_networks",
    "trace_request",
]
