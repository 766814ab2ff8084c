"""Handlers of the audit log: all of it for administrators, and for everybody what is their own."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.accounts import Entry, EntryQuery
from agentsvc.base import copy_to, parse_uuid, view_of
from agentsvc.http.keys import AUDIT, user_of
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.wire import Page, PageQuery, Time, find_time


class MyAuditQuery(PageQuery, frozen=True, kw_only=True):
    """Which entries to list.

    `text` is part of the action or the subject; `is_refused` tells what was answered by an error.
    """

    text: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    """Part of the action or the subject, at most 300 characters; left out: all entries"""
    is_refused: bool | None = None
    """True lists only what was answered with an error, false only the rest; left out: both"""
    at_gte: Time | None = msgspec.field(name="at__gte", default=None)
    """Only entries of this moment or later; ISO 8601, UTC where no offset is given. Left out: all
    """
    at_lt: Time | None = msgspec.field(name="at__lt", default=None)
    """Only entries before this moment; ISO 8601, UTC where no offset is given. Left out: all"""


class AuditQuery(MyAuditQuery, frozen=True, kw_only=True):
    """Which entries to list, of which user."""

    user_id: str | None = None
    """Only entries of this user, whose id may have dashes; left out: of all users and of commands on
    the server's machine"""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody did, or asked for and was refused: `status` is what was answered.

    For a command on the server's machine `user_id` is null. `status` is 0 for one, and for an answer
    that the client did not take to its end.
    """

    number: int
    """Number of the entry; later entries have higher ones"""
    at: Time
    """When it happened, in UTC"""
    user_id: str | None
    """Who asked for it; null for a command on the server's machine"""
    user_name: str | None
    """Name of that user at present; null if there is none, or none any more"""
    key_id: int | None
    """Number of the API key that was used, or that the login stands for; null for a command"""
    action: str
    """Method and path of the operation as they are described here, or the command"""
    subject: str
    """What it was done to, as `name=id`; empty where the action says it all"""
    status: int
    """HTTP status of the answer; 0 for a command, and where the client did not take the answer to
    its end"""
    address: str
    """IP address of the client, or what stands for the server's machine where it was a command"""
    request_id: str | None
    """Id of the request, as in `X-Request-Id`; null for a command"""


ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/v1/audit-log", scope=Scope.ADMIN_READ)
async def search_audit_log(request: web.Request, query: AuditQuery) -> Page[AuditEntry]:
    """List who changed what, the newest first.

    Every request of a user that may change something, refused ones included, and every command on
    the server's machine that changes users or keys.
    """
    wanted = query.user_id
    return await _search(request, query, wanted and (parse_uuid(wanted) or wanted))


@ROUTES.add("GET", "/api/v1/users/me/audit-log")
async def search_my_audit_log(request: web.Request, query: MyAuditQuery) -> Page[AuditEntry]:
    """List what was changed with your keys, the newest first.

    Every request with a key of the user that may change something, refused ones included.
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
