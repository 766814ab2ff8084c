"""Handlers of a user's idle rules for sandboxes, and of failed removals."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import NotFound, copy_to, stored_or_none
from agentsvc.http.keys import SANDBOXES, SETTINGS, user_of
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.wire import PAGE_MAX, Limit, Time
from agentsvc.plugin import IdleRules
from agentsvc.settings import Settings

RULES: Final = "/api/v1/sandbox-rules"
REMOVALS: Final = "/api/v1/sandboxes/removals"

type Seconds = Annotated[float, Meta(ge=0, le=10**9)]


class SandboxRules(msgspec.Struct, frozen=True, kw_only=True):
    """Idle rules of a user: seconds without use after which sandboxes are paused, stopped, ….

    0 is never; null applies the rule of the sandbox's spec, or else that of the server.
    """

    pause_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is paused; 0: never, null: rule of the spec or
    server"""
    reclaim_after_seconds: Seconds | None = None
    """Seconds without use after which the memory of a paused sandbox is moved to swap, if there is
    swap; 0: never, null: rule of the spec or server"""
    hibernate_after_seconds: Seconds | None = None
    """Seconds without use after which memory and processes of a paused sandbox are saved to disk,
    if its backend supports it; 0: never, null: rule of the spec or server"""
    stop_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is stopped and keeps only its files; 0: never,
    null: rule of the spec or server"""
    delete_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is deleted with its files; 0: never, null: rule of
    the spec or server"""


class RemovalView(msgspec.Struct, frozen=True, kw_only=True):
    """A failed removal of a sandbox; `user_id` is null for an orphan, which no record knows."""

    sandbox_id: str
    """Id of the sandbox"""
    user_id: str | None
    """Id of the user who owned the sandbox; null for an orphan"""
    sandbox_spec_id: str | None
    """Spec of the sandbox; null for an orphan"""
    backend: str
    """Name of the backend of the sandbox"""
    reason: str
    """Error of the backend at the last attempt, for people"""
    tries: int
    """Number of attempts so far"""
    next_try_at: Time | None
    """Time of the next attempt, in UTC; null: as soon as the backend is available"""


class Removals(msgspec.Struct, frozen=True, kw_only=True):
    """Failed removals of sandboxes."""

    items: list[RemovalView]
    """The removals, oldest first"""


class RemovalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the failed removals."""

    limit: Limit = PAGE_MAX


ROUTES: Final = Routes()


@ROUTES.add("GET", RULES)
async def get_rules(request: web.Request) -> SandboxRules:
    """Get your idle rules for sandboxes.

    For a rule that is null, the rule of the sandbox's spec applies, or else that of the server.
    """
    settings = await request.app[SETTINGS].get(user_of(request))
    return copy_to(SandboxRules, settings.sandbox_idle)


@ROUTES.add("PUT", RULES, errors=(NotFound,), example={"pause_after_seconds": 1800})
async def put_rules(request: web.Request, body: SandboxRules) -> SandboxRules:
    """Set your idle rules for sandboxes.

    Replaces all rules. For a rule that is null or omitted, the rule of the sandbox's spec applies,
    or else that of the server. The rules apply to all sandboxes of the user from now on.
    """
    rules = copy_to(IdleRules, body)
    settings = await request.app[SETTINGS].change(
        user_of(request), lambda old: _with_rules(old, rules)
    )
    return copy_to(SandboxRules, settings.sandbox_idle)


@ROUTES.add("GET", REMOVALS, scope=Scope.ADMIN_READ, example={"limit": 10})
async def get_removals(request: web.Request, query: RemovalQuery) -> Removals:
    """List failed removals of sandboxes.

    Sandboxes that the backend could not remove yet, with its last error, oldest first. Each removal
    is retried automatically.
    """
    items = [
        copy_to(RemovalView, it, sandbox_spec_id=it.spec_id, next_try_at=stored_or_none(it.due_at))
        for it in await request.app[SANDBOXES].failed_removals(query.limit)
    ]
    return Removals(items=items)


def _with_rules(old: Settings | None, rules: IdleRules) -> Settings:
    if old is None:
        raise NotFound("Settings not found: save settings before rules for sandboxes")
    return msgspec.structs.replace(old, sandbox_idle=rules)
