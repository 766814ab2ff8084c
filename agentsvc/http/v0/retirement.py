"""Deprecation headers of V0, and 404 responses if V0 is switched off.

The headers are those of RFC 9745 and RFC 8288.
"""

from datetime import UTC, datetime
from typing import Final

from aiohttp import hdrs, web

from agentsvc.base import NotFound
from agentsvc.http.keys import IS_FORWARDED
from agentsvc.http.routes import IS_FOR_SANDBOX
from agentsvc.http.urls import origin_of

DEPRECATED_AT: Final = datetime(2025, 11, 1, tzinfo=UTC)
"""Date from which V0 is deprecated in favour of V1."""

_DEPRECATION: Final = f"@{int(DEPRECATED_AT.timestamp())}"
_SUCCESSORS: Final = {
    "/api/conversations": "/api/v1/app-conversations",
    "/api/settings": "/api/v1/settings",
    "/api/reset-settings": "/api/v1/settings",
    "/api/secrets": "/api/v1/secrets",
    "/api/add-git-providers": "/api/v1/secrets/git-providers",
    "/api/unset-provider-tokens": "/api/v1/secrets/git-providers",
    "/api/options/models": "/api/v1/config/models/search",
    "/api/options": "/api/v1/web-client/config",
    "/socket.io": "/api/v1/app-conversations",
    "/api/user/info": "/api/v1/users/git-info",
    "/api/user/installations": "/api/v1/git/installations/search",
    "/api/user/repositories": "/api/v1/git/repositories/search",
    "/api/user/repository/branches": "/api/v1/git/branches/search",
    "/api/user/search/repositories": "/api/v1/git/repositories/search",
    "/api/user/search/branches": "/api/v1/git/branches/search",
    "/api/user/suggested-tasks": "/api/v1/git/suggested-tasks/search",
    "/api/user": "/api/v1/git/repositories/search",
}

_OLD: Final = tuple(_SUCCESSORS)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers `Deprecation` and `Link` (to the V1 successor) to a response of V0."""
    successor = find_successor(request.path)
    if successor is None:
        return
    # Agent servers have other operations at the same paths; these are not deprecated.
    if not request.get(IS_FORWARDED, False) and not request.get(IS_FOR_SANDBOX, False):
        response.headers["Deprecation"] = _DEPRECATION
        place = f"{origin_of(request).prefix}{successor}"
        response.headers.add(hdrs.LINK, f'<{place}>; rel="successor-version"')


async def refuse(_request: web.Request) -> web.Response:
    """Answer a V0 path while V0 is switched off."""
    raise NotFound(
        "V0 of the API is switched off on this server. Use V1, under /api/v1,"
        " or ask its operator to set `v0.enabled`"
    )


def find_successor(path: str) -> str | None:
    """Return the V1 path that replaces a V0 path, or None for any other path."""
    if not path.startswith(_OLD):
        return None
    for old, new in _SUCCESSORS.items():
        if path == old or path.startswith(f"{old}/"):
            return new
    return None
