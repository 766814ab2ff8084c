"""The older generation, `/api`: decode, call the core once, encode.

It shares nothing with the newer one but the core and the wire. Its events are translated from
the agent's by `translate`; to retire it is to delete this package, its line in the composition
root, and what speaks the protocol of its event socket from the dependencies.
"""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.http.keys import EVENTS
from agentsvc.http.routes import Route, mount
from agentsvc.http.v0 import (
    conversations,
    events,
    files,
    lifecycle,
    options,
    secrets,
    settings,
    socket_opener,
    user,
)
from agentsvc.http.v0.retirement import add_headers, refuse
from agentsvc.http.v0.socket_opener import FOLLOWERS, SOCKET_PATHS
from agentsvc.http.v0.transcripts import TRANSCRIPTS, Transcripts

__all__ = ["ROUTES", "install"]

_PATH_TYPES: Final = {"conversation_id": Annotated[str, msgspec.Meta(max_length=100)]}

ROUTES: Final[tuple[Route, ...]] = tuple(
    msgspec.structs.replace(route, is_deprecated=True, path_types=_PATH_TYPES)
    for route in (
        *settings.ROUTES,
        *secrets.ROUTES,
        *options.ROUTES,
        *conversations.ROUTES,
        *lifecycle.ROUTES,
        *events.ROUTES,
        *files.ROUTES,
        *user.ROUTES,
    )
)
"""Every operation of the older generation."""


def install(app: web.Application, *, enabled: bool) -> None:
    """Add the older generation to an application, or say in its places that it is off.

    Called once, when everything it uses is among the clean-up contexts.
    """
    if enabled:
        mount(app, ROUTES)
        app[FOLLOWERS] = Counter()
        app.cleanup_ctx.append(_transcripts)
        socket_opener.install(app)
    else:
        # Past `mount`, so that they need no key and are no part of the published description.
        for path in dict.fromkeys((*(route.path for route in ROUTES), *SOCKET_PATHS)):
            app.router.add_route("*", path, refuse)
    app.on_response_prepare.append(add_headers)


async def _transcripts(app: web.Application) -> AsyncIterator[None]:
    app[TRANSCRIPTS] = Transcripts(app[EVENTS])
    yield
