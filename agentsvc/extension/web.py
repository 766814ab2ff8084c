"""What the routes of plugins are made of: tables of routes, requests read, answers written."""

from agentsvc.http.gateway import mount_short_paths
from agentsvc.http.keys import CONFIG, PRINCIPAL, REQUEST_ID
from agentsvc.http.routes import (
    EXAMPLE_ID,
    OF_SANDBOXES,
    Effect,
    Example,
    Handler,
    Route,
    Scope,
    route_of,
)
from agentsvc.http.urls import Links, links_of
from agentsvc.http.wire import (
    SUCCESS,
    ClientId,
    EnvName,
    EnvValue,
    Limit,
    Page,
    Success,
    Time,
    json_response,
    path_text,
    read_json,
    read_query,
)

__all__ = [
    "CONFIG",
    "EXAMPLE_ID",
    "OF_SANDBOXES",
    "PRINCIPAL",
    "REQUEST_ID",
    "SUCCESS",
    "ClientId",
    "Effect",
    "EnvName",
    "EnvValue",
    "Example",
    "Handler",
    "Limit",
    "Links",
    "Page",
    "Route",
    "Scope",
    "Success",
    "Time",
    "json_response",
    "links_of",
    "mount_short_paths",
    "path_text",
    "read_json",
    "read_query",
    "route_of",
]
