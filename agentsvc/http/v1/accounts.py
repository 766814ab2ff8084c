"""Handlers with which administrators look after users and their keys."""

from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.auth import KeyScope, Role
from agentsvc.departures import Departure
from agentsvc.errors import BadRequest, Conflict, NotFound
from agentsvc.http.keys import ADMITTED, DEPARTURES, KEYRING, USERS
from agentsvc.http.routes import Effect, Example, Route, Scope
from agentsvc.http.v1.api_keys import (
    KeyInfo,
    KeyOrder,
    NewKeyInfo,
    answer_key,
    create_key,
    from_key,
    key_id_of,
)
from agentsvc.http.wire import (
    SUCCESS,
    Success,
    Time,
    json_response,
    path_text,
    read_json,
    read_query,
)
from agentsvc.users import User, UserPatch
from agentsvc.values import stored_or_none, to_stored

PREFIX: Final = "/api/v1/users"

type Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user; all keys of one who is blocked open nothing, and `leaving_at` is there in deletion."""

    id: str
    name: str
    role: Role
    created_at: Time
    blocked_at: Time | None
    leaving_at: Time | None = None


class UserOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new user: an `admin` looks after users and the server, a `viewer` changes nothing."""

    name: Name
    role: Role = Role.MEMBER


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed; what is left out stays."""

    name: Name | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    is_blocked: bool | UnsetType = UNSET


class DeletionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whether conversations, sandboxes and archives of the user go, too; else they are in the way."""

    with_owned: bool = False


class OwnedCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much a user owned of what is removed first."""

    conversations: int
    sandboxes: int
    archives: int


class UserDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """A user who goes, and with what: `is_over` is false while sandboxes are still being removed."""

    id: str
    name: str
    is_over: bool
    owned: OwnedCounts


_ORDER = msgspec.json.Decoder(UserOrder)
_CHANGE = msgspec.json.Decoder(UserChange)


async def get_users(request: web.Request) -> web.Response:
    """GET /users."""
    return json_response([_from_user(user) for user in await request.app[USERS].list_all()])


async def post_user(request: web.Request) -> web.Response:
    """POST /users."""
    order = await read_json(request, _ORDER)
    user = await request.app[USERS].create(order.name, order.role)
    return _answer_user(request, user)


def _answer_user(_request: web.Request, user: User) -> web.Response:
    return json_response(_from_user(user), status=HTTPStatus.CREATED)


async def get_user(request: web.Request) -> web.Response:
    """GET /users/{user_id}."""
    return json_response(_from_user(await request.app[USERS].get(_user_id(request))))


async def patch_user(request: web.Request) -> web.Response:
    """PATCH /users/{user_id}."""
    change = await read_json(request, _CHANGE)
    patch = UserPatch(name=change.name, role=change.role, is_blocked=change.is_blocked)
    user = await request.app[USERS].change(_user_id(request), patch)
    await request.app[ADMITTED].look()
    return json_response(_from_user(user))


async def delete_user(request: web.Request) -> web.Response:
    """DELETE /users/{user_id}."""
    query = read_query(request, DeletionQuery)
    departure = await request.app[DEPARTURES].let_go(_user_id(request), with_owned=query.with_owned)
    await request.app[ADMITTED].look()
    return json_response(_from_departure(departure))


async def get_keys(request: web.Request) -> web.Response:
    """GET /users/{user_id}/keys."""
    user = await request.app[USERS].get(_user_id(request))
    return json_response(
        [from_key(key) for key in await request.app[KEYRING].list_keys_of(user.id)]
    )


async def post_key(request: web.Request) -> web.Response:
    """POST /users/{user_id}/keys."""
    user = await request.app[USERS].get(_user_id(request))
    return answer_key(request, await create_key(request, user.id))


async def delete_key(request: web.Request) -> web.Response:
    """DELETE /users/{user_id}/keys/{key_id}: revokes it."""
    key_id = key_id_of(path_text(request, "key_id"))
    await request.app[KEYRING].revoke_key(key_id, user_id=_user_id(request))
    await request.app[ADMITTED].look()
    return json_response(SUCCESS)


def _user_id(request: web.Request) -> str:
    return path_text(request, "user_id")


def _from_user(user: User) -> UserInfo:
    return UserInfo(
        id=user.id,
        name=user.name,
        role=user.role,
        created_at=to_stored(user.created_at),
        blocked_at=stored_or_none(user.blocked_at),
        leaving_at=stored_or_none(user.leaving_at),
    )


def _from_departure(departure: Departure) -> UserDeletion:
    return UserDeletion(
        id=departure.user.id,
        name=departure.user.name,
        is_over=departure.is_over,
        owned=OwnedCounts(**msgspec.structs.asdict(departure.owned)),
    )


ROUTES: Final = (
    Route(
        method="GET",
        path=PREFIX,
        handler=get_users,
        scope=Scope.ADMIN_READ,
        rank="P3",
        summary="List all users",
        answer=list[UserInfo],
    ),
    Route(
        method="POST",
        path=PREFIX,
        handler=post_user,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Add a user",
        body=UserOrder,
        answer=UserInfo,
        status=HTTPStatus.CREATED,
        effect=Effect(kind=User, answer=_answer_user),
        errors=(BadRequest, Conflict),
        example=Example(body={"name": "ann", "role": "member"}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/{{user_id}}",
        handler=get_user,
        scope=Scope.ADMIN_READ,
        rank="P3",
        summary="Return a user",
        answer=UserInfo,
    ),
    Route(
        method="PATCH",
        path=f"{PREFIX}/{{user_id}}",
        handler=patch_user,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Rename a user, change the role, block or let in again",
        body=UserChange,
        answer=UserInfo,
        errors=(BadRequest, Conflict),
        example=Example(body={"role": "viewer", "is_blocked": False}),
    ),
    Route(
        method="DELETE",
        path=f"{PREFIX}/{{user_id}}",
        handler=delete_user,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Delete a user, with all that is the user's where that is wanted",
        query=DeletionQuery,
        answer=UserDeletion,
        errors=(Conflict,),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/{{user_id}}/keys",
        handler=get_keys,
        scope=Scope.ADMIN_READ,
        rank="P3",
        summary="List the API keys of a user",
        answer=list[KeyInfo],
    ),
    Route(
        method="POST",
        path=f"{PREFIX}/{{user_id}}/keys",
        handler=post_key,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Make an API key for a user",
        body=KeyOrder,
        answer=NewKeyInfo,
        effect=Effect(kind=tuple, answer=answer_key),
        errors=(BadRequest,),
        example=Example(body={"name": "build server", "scope": KeyScope.RUN}),
    ),
    Route(
        method="DELETE",
        path=f"{PREFIX}/{{user_id}}/keys/{{key_id}}",
        handler=delete_key,
        scope=Scope.ADMIN,
        rank="P3",
        summary="Revoke an API key of a user",
        answer=Success,
        errors=(NotFound,),
    ),
)
