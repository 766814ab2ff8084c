"""Handlers of what users may use at most, and of what they have used."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.http.keys import PRINCIPAL, QUOTAS, SANDBOXES, USERS
from agentsvc.http.routes import Example, Route, Scope
from agentsvc.http.wire import json_response, path_text, read_json
from agentsvc.quotas import Quotas

PREFIX: Final = "/api/v1/users"

type Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
type Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class QuotaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may use at most: null, or what is left out, is no limit; amounts are US dollars."""

    running_sandboxes: Count | None = None
    conversations_per_hour: Count | None = None
    spend_per_day: Dollars | None = None
    spend_per_month: Dollars | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has used of the quotas, which are of UTC's days and months."""

    quotas: QuotaLimits
    running_sandboxes: int
    conversations_last_hour: int
    spent_today: float
    spent_this_month: float


_LIMITS = msgspec.json.Decoder(QuotaLimits)


async def get_my_usage(request: web.Request) -> web.Response:
    """GET /users/me/usage."""
    return json_response(await _usage_of(request, request[PRINCIPAL].user_id))


async def get_usage(request: web.Request) -> web.Response:
    """GET /users/{user_id}/usage."""
    user = await request.app[USERS].get(path_text(request, "user_id"))
    return json_response(await _usage_of(request, user.id))


async def put_quotas(request: web.Request) -> web.Response:
    """PUT /users/{user_id}/quotas."""
    limits = await read_json(request, _LIMITS)
    user = await request.app[USERS].get(path_text(request, "user_id"))
    await request.app[QUOTAS].set(user.id, Quotas(**msgspec.structs.asdict(limits)))
    return json_response(await _usage_of(request, user.id))


async def _usage_of(request: web.Request, user_id: str) -> Usage:
    quotas = await request.app[QUOTAS].get(user_id)
    used = await request.app[QUOTAS].used(user_id)
    return Usage(
        quotas=QuotaLimits(**msgspec.structs.asdict(quotas)),
        running_sandboxes=await request.app[SANDBOXES].gate.count_of(user_id),
        **msgspec.structs.asdict(used),
    )


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{PREFIX}/me/usage",
        handler=get_my_usage,
        scope=Scope.READ,
        rank="P3",
        summary="Return your quotas and what you have used of them",
        answer=Usage,
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/{{user_id}}/usage",
        handler=get_usage,
        scope=Scope.ADMIN_READ,
        rank="P3",
        summary="Return the quotas of a user and what was used of them",
        answer=Usage,
    ),
    Route(
        method="PUT",
        path=f"{PREFIX}/{{user_id}}/quotas",
        handler=put_quotas,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Set what a user may use at most",
        body=QuotaLimits,
        answer=Usage,
        example=Example(body={"running_sandboxes": 5, "spend_per_day": 20.0}),
    ),
)
