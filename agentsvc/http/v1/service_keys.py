"""The handler of services that act for users: they get keys of users with a key of their own."""

from typing import Annotated, Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, NotAllowed, ShownSecret, dashed
from agentsvc.http.keys import PRINCIPAL, SERVICE_KEYS
from agentsvc.http.routes import SERVICE_HEADER, Routes, Scope


class ServiceKeyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which key of the user is wanted."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    """What the key is called, at most 100 characters"""


class ServiceKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the user, for the service."""

    key: ShownSecret
    """The key itself, of the scope `run`"""
    user_id: str
    """Id of the user, with dashes"""
    org_id: str
    """Id of the user's organization, which is that of the user"""
    name: str
    """What the key is called"""


ROUTES: Final = Routes("/api/service/users")


@ROUTES.add(
    "POST",
    "/{user_id}/orgs/{org_id}/api-keys",
    path_types={"user_id": UUID},
    scope=Scope.ADMIN,
    key_header=SERVICE_HEADER,
    errors=(BadRequest,),
    example={"name": "automation"},
)
async def post_key(
    request: web.Request, user_id: str, org_id: str, body: ServiceKeyOrder
) -> ServiceKeyInfo:
    """Return a key of a user, for a service that acts for users.

    The same key each time, until the user revokes it; then another one. It ends with the service's own
    key, which is one of the scope `service` in `X-Service-API-Key`.
    """
    if org_id != user_id:
        raise NotAllowed("The user is not a member of this organization")
    key = await request.app[SERVICE_KEYS].make(request[PRINCIPAL].key_id, user_id, body.name)
    shown = dashed(user_id)
    return ServiceKeyInfo(key=key.reveal(), user_id=shown, org_id=shown, name=body.name)
