"""Handlers of the audit log: all entries for administrators, for other users their own."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.accounts import Entry, EntryQuery
from agentsvc.base import copy_to, parse_uuid, view_of
from agentsvc.http.keys import AUDIT, user_of
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.wire import Page, PageQuery, Time, find_time


class MyAuditQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of one's own audit log.

    `text` matches a part of the action or the subject; `is_refused` selects requests that were
    answered with an error.
    """

    text: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    """Part of the action or the subject, at most 300 characters; omitted: all entries"""
    is_refused: bool | None = None
    """True lists only requests answered with an error, false only the others; omitted: both"""
    at_gte: Time | None = msgspec.field(name="at__gte", default=None)
    """Only entries at this time or later; ISO 8601, UTC if it has no offset. Omitted: all"""
    at_lt: Time | None = msgspec.field(name="at__lt", default=None)
    """Only entries before this time; ISO 8601, UTC if it has no offset. Omitted: all"""


class AuditQuery(MyAuditQuery, frozen=True, kw_only=True):
    """Filters of the whole audit log."""

    user_id: str | None = None
    """Only entries of the user with this id, with or without dashes; omitted: entries of all users
    and of commands on the server's machine"""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log: a request, a command or a change by the server itself.

    `status` is 0 for a command, for a change by the server, and for a response that the client did
    not read to its end.
    """

    number: int
    """Number of the entry; later entries have higher ones"""
    at: Time
    """When the request or command happened, in UTC"""
    user_id: str | None
    """Id of the user who made the request, or whose data the server changed; null for a command on
    the server's machine"""
    user_name: str | None
    """Name of that user at the time; null for a command"""
    key_id: int | None
    """Number of the API key of the request or of its login; null without a request"""
    action: str
    """Method and path template of the operation as in this description, or the command"""
    subject: str
    """Object of the action, as `name=id`; empty if the action has no object"""
    status: int
    """HTTP status of the response; 0 without a request, and if the client did not read the response
    to its end"""
    address: str
    """IP address of the client; `command line` for a command, `the server` for a change by the
    server itself"""
    request_id: str | None
    """Id of the request, as in `X-Request-Id`; null without a request"""


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/audit-log", scope=Scope.ADMIN_READ)
async def search_audit_log(request: web.Request, query: AuditQuery) -> Page[AuditEntry]:
    """List the audit log of all users, newest entry first.

    Every request of a user that may change something, including refused requests, and every command
    on the server's machine that changes users or keys.
    """
    wanted = query.user_id
    return await _search(request, query, wanted and (parse_uuid(wanted) or wanted))


@ROUTES.add("GET", "/api/v1/users/me/audit-log")
async def search_my_audit_log(request: web.Request, query: MyAuditQuery) -> Page[AuditEntry]:
    """List your own audit log, newest entry first.

    Every request with a key of the user that may change something, including refused requests.
    """
    return await _search(request, query, user_of(request))


async def _search(
    request: web.Request, query: MyAuditQuery, user_id: str | None
) -> Page[AuditEntry]:
    since, before = find_time(query.at_gte, "at__gte"), find_time(query.at_lt, "at__lt")
    wanted = copy_to(EntryQuery, query, user_id=user_id, at_gte=since, at_lt=before)
    found, next_page_id = await request.app[AUDIT].search(
        wanted, page_id=query.page_id, limit=query.limit
    )
    return Page(items=[_from_entry(entry) for entry in found], next_page_id=next_page_id)


def _from_entry(entry: Entry) -> AuditEntry:
    return view_of(
        AuditEntry,
        entry,
        user_id=entry.user_id or None,
        user_name=entry.user_name or None,
        request_id=entry.request_id or None,
    )
