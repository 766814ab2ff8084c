"""The handler of the audit log."""

from typing import Final

import msgspec
from aiohttp import web

from agentsvc.audit import Entry
from agentsvc.http.keys import AUDIT
from agentsvc.http.routes import Route, Scope
from agentsvc.http.wire import PAGE_MAX, Limit, Page, Time, json_response, read_query
from agentsvc.values import to_stored

PREFIX: Final = "/api/v1/audit-log"


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries to list."""

    user_id: str | None = None
    page_id: str | None = None
    limit: Limit = PAGE_MAX


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody did, or asked for and was refused: `status` is what was answered.

    For a command on the server's machine `user_id` is null. `status` is 0 for one, and for an answer
    that the client did not take to its end.
    """

    number: int
    at: Time
    user_id: str | None
    user_name: str | None
    key_id: int | None
    action: str
    subject: str
    status: int
    address: str
    request_id: str | None


async def search_audit_log(request: web.Request) -> web.Response:
    """GET /audit-log."""
    query = read_query(request, AuditQuery)
    found, next_page_id = await request.app[AUDIT].search(
        user_id=query.user_id, page_id=query.page_id, limit=query.limit
    )
    items = [_from_entry(entry) for entry in found]
    return json_response(Page[AuditEntry](items=items, next_page_id=next_page_id))


def _from_entry(entry: Entry) -> AuditEntry:
    return AuditEntry(
        number=entry.number,
        at=to_stored(entry.at),
        user_id=entry.user_id or None,
        user_name=entry.user_name or None,
        key_id=entry.key_id,
        action=entry.action,
        subject=entry.subject,
        status=entry.status,
        address=entry.address,
        request_id=entry.request_id or None,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path=PREFIX,
        handler=search_audit_log,
        scope=Scope.ADMIN_READ,
        rank="P3",
        summary="List who changed what, the newest first",
        query=AuditQuery,
        answer=Page[AuditEntry],
    ),
)
