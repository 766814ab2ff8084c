"""Collects the validation errors of all parts of a request.

An operation validates its path, query and body one after the other, and stops at the first invalid
part. Before the error is sent, the other parts are validated, too, so that a client gets all
problems at once.
"""

from typing import Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import AgentsvcError, InvalidRequest, Problem, Problems
from agentsvc.http.routes import JSON, Route, route_of, types_in
from agentsvc.http.wire import BODY, path_id, read_json, read_query

_ORDER: Final = ("header", "path", "query", "body")


async def with_all_problems(request: web.Request, error: InvalidRequest) -> InvalidRequest:
    """Return the error extended with the validation errors of the request's other parts."""
    route = route_of(request)
    if route is None:
        return error
    try:
        await _validate_others(request, route, {one.loc[0] for one in error.problems})
    except InvalidRequest as exc:
        # An operation may read its query in several steps, so some problems are known already.
        places = {one.loc for one in error.problems}
        if others := [one for one in exc.problems if one.loc not in places]:
            problems = sorted((*error.problems, *others), key=_place)
            return InvalidRequest.of(problems, extra=error.extra, is_all=error.is_all)
    return error


async def _validate_others(request: web.Request, route: Route, seen: set[str | int]) -> None:
    """Validate the query and the parts that are not in `seen`; raises InvalidRequest."""
    if not seen <= {*_ORDER}:
        return
    problems = Problems()
    for name, kind in types_in(route).items():
        if "path" not in seen and kind is UUID:
            with problems.noted():
                path_id(request, name)
    if route.query is not None:
        with problems.noted():
            read_query(request, route.query)
    has_body = request.can_read_body or BODY in request
    if "body" not in seen and route.body is not None and route.reads == (JSON,) and has_body:
        with problems.noted():
            try:
                await read_json(request, msgspec.json.Decoder(route.body))
            except InvalidRequest:
                raise
            except AgentsvcError:
                # A body that cannot be read is not reported beside an invalid path or query.
                pass
    problems.refuse()


def _place(problem: Problem) -> int:
    return _ORDER.index(str(problem.loc[0]))
