"""Handlers by which administrators manage users and their API keys."""

from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.accounts import ApiKey, KeyScope, Role, User, UserPatch
from agentsvc.base import BadRequest, Conflict, NotFound, Secret, copy_to, view_of
from agentsvc.http.keys import KEYRING, OPEN_CONNECTIONS, USER_DELETIONS, USERS
from agentsvc.http.routes import Routes, Scope, effect_of
from agentsvc.http.v1.api_keys import (
    KeyInfo,
    KeyOrder,
    create_key,
    key_id_of,
    show_new_key,
)
from agentsvc.http.wire import SUCCESS, Success, Time, path_user

type Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user. All keys of a blocked user are rejected; `leaving_at` is set during a deletion."""

    id: str
    """Id of the user, 32 hex digits"""
    name: str
    """Name of the user; unique on this server"""
    role: Role
    """Role of the user, which limits what all their keys permit"""
    created_at: Time
    blocked_at: Time | None
    """When the user was blocked: their keys and logins are rejected. Null if the user is not
    blocked"""
    leaving_at: Time | None = None
    """When the deletion of the user began; null if the user is not being deleted"""


class UserOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new user: an `admin` manages users and the server, a `viewer` can only read."""

    name: Name
    """Name of the user, 1 to 100 characters; refused if another user has the name"""
    role: Role = Role.MEMBER
    """Role of the user"""


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a user; fields that are omitted stay unchanged."""

    name: Name | UnsetType = UNSET
    """New name, 1 to 100 characters; omitted: unchanged"""
    role: Role | UnsetType = UNSET
    """New role; omitted: unchanged. The role of the last administrator cannot be changed"""
    is_blocked: bool | UnsetType = UNSET
    """True rejects every key and login of the user from now on, false accepts them again; left
    out: unchanged"""


class DeletionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the deletion of a user."""

    with_owned: bool = False
    """Whether to delete the user's conversations, sandboxes and archives first; if false, a user
    who has any is not deleted (409)"""


class OwnedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what a user owned and what is deleted before the user."""

    conversations: int
    """Number of conversations"""
    sandboxes: int
    """Number of sandboxes"""
    archives: int
    """Number of saved workspaces"""


class UserDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """The deletion of a user; `is_over` is false while sandboxes are still being removed."""

    id: str
    """Id of the user, 32 hex digits"""
    name: str
    """Name of the user"""
    is_over: bool
    """Whether the user has been deleted; false while sandboxes are still being removed in the
    background"""
    owned: OwnedCounts
    """What the user owned when the deletion began"""


ROUTES: Final = Routes("/api/v1/users")


@ROUTES.add("GET", "", scope=Scope.ADMIN_READ)
async def get_users(request: web.Request) -> list[UserInfo]:
    """List all users.

    Includes users who are blocked or being deleted.
    """
    return [view_of(UserInfo, user) for user in await request.app[USERS].list_all()]


@ROUTES.add(
    "POST",
    "",
    UserInfo,
    scope=Scope.ADMIN,
    effect=effect_of(User, partial(view_of, UserInfo), status=HTTPStatus.CREATED),
    errors=(BadRequest, Conflict),
    example={"name": "ann", "role": "member"},
)
async def post_user(request: web.Request, body: UserOrder) -> User:
    """Add a user.

    The user has no API key yet; create one with `POST /api/v1/users/{user_id}/keys`.
    """
    return await request.app[USERS].create(body.name, body.role)


@ROUTES.add("GET", "/{user_id}", scope=Scope.ADMIN_READ)
async def get_user(request: web.Request) -> UserInfo:
    """Get a user.

    In the same form as in the list of users.
    """
    return view_of(UserInfo, await request.app[USERS].get(path_user(request)))


@ROUTES.add(
    "PATCH",
    "/{user_id}",
    scope=Scope.ADMIN,
    errors=(BadRequest, Conflict),
    example={"role": "viewer", "is_blocked": False},
)
async def patch_user(request: web.Request, body: UserChange) -> UserInfo:
    """Change the name or role of a user, block or unblock them.

    Only the fields in the request are changed. The last administrator can be neither blocked nor
    given another role (409).
    """
    patch = UserPatch(name=body.name, role=body.role, is_blocked=body.is_blocked)
    user = await request.app[USERS].change(path_user(request), patch)
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return view_of(UserInfo, user)


@ROUTES.add("DELETE", "/{user_id}", scope=Scope.ADMIN, errors=(Conflict,))
async def delete_user(request: web.Request, query: DeletionQuery) -> UserDeletion:
    """Delete a user, and on request everything they own.

    Keys, settings, secrets and tokens are deleted with the user. A user who has conversations,
    sandboxes or archives is deleted only with `with_owned`; otherwise the answer is 409. This
    cannot be undone.
    """
    deletions, user_id = request.app[USER_DELETIONS], path_user(request)
    deletion = await deletions.request(user_id, with_owned=query.with_owned)
    await request.app[OPEN_CONNECTIONS].close_revoked()
    owned = copy_to(OwnedCounts, deletion.owned)
    return copy_to(UserDeletion, deletion.user, is_over=deletion.is_over, owned=owned)


@ROUTES.add("GET", "/{user_id}/keys", scope=Scope.ADMIN_READ)
async def get_keys(request: web.Request) -> list[KeyInfo]:
    """List the API keys of a user.

    Name, scope and times of the keys that are not revoked, never the keys themselves.
    """
    user = await request.app[USERS].get(path_user(request))
    return [view_of(KeyInfo, key) for key in await request.app[KEYRING].list_keys_of(user.id)]


@ROUTES.add(
    "POST",
    "/{user_id}/keys",
    scope=Scope.ADMIN,
    effect=effect_of(tuple, show_new_key),
    errors=(BadRequest, Conflict),
    example={"name": "build server", "scope": KeyScope.RUN},
)
async def post_key(request: web.Request, body: KeyOrder) -> tuple[ApiKey, Secret]:
    """Create an API key for a user.

    Only this response contains the key itself. A user has at most 1000 keys that are not revoked
    (409).
    """
    user = await request.app[USERS].get(path_user(request))
    return await create_key(request, user.id, body)


@ROUTES.add("DELETE", "/{user_id}/keys/{key_id}", scope=Scope.ADMIN, errors=(NotFound,))
async def delete_key(request: web.Request, key_id: str) -> Success:
    """Revoke an API key of a user.

    The key is rejected from now on; streams and connections opened with it are closed.
    """
    await request.app[KEYRING].revoke_key(key_id_of(key_id), user_id=path_user(request))
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return SUCCESS
