"""Writes an entry of the audit log for each request of a user that may change something."""

from typing import Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.accounts import of_caller
from agentsvc.base import decode_or_none
from agentsvc.http.keys import AUDIT, AUDITED, PRINCIPAL, REQUEST_ID, AuditNote
from agentsvc.http.routes import route_of
from agentsvc.http.urls import address_of

SAFE_METHODS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
_LARGEST_BYTES: Final = 64 * 1024
_BROKEN_OFF: Final = 0
"""The status of an answer that the client did not take to its end."""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says of what was made."""

    conversation_id: str | None = None
    id: str | int | None = None


async def note_change(request: web.Request, response: web.StreamResponse | None) -> None:
    """Note who asked for a change and how it ended, before the answer is sent; None if it broke off."""
    route = route_of(request)
    if PRINCIPAL not in request or route is None:
        return
    made, status = ("", _BROKEN_OFF) if response is None else (_made(response), response.status)
    named = ", ".join(f"{name}={value}" for name, value in request.match_info.items())
    action = f"{route.method} {route.path}"
    told = request.get(AUDITED) or AuditNote(action=action, subject=named or made, status=status)
    if not told.action:
        return
    entry = of_caller(
        request[PRINCIPAL],
        told.action,
        told.subject,
        status=told.status,
        address=address_of(request),
        request_id=request[REQUEST_ID],
    )
    await request.app[AUDIT].note(entry)


def _made(response: web.StreamResponse) -> str:
    """Return what an answer says was made, if it does."""
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or len(body) > _LARGEST_BYTES:
        return ""
    made = decode_or_none(body, _Made)
    if made is None:
        return ""
    if made.conversation_id is not None:
        return f"conversation_id={made.conversation_id}"
    return "" if made.id is None else f"id={made.id}"
