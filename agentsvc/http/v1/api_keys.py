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
    """A new API key; both times are ISO 8601. An `org_id` is ignored: there are no organizations.

    `scope` limits the permissions of the key within those of its user: `read` permits read-only
    requests, `run` everything except the management of keys, logins, users and the server, `admin`
    everything. `service` permits only the creation of keys for users, with which a service acts for
    them; only administrators can have such a key.
    """

    name: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    """Name of the key, at most 100 characters; omitted, null or empty: `API key`"""
    scope: KeyScope = KeyScope.ADMIN
    """What the key permits, within the permissions of its user"""
    not_before: Time | None = None
    """When the key becomes valid; null: at once"""
    expires_at: Time | None = None
    """When the key expires; null: never"""


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without the key itself."""

    id: int
    """Number of the key"""
    name: str
    """Name of the key"""
    scope: KeyScope
    """What the key permits, within the permissions of its user"""
    created_at: Time
    last_used_at: Time | None
    """When the key was last used, accurate to a few minutes; null if never"""
    not_before: Time | None
    """When the key becomes valid; null: at once"""
    expires_at: Time | None
    """When the key expires; null: never"""
    org_id: str | None = None
    """Always null: there are no organizations"""


class NewKeyInfo(KeyInfo, frozen=True, kw_only=True):
    """A new API key with the key itself, which is shown only once."""

    key: ShownSecret
    """The key itself; only this response contains it, and it cannot be read again"""


class CurrentKey(msgspec.Struct, frozen=True, kw_only=True):
    """The API key of the request; every user is an organization of one."""

    id: int
    """Number of the key"""
    name: str
    """Name of the key"""
    org_id: str
    """Id of the user with dashes: each user is an organization of one"""
    bound_org_id: str | None
    """Always null: no key is bound to an organization"""
    user_id: str
    """Id of the user who owns the key, with dashes"""
    user_name: str
    """Name of the user who owns the key"""
    role: Role
    """Role of the user"""
    scope: KeyScope
    """What the key permits, within the permissions of its user"""
    auth_type: str = "bearer"
    """Authentication scheme; always `bearer`"""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a change."""

    message: str
    """Confirmation, for people"""


class ModelKey(msgspec.Struct, frozen=True, kw_only=True):
    """A model key provided by the service: always null, because users bring their own keys."""

    key: str | None = None
    """Always null"""


ROUTES: Final = Routes("/api/keys")


def show_new_key(made: tuple[ApiKey, Secret]) -> NewKeyInfo:
    """Return a new key in the form of the response, with the key itself."""
    key, secret = made
    return view_of(NewKeyInfo, key, key=secret.reveal())


@ROUTES.add("GET", "")
async def get_keys(request: web.Request) -> list[KeyInfo]:
    """List your API keys.

    Name, scope and times of the keys that are not revoked, never the keys themselves.
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
    """Create an API key for yourself.

    Only this response contains the key itself. A user has at most 1000 keys that are not revoked
    (409).
    """
    return await create_key(request, user_of(request), body)


async def create_key(request: web.Request, user_id: str, order: KeyOrder) -> tuple[ApiKey, Secret]:
    """Create an API key for a user; raises InvalidRequest for an `expires_at` in the past."""
    return await request.app[KEYRING].create_key(
        user_id,
        order.name or _DEFAULT_NAME,
        scope=order.scope,
        not_before=find_time(order.not_before, "not_before", place="body"),
        expires_at=_future(order.expires_at, "expires_at"),
    )


@ROUTES.add("GET", "/current")
async def get_current_key(request: web.Request) -> CurrentKey:
    """Get the API key of the request.

    Its owner, role and scope.
    """
    caller = request[PRINCIPAL]
    key = await request.app[KEYRING].get_key(caller.key_id)
    user_id = dashed(caller.user_id)
    user = {"user_id": user_id, "org_id": user_id, "role": caller.role}
    return copy_to(CurrentKey, key, bound_org_id=None, **user)


@ROUTES.add("GET", "/llm/byor")
async def get_model_key(_request: web.Request) -> ModelKey:
    """Get the model key provided by the service, which is always null.

    The published command line asks for it. On this server users bring their own model keys.
    """
    return ModelKey()


@ROUTES.add("DELETE", "/{key_id}", scope=Scope.MANAGE)
async def delete_key(request: web.Request, key_id: str) -> Message:
    """Revoke one of your API keys.

    The key is rejected from now on; logins, streams and connections opened with it end. A request
    may revoke its own key.
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
    """Parse the number of a key in a path; raises InvalidRequest if it is not a number."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(
            "Input should be a valid integer", loc=("path", "key_id"), kind="int_parsing"
        )
    # The database cannot hold longer numbers, so no key has one; 0 is the number of no key.
    return int(text) if len(text) < _LONGEST_ID else 0
