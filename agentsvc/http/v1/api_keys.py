"""Handlers of a user's own API keys."""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.accounts import ApiKey, KeyScope, Role
from agentsvc.base import (
    MAX_INT,
    BadRequest,
    Conflict,
    InvalidRequest,
    NotFound,
    Secret,
    ShownSecret,
    copy_to,
    dashed,
    now,
    view_of,
)
from agentsvc.http.keys import KEYRING, OPEN_CONNECTIONS, PRINCIPAL, user_of
from agentsvc.http.routes import Routes, Scope, effect_of
from agentsvc.http.wire import Time, find_time

_DEFAULT_NAME: Final = "API key"
_LONGEST_ID: Final = len(str(MAX_INT))


class KeyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a new key shall be; both times are ISO 8601. An `org_id` is ignored: there are none.

    `scope` is what it opens of all that its user may do: `read` what only looks, `run` all but keys,
    logins, users and the server itself, `admin` everything; `service` nothing but keys for users, with
    which a service acts for them, and only an administrator has one.
    """

    name: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    """What the key is called, at most 100 characters; left out, null or empty: `API key`"""
    scope: KeyScope = KeyScope.ADMIN
    """What the key opens of what its user may do"""
    not_before: Time | None = None
    """Moment from which the key counts; null: at once"""
    expires_at: Time | None = None
    """Moment from which the key counts no more; null: never"""


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of a key."""

    id: int
    """Number of the key"""
    name: str
    """What the key is called"""
    scope: KeyScope
    """What the key opens of what its user may do"""
    created_at: Time
    last_used_at: Time | None
    """When the key was last used, to within some minutes; null if never"""
    not_before: Time | None
    """Moment from which the key counts; null: at once"""
    expires_at: Time | None
    """Moment from which the key counts no more; null: never"""
    org_id: str | None = None
    """Always null: there are no organizations"""


class NewKeyInfo(KeyInfo, frozen=True, kw_only=True):
    """A key at the only moment it can be seen."""

    key: ShownSecret
    """The key itself; it is shown here only and cannot be read again"""


class CurrentKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of the request; every user is an organization of one."""

    id: int
    """Number of the key"""
    name: str
    """What the key is called"""
    org_id: str
    """Id of the user with dashes: each user is an organization of one"""
    bound_org_id: str | None
    """Always null: no key is bound to an organization"""
    user_id: str
    """Id of the user whose key it is, with dashes"""
    user_name: str
    """Name of the user whose key it is"""
    role: Role
    """What the user may do"""
    scope: KeyScope
    """What the key opens of that"""
    auth_type: str = "bearer"
    """How the key came; always `bearer`"""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str
    """What was done, in words"""


class ModelKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key for language models that the service provides: there is none, users bring their own."""

    key: str | None = None
    """Always null"""


ROUTES: Final = Routes("/api/keys")


def show_new_key(made: tuple[ApiKey, Secret]) -> NewKeyInfo:
    """Return a key at the only moment it can be seen."""
    key, secret = made
    return view_of(NewKeyInfo, key, key=secret.reveal())


@ROUTES.add("GET", "")
async def get_keys(request: web.Request) -> list[KeyInfo]:
    """List your API keys.

    What may be shown of those that are not revoked, never the keys themselves.
    """
    keys = await request.app[KEYRING].list_keys_of(user_of(request))
    return [view_of(KeyInfo, key) for key in keys]


@ROUTES.add(
    "POST",
    "",
    scope=Scope.MANAGE,
    effect=effect_of(tuple, show_new_key),
    errors=(BadRequest, Conflict),
    example={"name": "build server"},
)
async def post_key(request: web.Request, body: KeyOrder) -> tuple[ApiKey, Secret]:
    """Make an API key for yourself.

    The answer is the only one that has the key itself. A user has at most 1000 keys that are not
    revoked (409).
    """
    return await create_key(request, user_of(request), body)


async def create_key(request: web.Request, user_id: str, order: KeyOrder) -> tuple[ApiKey, Secret]:
    """Make the key that is ordered, for a user."""
    return await request.app[KEYRING].create_key(
        user_id,
        order.name or _DEFAULT_NAME,
        scope=order.scope,
        not_before=find_time(order.not_before, "not_before", place="body"),
        expires_at=_future(order.expires_at, "expires_at"),
    )


@ROUTES.add("GET", "/current")
async def get_current_key(request: web.Request) -> CurrentKey:
    """Describe the API key of the request.

    Whose key it is, and what it opens.
    """
    caller = request[PRINCIPAL]
    key = await request.app[KEYRING].get_key(caller.key_id)
    user_id = dashed(caller.user_id)
    user = {"user_id": user_id, "org_id": user_id, "role": caller.role}
    return copy_to(CurrentKey, key, bound_org_id=None, **user)


@ROUTES.add("GET", "/llm/byor")
async def get_model_key(_request: web.Request) -> ModelKey:
    """Say that the service provides no key for language models.

    For the published command line, which asks for it; users bring their own keys for models.
    """
    return ModelKey()


@ROUTES.add("DELETE", "/{key_id}", scope=Scope.MANAGE)
async def delete_key(request: web.Request, key_id: str) -> Message:
    """Revoke one of your API keys.

    It opens nothing from now on; logins, streams and connections with it end. It may be the key of
    the request.
    """
    number = key_id_of(key_id)
    try:
        await request.app[KEYRING].revoke_key(number, user_id=user_of(request))
    except NotFound as exc:
        raise NotFound("API key not found") from exc
    await request.app[OPEN_CONNECTIONS].close_revoked()
    return Message(message="API key deleted successfully")


def _future(text: str | None, field: str) -> datetime | None:
    moment = find_time(text, field, place="body")
    if moment is not None and moment <= now():
        raise InvalidRequest("Expiration date cannot be in the past", loc=("body", field))
    return moment


def key_id_of(text: str) -> int:
    """Return the number of a key in a path; raises InvalidRequest for what is none."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(
            "Input should be a valid integer", loc=("path", "key_id"), kind="int_parsing"
        )
    # No key has a number that the database cannot hold.
    return int(text) if len(text) < _LONGEST_ID else 0
