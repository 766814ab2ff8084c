"""Handlers of a user's rules for idle sandboxes, and of removals that fail."""

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
    """After how many seconds without use a user's sandboxes are paused, reclaimed, and so on.

    0 is never; null leaves it to the spec of the sandbox, and then to the server.
    """

    pause_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is paused; 0: never, null: as spec and server say
    """
    reclaim_after_seconds: Seconds | None = None
    """Seconds without use after which the memory of a paused sandbox is pushed out to swap, where
    there is any; 0: never, null: as spec and server say"""
    hibernate_after_seconds: Seconds | None = None
    """Seconds without use after which memory and processes of a paused sandbox are kept on disk, where
    its backend can; 0: never, null: as spec and server say"""
    stop_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is stopped, and keeps its files only; 0: never,
    null: as spec and server say"""
    delete_after_seconds: Seconds | None = None
    """Seconds without use after which a sandbox is deleted with its files; 0: never, null: as spec
    and server say"""


class RemovalView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be removed so far; `user_id` is null for what no record knows."""

    sandbox_id: str
    """Id of the sandbox"""
    user_id: str | None
    """Whose sandbox it was; null for what no record knows"""
    sandbox_spec_id: str | None
    """Spec of the sandbox; null for what no record knows"""
    backend: str
    """Name of the backend that is to remove it"""
    reason: str
    """What the backend said when it last failed, for people"""
    tries: int
    """Number of tries so far"""
    next_try_at: Time | None
    """When it is tried next, in UTC; null: as soon as the backend answers"""


class Removals(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be removed so far, the oldest first."""

    items: list[RemovalView]
    """The removals, oldest first"""


class RemovalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How many to list."""

    limit: Limit = PAGE_MAX


ROUTES: Final = Routes()


@ROUTES.add("GET", RULES)
async def get_rules(request: web.Request) -> SandboxRules:
    """Get the user's rules for idle sandboxes.

    Null leaves a rule to the spec of the sandbox, and then to the server.
    """
    settings = await request.app[SETTINGS].get(user_of(request))
    return copy_to(SandboxRules, settings.sandbox_idle)


@ROUTES.add("PUT", RULES, errors=(NotFound,), example={"pause_after_seconds": 1800})
async def put_rules(request: web.Request, body: SandboxRules) -> SandboxRules:
    """Set the user's rules for idle sandboxes.

    All are set: one that is left out, or null, is left to the spec of the sandbox, and then
    to the server. They count for all sandboxes of the user from now on.
    """
    rules = copy_to(IdleRules, body)
    settings = await request.app[SETTINGS].change(
        user_of(request), lambda old: _with_rules(old, rules)
    )
    return copy_to(SandboxRules, settings.sandbox_idle)


@ROUTES.add("GET", REMOVALS, scope=Scope.ADMIN_READ, example={"limit": 10})
async def get_removals(request: web.Request, query: RemovalQuery) -> Removals:
    """List what could not be removed so far, and why.

    Sandboxes whose removal has failed so far, with the backend's reason, the oldest first. Each is
    tried again by itself.
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
