"""Writes an audit log entry for each request of a user with a method that may change something."""

from typing import Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.accounts import of_caller
from agentsvc.base import decode_or_none
from agentsvc.http.keys import AUDIT, AUDITED, PRINCIPAL, REQUEST_ID, AuditNote
from agentsvc.http.routes import route_of
from agentsvc.http.urls import address_of

SAFE_METHODS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
_MAX_BODY_BYTES: Final = 64 * 1024
_ABORTED: Final = 0
"""Recorded status of a request whose response was aborted."""


class _CreatedObject(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a response that identify the created object."""

    conversation_id: str | None = None
    id: str | int | None = None


async def write_audit_entry(request: web.Request, response: web.StreamResponse | None) -> None:
    """Write the audit entry of a request before its response is sent; None: it was aborted."""
    route = route_of(request)
    if PRINCIPAL not in request or route is None:
        return
    created, status = ("", _ABORTED) if response is None else (_subject(response), response.status)
    named = ", ".join(f"{name}={value}" for name, value in request.match_info.items())
    action = f"{route.method} {route.path}"
    note = request.get(AUDITED) or AuditNote(action=action, subject=named or created, status=status)
    if not note.action:
        return
    entry = of_caller(
        request[PRINCIPAL],
        note.action,
        note.subject,
        status=note.status,
        address=address_of(request),
        request_id=request[REQUEST_ID],
    )
    await request.app[AUDIT].note(entry)


def _subject(response: web.StreamResponse) -> str:
    """Return the subject of the audit entry from the response body, or an empty string."""
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or len(body) > _MAX_BODY_BYTES:
        return ""
    created = decode_or_none(body, _CreatedObject)
    if created is None:
        return ""
    if created.conversation_id is not None:
        return f"conversation_id={created.conversation_id}"
    return "" if created.id is None else f"id={created.id}"
