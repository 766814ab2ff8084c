"""Handler by which services that act for users get keys of these users, with a service key."""

from typing import Annotated, Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, NotAllowed, ShownSecret, dashed
from agentsvc.http.keys import PRINCIPAL, SERVICE_KEYS
from agentsvc.http.routes import SERVICE_HEADER, Routes, Scope


class ServiceKeyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a user's key."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    """Name of the key, at most 100 characters"""


class ServiceKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user's key for the service."""

    key: ShownSecret
    """The key itself; it has the scope `run`"""
    user_id: str
    """Id of the user, with dashes"""
    org_id: str
    """Id of the user's organization, equal to the id of the user"""
    name: str
    """Name of the key"""


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
    """Get a user's key, for a service that acts for users.

    Returns the same key each time until the user revokes it, then a new one. The service
    authenticates with a key of the scope `service` in `X-Service-API-Key`; when that key is revoked
    or expires, the user's key becomes invalid, too.
    """
    if org_id != user_id:
        raise NotAllowed("The user is not a member of this organization")
    key = await request.app[SERVICE_KEYS].make(request[PRINCIPAL].key_id, user_id, body.name)
    shown = dashed(user_id)
    return ServiceKeyInfo(key=key.reveal(), user_id=shown, org_id=shown, name=body.name)
