"""HTTP for plugins: tables of routes, decoding of requests, writing of responses."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from agentsvc.http import AUDITED as AUDITED
from agentsvc.http import CONFIG as CONFIG
from agentsvc.http import EXAMPLE_ID as EXAMPLE_ID
from agentsvc.http import FORM as FORM
from agentsvc.http import HTML as HTML
from agentsvc.http import JSON as JSON
from agentsvc.http import LIVE as LIVE
from agentsvc.http import OF_SANDBOXES as OF_SANDBOXES
from agentsvc.http import PRINCIPAL as PRINCIPAL
from agentsvc.http import REQUEST_ID as REQUEST_ID
from agentsvc.http import SUCCESS as SUCCESS
from agentsvc.http import AuditNote as AuditNote
from agentsvc.http import ClientId as ClientId
from agentsvc.http import Described as Described
from agentsvc.http import Effect as Effect
from agentsvc.http import EnvName as EnvName
from agentsvc.http import EnvValue as EnvValue
from agentsvc.http import EventFilter as EventFilter
from agentsvc.http import EventSearch as EventSearch
from agentsvc.http import Example as Example
from agentsvc.http import Handler as Handler
from agentsvc.http import Limit as Limit
from agentsvc.http import Links as Links
from agentsvc.http import Page as Page
from agentsvc.http import RateLimit as RateLimit
from agentsvc.http import Route as Route
from agentsvc.http import Routes as Routes
from agentsvc.http import Scope as Scope
from agentsvc.http import StoredEvent as StoredEvent
from agentsvc.http import Success as Success
from agentsvc.http import Time as Time
from agentsvc.http import address_of as address_of
from agentsvc.http import check_extremes as check_extremes
from agentsvc.http import check_scope as check_scope
from agentsvc.http import decode as decode
from agentsvc.http import enforce as enforce
from agentsvc.http import json_response as json_response
from agentsvc.http import links_of as links_of
from agentsvc.http import mount_short_paths as mount_short_paths
from agentsvc.http import path_id as path_id
from agentsvc.http import path_text as path_text
from agentsvc.http import raw_array as raw_array
from agentsvc.http import raw_json_response as raw_json_response
from agentsvc.http import raw_page as raw_page
from agentsvc.http import read_body as read_body
from agentsvc.http import read_json as read_json
from agentsvc.http import read_query as read_query
from agentsvc.http import route_of as route_of
from agentsvc.http import to_query as to_query


def effect_of[T](kind: type[T], show: Callable[[T], Any], *, status: int = HTTPStatus.OK) -> Effect:
    """Return the effect of an operation that makes something, and answers what is shown of it."""
    return Effect(kind=kind, answer=lambda _, made: json_response(show(made), status=status))
