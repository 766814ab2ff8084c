"""Handlers of the calling user's account, and of quotas and usage."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.accounts import DayOfUse, Quotas, QuotaUse
from agentsvc.base import NotAllowed, NotAuthenticated, copy_to
from agentsvc.domain import Provider
from agentsvc.http.git_views import Account
from agentsvc.http.keys import GIT_PROVIDERS, PRINCIPAL, QUOTAS, SANDBOXES, SETTINGS, USERS, user_of
from agentsvc.http.routes import OF_GIT_PROVIDERS, READS_ONLY, Routes, Scope
from agentsvc.http.v1.settings import Expose, UserView, from_user
from agentsvc.http.wire import json_response, path_user

PREFIX: Final = "/api/v1/users"


class UserGitInfo(Account, frozen=True, kw_only=True):
    """The user's account at the git provider."""


class GitOrganizations(msgspec.Struct, frozen=True, kw_only=True):
    """The organizations, groups or workspaces of the user at the git provider."""

    provider: Provider
    """The git provider"""
    organizations: list[str]
    """Names of the organizations"""


ROUTES: Final = Routes()


@ROUTES.add("GET", f"{PREFIX}/me", UserView, errors=(NotAllowed,))
async def get_me(request: web.Request, query: Expose) -> web.Response:
    """Get your user and settings.

    The settings and the identity of the user. Secrets are shown only with `expose_secrets` and the
    session key of a running sandbox of the user.
    """
    if query.expose_secrets:
        await _require_sandbox(request)
    user = request[PRINCIPAL]
    settings = await request.app[SETTINGS].get(user.user_id)
    return json_response(from_user(user, settings, is_revealed=query.expose_secrets))


@ROUTES.add("GET", f"{PREFIX}/git-info", errors=OF_GIT_PROVIDERS)
async def get_git_info(request: web.Request) -> UserGitInfo:
    """Get your account at your git provider.

    From the first provider that accepts the user's token.
    """
    return copy_to(UserGitInfo, await request.app[GIT_PROVIDERS].get_account(user_of(request)))


@ROUTES.add("GET", f"{PREFIX}/git-organizations", errors=OF_GIT_PROVIDERS)
async def get_git_organizations(request: web.Request) -> GitOrganizations:
    """List your organizations, groups or workspaces at your git provider.

    From the first provider that accepts the user's token.
    """
    provider, names = await request.app[GIT_PROVIDERS].get_organizations(user_of(request))
    return GitOrganizations(provider=provider, organizations=names)


async def _require_sandbox(request: web.Request) -> None:
    """Raise NotAuthenticated or NotAllowed without the session key of a user's running sandbox."""
    if not request[PRINCIPAL].may_run:
        raise NotAllowed(READS_ONLY)
    key = request.headers.get("X-Session-API-Key", "").strip()
    if not key or not key.isascii():
        raise NotAuthenticated("X-Session-API-Key of a running sandbox is required")
    sandbox = await request.app[SANDBOXES].identify(key)
    if sandbox.user_id != user_of(request):
        raise NotAllowed("The sandbox belongs to another user")


class QuotaLimits(Quotas, frozen=True, kw_only=True):
    """Quotas of a user; null, or a field that is omitted, is no limit. Amounts are US dollars."""


class Usage(QuotaUse, frozen=True, kw_only=True):
    """Usage of a user's quotas, per day and month of UTC."""

    quotas: QuotaLimits
    """Quotas of the user"""
    running_sandboxes: int
    """Number of sandboxes that are running or starting"""


class Days(msgspec.Struct, frozen=True, kw_only=True):
    """Query for usage by day."""

    days: Annotated[int, msgspec.Meta(ge=1, le=366)] = 30
    """Number of UTC days, including today"""


@ROUTES.add("GET", f"{PREFIX}/me/usage")
async def get_my_usage(request: web.Request) -> Usage:
    """Get your quotas and your usage.

    Null in `quotas` is no limit. Days and months are those of UTC.
    """
    return await _usage_of(request, user_of(request))


@ROUTES.add("GET", f"{PREFIX}/me/usage/days", example={"days": 7})
async def get_my_days(request: web.Request, query: Days) -> list[DayOfUse]:
    """List your model usage by day.

    Earliest day first. Days without usage are omitted, and so is usage from before this server
    recorded it by model.
    """
    return await request.app[QUOTAS].days(query.days, user_of(request))


@ROUTES.add("GET", "/api/v1/usage/days", scope=Scope.ADMIN_READ, example={"days": 7})
async def get_days(request: web.Request, query: Days) -> list[DayOfUse]:
    """List the model usage of all users by day.

    As `users/me/usage/days`, but for all users.
    """
    return await request.app[QUOTAS].days(query.days)


@ROUTES.add("GET", f"{PREFIX}/{{user_id}}/usage", scope=Scope.ADMIN_READ)
async def get_usage(request: web.Request) -> Usage:
    """Get the quotas and the usage of a user.

    Null in `quotas` is no limit. Days and months are those of UTC.
    """
    user = await request.app[USERS].get(path_user(request))
    return await _usage_of(request, user.id)


@ROUTES.add(
    "PUT",
    f"{PREFIX}/{{user_id}}/quotas",
    scope=Scope.ADMIN,
    example={"running_sandboxes": 5, "spend_per_day": 20.0},
)
async def put_quotas(request: web.Request, body: QuotaLimits) -> Usage:
    """Set the quotas of a user.

    Replaces all four quotas: null, or a field that is omitted, is no limit. Running sandboxes are
    not stopped. The response has the usage of the user.
    """
    user = await request.app[USERS].get(path_user(request))
    await request.app[QUOTAS].set(user.id, copy_to(Quotas, body))
    return await _usage_of(request, user.id)


async def _usage_of(request: web.Request, user_id: str) -> Usage:
    quotas = await request.app[QUOTAS].get(user_id)
    used = await request.app[QUOTAS].used(user_id)
    return Usage(
        quotas=copy_to(QuotaLimits, quotas),
        running_sandboxes=await request.app[SANDBOXES].admission.count_of(user_id),
        **msgspec.structs.asdict(used),
    )
