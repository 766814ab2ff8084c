"""The handler that shows what a sandbox has written."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import BackendBroken, BackendUnavailable, NotFound, Unsupported
from agentsvc.http.keys import BACKENDS, CONFIG, PRINCIPAL, SANDBOXES
from agentsvc.http.routes import Routes
from agentsvc.http.wire import path_text
from agentsvc.sandboxes import MOST_LINES, read_output


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How many lines to return."""

    tail: Annotated[int, msgspec.Meta(ge=1, le=MOST_LINES)] = 200
    """How many lines to return at most, the last ones"""


class SandboxLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines a sandbox wrote, oldest first; values of its secrets are stars."""

    lines: list[str]
    """The lines, oldest first; values of secrets are shown as stars"""


ROUTES: Final = Routes()


@ROUTES.add(
    "GET",
    "/api/v1/sandboxes/{sandbox_id}/logs",
    errors=(NotFound, Unsupported, BackendUnavailable, BackendBroken),
    example={"tail": 50},
)
async def get_logs(request: web.Request, query: Tail) -> SandboxLog:
    """Return the last lines a sandbox has written.

    What its command wrote to its output, and its backend about it. Values of its secrets are shown
    as stars. Refused (409) where its backend keeps none.
    """
    tail = query.tail
    sandbox = await request.app[SANDBOXES].get(
        request[PRINCIPAL].user_id, path_text(request, "sandbox_id")
    )
    time_limit = request.app[CONFIG].sandboxes.call_seconds
    lines = await read_output(request.app[BACKENDS], sandbox, lines=tail, time_limit=time_limit)
    return SandboxLog(lines=lines)
