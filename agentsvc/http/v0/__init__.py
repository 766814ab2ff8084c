"""V0 of the API, under `/api`: handlers decode, call the domain once, and encode.

V0 shares only the domain and the wire format with V1. `translate` converts the agent's events to
events of V0. To retire V0, delete this package, its line in the composition root, and the
dependency on python-socketio.
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
"""Every operation of V0."""


def install(app: web.Application, *, enabled: bool) -> None:
    """Mount V0, or answer its paths with an error that V0 is switched off.

    Called once, after the clean-up contexts of everything that V0 uses were added.
    """
    if enabled:
        mount(app, ROUTES)
        app[FOLLOWERS] = Counter()
        app.cleanup_ctx.append(_transcripts)
        socket_opener.install(app)
    else:
        # Not by `mount`, so that they need no key and are not in the OpenAPI description.
        for path in dict.fromkeys((*(route.path for route in ROUTES), *SOCKET_PATHS)):
            app.router.add_route("*", path, refuse)
    app.on_response_prepare.append(add_headers)


async def _transcripts(app: web.Application) -> AsyncIterator[None]:
    app[TRANSCRIPTS] = Transcripts(app[EVENTS])
    yield
