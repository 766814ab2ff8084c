"""Handlers of what users may use at most, and of what they have used."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.accounts import DayOfUse, Quotas
from agentsvc.http.keys import PRINCIPAL, QUOTAS, SANDBOXES, USERS
from agentsvc.http.routes import Routes, Scope
from agentsvc.http.wire import path_user

PREFIX: Final = "/api/v1/users"

type Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
type Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class QuotaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may use at most: null, or what is left out, is no limit; amounts are US dollars."""

    running_sandboxes: Count | None = None
    """Most sandboxes that run at a time; null: no limit"""
    conversations_per_hour: Count | None = None
    """Most conversations started in 60 minutes; null: no limit"""
    spend_per_day: Dollars | None = None
    """Most US dollars spent on models in a day of UTC; null: no limit"""
    spend_per_month: Dollars | None = None
    """Most US dollars spent on models in a month of UTC; null: no limit"""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has used of the quotas, which are of UTC's days and months."""

    quotas: QuotaLimits
    """What the user may use at most"""
    running_sandboxes: int
    """Sandboxes that run or start at present"""
    conversations_last_hour: int
    """Conversations started in the last 60 minutes"""
    spent_today: float
    """US dollars spent on models since midnight UTC"""
    spent_this_month: float
    """US dollars spent on models since the first of the month, UTC"""


class Days(msgspec.Struct, frozen=True, kw_only=True):
    """How far back to look."""

    days: Annotated[int, msgspec.Meta(ge=1, le=366)] = 30
    """How many days of UTC, today included"""


ROUTES: Final = Routes()


@ROUTES.add("GET", f"{PREFIX}/me/usage")
async def get_my_usage(request: web.Request) -> Usage:
    """Return your quotas and what you have used of them.

    Null in `quotas` is no limit. Days and months are those of UTC.
    """
    return await _usage_of(request, request[PRINCIPAL].user_id)


@ROUTES.add("GET", f"{PREFIX}/me/usage/days", example={"days": 7})
async def get_my_days(request: web.Request, query: Days) -> list[DayOfUse]:
    """Return what you have used of models, by day.

    The first day first. Days without use are left out, and so is what was used before this server
    told models apart.
    """
    days = query.days
    return await request.app[QUOTAS].days(days, request[PRINCIPAL].user_id)


@ROUTES.add("GET", "/api/v1/usage/days", scope=Scope.ADMIN_READ, example={"days": 7})
async def get_days(request: web.Request, query: Days) -> list[DayOfUse]:
    """Return what all users have used of models, by day.

    Of all users; otherwise as `users/me/usage/days`.
    """
    return await request.app[QUOTAS].days(query.days)


@ROUTES.add("GET", f"{PREFIX}/{{user_id}}/usage", scope=Scope.ADMIN_READ)
async def get_usage(request: web.Request) -> Usage:
    """Return the quotas of a user and what was used of them.

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
    """Set what a user may use at most.

    All four are set: one that is left out, or null, is no limit. What runs already goes on. The
    answer tells what the user has used.
    """
    user = await request.app[USERS].get(path_user(request))
    await request.app[QUOTAS].set(user.id, Quotas(**msgspec.structs.asdict(body)))
    return await _usage_of(request, user.id)


async def _usage_of(request: web.Request, user_id: str) -> Usage:
    quotas = await request.app[QUOTAS].get(user_id)
    used = await request.app[QUOTAS].used(user_id)
    return Usage(
        quotas=QuotaLimits(**msgspec.structs.asdict(quotas)),
        running_sandboxes=await request.app[SANDBOXES].gate.count_of(user_id),
        **msgspec.structs.asdict(used),
    )
