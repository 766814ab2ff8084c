"""Handlers with which administrators look after users and their keys."""

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
    """A user; all keys of one who is blocked open nothing, and `leaving_at` is there in deletion."""

    id: str
    """Id of the user, 32 hex digits"""
    name: str
    """What the user is called; no two users have the same name"""
    role: Role
    """What the user may do"""
    created_at: Time
    blocked_at: Time | None
    """Since when no key and no login of the user opens anything; null for a user who is let in"""
    leaving_at: Time | None = None
    """Since when the user is being deleted; null otherwise"""


class UserOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new user: an `admin` looks after users and the server, a `viewer` changes nothing."""

    name: Name
    """What the user is called, 1 to 100 characters; refused if another user has the name"""
    role: Role = Role.MEMBER
    """What the user may do"""


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: Name | UnsetType = UNSET
    """New name, 1 to 100 characters; left out: unchanged"""
    role: Role | UnsetType = UNSET
    """New role; left out: unchanged. The last administrator keeps theirs"""
    is_blocked: bool | UnsetType = UNSET
    """True refuses every key and login of the user from now on, false lets the user in again; left
    out: unchanged"""


class DeletionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whether conversations, sandboxes and archives of the user go, too; else they are in the way."""

    with_owned: bool = False
    """Whether the user's conversations, sandboxes and archives are deleted first; if not, a user
    who has any is not deleted (409)"""


class OwnedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much a user owned of what is removed first."""

    conversations: int
    """Number of conversations"""
    sandboxes: int
    """Number of sandboxes"""
    archives: int
    """Number of saved workspaces"""


class UserDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A user who goes, and with what: `is_over` is false while sandboxes are still being removed."""

    id: str
    """Id of the user, 32 hex digits"""
    name: str
    """Name of the user"""
    is_over: bool
    """Whether the user is gone; false while sandboxes are still being removed, which goes on by
    itself"""
    owned: OwnedCounts
    """How much the user had when the deletion began"""


ROUTES: Final = Routes("/api/v1/users")


@ROUTES.add("GET", "", scope=Scope.ADMIN_READ)
async def get_users(request: web.Request) -> list[UserInfo]:
    """List all users.

    Also those who are blocked or being deleted.
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

    The user has no key yet: make one for them.
    """
    return await request.app[USERS].create(body.name, body.role)


@ROUTES.add("GET", "/{user_id}", scope=Scope.ADMIN_READ)
async def get_user(request: web.Request) -> UserInfo:
    """Return a user.

    As the list has them.
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
    """Rename a user, change the role, block or let in again.

    Only what is sent is changed. The last administrator can be neither blocked nor given another
    role (409).
    """
    patch = UserPatch(name=body.name, role=body.role, is_blocked=body.is_blocked)
    user = await request.app[USERS].change(path_user(request), patch)
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return view_of(UserInfo, user)


@ROUTES.add("DELETE", "/{user_id}", scope=Scope.ADMIN, errors=(Conflict,))
async def delete_user(request: web.Request, query: DeletionQuery) -> UserDeletion:
    """Delete a user, with all that is the user's where that is wanted.

    Keys, settings, secrets and tokens go, too. Conversations, sandboxes and archives are in the way
    (409) unless `with_owned` says that they go. It cannot be undone.
    """
    deletions, user_id = request.app[USER_DELETIONS], path_user(request)
    deletion = await deletions.request(user_id, with_owned=query.with_owned)
    await request.app[OPEN_CONNECTIONS].close_revoked()
    owned = copy_to(OwnedCounts, deletion.owned)
    return copy_to(UserDeletion, deletion.user, is_over=deletion.is_over, owned=owned)


@ROUTES.add("GET", "/{user_id}/keys", scope=Scope.ADMIN_READ)
async def get_keys(request: web.Request) -> list[KeyInfo]:
    """List the API keys of a user.

    What may be shown of those that are not revoked.
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
    """Make an API key for a user.

    The answer is the only one that has the key itself. A user has at most 1000 keys that are not
    revoked (409).
    """
    user = await request.app[USERS].get(path_user(request))
    return await create_key(request, user.id, body)


@ROUTES.add("DELETE", "/{user_id}/keys/{key_id}", scope=Scope.ADMIN, errors=(NotFound,))
async def delete_key(request: web.Request, key_id: str) -> Success:
    """Revoke an API key of a user.

    It opens nothing from now on; streams and connections with it end.
    """
    await request.app[KEYRING].revoke_key(key_id_of(key_id), user_id=path_user(request))
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return SUCCESS
