"""What a route is, and how a table of routes becomes part of an application."""

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec
from aiohttp import web

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scope(StrEnum):
    """Whose key opens a route."""

    OPEN = "open"
    """Nobody's: it answers without a key."""
    USER = "user"
    """Any user's."""
    ADMIN = "admin"
    """An administrator's."""
    SANDBOX = "sandbox"
    """That of a running sandbox which calls back."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: a method on a path, who may call it, and what it reads.

    `rank` is its importance in the contract, P0 first. `body` and `query` are the types its
    handler decodes, for the published description; None where it reads none. A stream may go on
    for longer than a request may take.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope
    rank: str
    summary: str
    body: Any = None
    query: Any = None
    is_stream: bool = False


_MOUNTED: Final[web.AppKey[dict[web.AbstractRoute, Route]]] = web.AppKey("mounted_routes")


def mount(app: web.Application, routes: Iterable[Route]) -> None:
    """Add the routes to the application; may be called once for each table."""
    if _MOUNTED not in app:
        app[_MOUNTED] = {}
    for route in routes:
        added = app.router.add_route(route.method, route.path, route.handler)
        app[_MOUNTED][added] = route


def mounted(app: web.Application) -> tuple[Route, ...]:
    """Return every route of the application, in the order they were added."""
    return tuple(app.get(_MOUNTED, {}).values())


def route_of(request: web.Request) -> Route | None:
    """Return the route a request was resolved to, or None if it came through no table.

    The latter is so for an unknown path, for a known one with another method, and for whatever
    was added to the application past `mount`.
    """
    return request.app.get(_MOUNTED, {}).get(request.match_info.route)
