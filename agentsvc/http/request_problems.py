"""Collects the validation errors of all parts of a request.

An operation reads its path, its query and its body one after the other, and stops at the first that
does not fit. Before that is told, the others are looked at, so that a client learns of all at once.
"""

from typing import Any, Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import AgentsvcError, InvalidRequest, Problem
from agentsvc.http.routes import JSON, Route, route_of, types_in
from agentsvc.http.wire import BODY, path_id, read_json, read_query

_ORDER: Final = ("header", "path", "query", "body")


async def with_all_problems(request: web.Request, error: InvalidRequest) -> InvalidRequest:
    """Return what an error says does not fit in one part of a request, and that of all parts."""
    route = route_of(request)
    others = await _find_others(request, route, error) if route is not None else []
    if not others:
        return error
    problems = sorted((*error.problems, *others), key=lambda one: _ORDER.index(str(one.loc[0])))
    return InvalidRequest.of(problems, extra=error.extra, is_all=error.is_all)


async def _find_others(request: web.Request, route: Route, error: InvalidRequest) -> list[Problem]:
    seen = {one.loc[0] for one in error.problems}
    places = {one.loc for one in error.problems}
    if not seen <= {*_ORDER}:
        return []
    found: list[Problem] = []
    if "path" not in seen:
        found += _in_path(request, route)
    if route.query is not None:
        # An operation may read it in several steps.
        found += [one for one in _in_query(request, route.query) if one.loc not in places]
    if "body" not in seen and route.body is not None:
        found += await _in_body(request, route)
    return found


def _in_path(request: web.Request, route: Route) -> list[Problem]:
    found: list[Problem] = []
    for name, kind in types_in(route).items():
        try:
            if kind is UUID:
                path_id(request, name)
        except InvalidRequest as exc:
            found += exc.problems
    return found


def _in_query(request: web.Request, shape: Any) -> list[Problem]:
    try:
        read_query(request, shape)
    except InvalidRequest as exc:
        return [*exc.problems]
    return []


async def _in_body(request: web.Request, route: Route) -> list[Problem]:
    """Read a body that was not read yet; one that cannot be read is not what is wrong here."""
    if route.reads != (JSON,) or not (request.can_read_body or BODY in request):
        return []
    try:
        await read_json(request, msgspec.json.Decoder(route.body))
    except InvalidRequest as exc:
        return [*exc.problems]
    except AgentsvcError:
        return []
    return []
