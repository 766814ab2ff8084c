"""Users and their API keys: create, identify, revoke.

Only the SHA-256 of a key is stored: keys are long and random, so a slow hash would only cost time.
Session keys belong to `sandboxes`.
"""

import json
import logging
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from agentsvc.base import (
    BadRequest,
    Conflict,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Secret,
    StorageFailed,
    values,
)
from agentsvc.storage import Database, Queryable, Row, Transaction, note_effect, record_of, row_of

log = logging.getLogger(__name__)

KEY_PREFIX: Final = "asvc_"
SHORTEST_KEY: Final = 32
"""Minimum length of a key that is given instead of generated."""

_LONGEST_NAME: Final = 100
_PREFIX_LENGTH: Final = len(KEY_PREFIX) + 4
MAX_KEYS: Final = 1000
"""Maximum number of unrevoked keys per user; all are listed on one page."""
USE_IS_NOTED_EVERY: Final = timedelta(minutes=1)
"""Minimum time between two updates of a key's last use."""


class Role(StrEnum):
    """The role of a user, which sets the permissions."""

    ADMIN = "admin"
    """Use their own resources, and administrate users and the server."""
    MEMBER = "member"
    """Use their own resources."""
    VIEWER = "viewer"
    """Read their own resources."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user; the keys of a blocked user are rejected."""

    id: str
    name: str
    role: Role
    created_at: datetime
    blocked_at: datetime | None
    leaving_at: datetime | None = None
    """When deletion of the user began."""

    @property
    def is_active_admin(self) -> bool:
        """Whether the user is an administrator and not blocked."""
        return self.role is Role.ADMIN and self.blocked_at is None


class KeyScope(StrEnum):
    """The part of its user's permissions that a key grants."""

    READ = "read"
    """Read access only."""
    RUN = "run"
    """Everything except keys, logins, users and the server itself."""
    ADMIN = "admin"
    """Everything."""
    SERVICE = "service"
    """Only creating keys with which a service acts for users; for administrators only."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated caller; `login_id` is set for a browser login instead of a key."""

    user_id: str
    user_name: str
    role: Role
    key_id: int
    scope: KeyScope = KeyScope.ADMIN
    login_id: str | None = None
    is_service: bool = False
    """Whether a service acts for the user."""

    @property
    def may_run(self) -> bool:
        """Whether the caller may change their own resources and use their sandboxes."""
        return self.role is not Role.VIEWER and self.scope is not KeyScope.READ

    @property
    def may_manage(self) -> bool:
        """Whether the caller may manage their own keys and logins."""
        return self.may_run and self.scope is KeyScope.ADMIN

    @property
    def is_admin(self) -> bool:
        """Whether the caller is an administrator; the scope of the key is not considered."""
        return self.role is Role.ADMIN


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public fields of a key; `prefix` is the beginning of the key itself."""

    id: int
    user_id: str
    user_name: str
    name: str
    scope: KeyScope
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    not_before: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class _StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as read from the database."""

    principal: Principal
    is_barred: bool
    not_before: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None

    def is_good(self, now: datetime) -> bool:
        """Return whether the key is valid at a time."""
        has_begun = self.not_before is None or self.not_before <= now
        has_ended = self.expires_at is not None and self.expires_at <= now
        return has_begun and not has_ended and not self.is_barred


class KeyRing:
    """Creates, identifies, lists and revokes API keys; finds users."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def identify(self, key: str) -> Principal:
        """Return the principal of a key and record its use, at most once a minute.

        Raises NotAuthenticated, with one message for all causes, if the key is unknown, malformed,
        revoked, expired or not valid yet, has the scope `service`, or belongs to a blocked user.
        """
        found = await self._identify(key)
        if found.scope is KeyScope.SERVICE:
            raise NotAuthenticated
        return found

    async def identify_maker(self, key: str) -> Principal:
        """Return the principal of a key that creates keys for users; raises like `identify`.

        A key of the scope `service` is treated here as a full key of its administrator.
        """
        found = await self._identify(key)
        if found.scope is not KeyScope.SERVICE:
            return found
        if not found.is_admin:
            raise NotAuthenticated
        return msgspec.structs.replace(found, scope=KeyScope.ADMIN)

    async def _identify(self, key: str) -> Principal:
        if not key.isascii():
            raise NotAuthenticated
        digest = values.sha256(key)
        known = await self._db.keep((KeyRing, digest), lambda: self._find(digest))
        if known is None or not known.is_good(values.now()):
            raise NotAuthenticated
        await note_use(self._db, "key", _NOTE_USE, known.principal.key_id, known.last_used_at)
        return known.principal

    async def find_good(self, key_ids: Collection[int]) -> dict[int, Principal]:
        """Return the principals of the valid ones of these keys, by key id; records no use."""
        rows = await self._db.all(_KEYS + _OF_IDS, {"ids": json.dumps(list(key_ids))})
        now, known = values.now(), [_to_stored_key(row) for row in rows]
        return {one.principal.key_id: one.principal for one in known if one.is_good(now)}

    async def find_barred(self) -> frozenset[str]:
        """Return the ids of the users who may not use sandboxes with any key."""
        return await list_barred(self._db)

    async def create_user(self, name: str, role: Role) -> str:
        """Add a user and return the id; raises like `add_user`."""
        return (await self._db.write(lambda tx: add_user(tx, name, role))).id

    async def find_user(self, name: str) -> str | None:
        """Return the id of the user with this name, or None."""
        user = await find_named(self._db, name)
        return user.id if user else None

    async def list_users(self) -> list[str]:
        """Return the names of all users."""
        return await self._db.column("SELECT name FROM users ORDER BY name")

    async def create_key(
        self,
        user_id: str,
        name: str,
        *,
        key: Secret | None = None,
        scope: KeyScope = KeyScope.ADMIN,
        not_before: datetime | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, Secret]:
        """Create a key, random unless one is given, and return it; it is not shown again.

        Raises BadRequest if a given key is too short or not printable ASCII, Conflict if it exists
        already or the user has the maximum number of keys, NotFound if the user is unknown.
        """
        check_name(name)
        secret = values.new_key(KEY_PREFIX) if key is None else _checked(key)

        async def body(tx: Transaction) -> tuple[ApiKey, Secret]:
            await check_room(tx, user_id)
            made = await insert_key(
                tx,
                user_id,
                name,
                secret,
                scope=scope,
                not_before=not_before,
                expires_at=expires_at,
            )
            await note_effect(tx, (made, secret))
            return made, secret

        return await self._db.write(body)

    async def revoke_key(self, key_id: int, *, user_id: str | None = None) -> None:
        """Revoke a key and the keys created with it; idempotent.

        Raises NotFound if the key is unknown, or does not belong to `user_id` if that is given.
        """
        sql = """
            UPDATE api_keys
            SET revoked_at = COALESCE(revoked_at, :now)
            WHERE id = :id
              AND user_id = COALESCE(:user_id, user_id)
        """
        made = """
            UPDATE api_keys
            SET revoked_at = COALESCE(revoked_at, :now)
            WHERE made_with = :id
        """
        params = {"id": key_id, "user_id": user_id, "now": values.to_stored(values.now())}

        async def revoke(tx: Transaction) -> None:
            if await tx.run(sql, params) != 1:
                raise NotFound("no such key")
            await tx.run(made, params)

        await self._db.write(revoke)

    async def get_key(self, key_id: int) -> ApiKey:
        """Return a key; raises NotFound."""
        row = await find_key(self._db, key_id)
        if row is None:
            raise NotFound("no such key")
        return record_of(row, ApiKey)

    async def list_keys_of(self, user_id: str) -> list[ApiKey]:
        """Return the unrevoked keys of a user, oldest first."""
        sql = _KEYS + " WHERE k.user_id = :user_id AND k.revoked_at IS NULL ORDER BY k.id"
        return [record_of(row, ApiKey) for row in await self._db.all(sql, {"user_id": user_id})]

    async def list_keys(self) -> list[ApiKey]:
        """Return every key, including revoked ones, oldest first."""
        return [record_of(row, ApiKey) for row in await self._db.all(_KEYS + " ORDER BY k.id")]

    async def has_keys(self) -> bool:
        """Return whether any key was ever created, including revoked ones."""
        return await self._db.one("SELECT 1 FROM api_keys LIMIT 1") is not None

    async def _find(self, digest: str) -> _StoredKey | None:
        row = await self._db.one(_KEYS + " WHERE k.hash = :hash", {"hash": digest})
        if row is None or not secrets.compare_digest(row["hash"], digest):
            return None
        return _to_stored_key(row)


_NOTE_USE: Final = """
    UPDATE api_keys
    SET last_used_at = :now
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :before)
"""
"""Updates nothing if another process has recorded a recent use meanwhile."""


async def note_use(
    db: Database, what: str, sql: str, row_id: str | int, last_used_at: datetime | None
) -> None:
    """Record that a key or login is used now, at most once a minute."""
    now = values.now()
    if last_used_at is not None and now - last_used_at < USE_IS_NOTED_EVERY:
        return
    before = values.to_stored(now - USE_IS_NOTED_EVERY)
    params = {"id": row_id, "now": values.to_stored(now), "before": before}
    try:
        await db.write(lambda tx: tx.run(sql, params))
    except StorageFailed as exc:
        # A full disk must not make valid keys and logins fail.
        log.warning("last use of a %s not stored", what, extra={"reason": exc.detail})


async def check_room(tx: Transaction, user_id: str) -> None:
    """Raise Conflict if a user has the maximum number of keys; revokes expired ones first."""
    count = "SELECT COUNT(*) FROM api_keys WHERE user_id = :user_id AND revoked_at IS NULL"
    if (await tx.value(count, {"user_id": user_id}) or 0) < MAX_KEYS:
        return
    sql = """
        UPDATE api_keys
        SET revoked_at = expires_at
        WHERE user_id = :user_id AND revoked_at IS NULL AND expires_at <= :now
    """
    if not await tx.run(sql, {"user_id": user_id, "now": values.to_stored(values.now())}):
        raise Conflict(f"A user has at most {MAX_KEYS} keys; revoke some of them first")


async def insert_key(
    tx: Transaction,
    user_id: str,
    name: str,
    key: Secret,
    *,
    scope: KeyScope = KeyScope.ADMIN,
    not_before: datetime | None = None,
    expires_at: datetime | None = None,
    made_with: int | None = None,
) -> ApiKey:
    """Create a key in the caller's transaction; raises NotFound, NotAllowed or Conflict."""
    user = await get_user(tx, user_id)
    if scope is KeyScope.SERVICE and user.role is not Role.ADMIN:
        raise NotAllowed("A key of the scope `service` can only be an administrator's")
    given = {
        "user_id": user_id,
        "name": name,
        "scope": scope,
        "hash": values.sha256(key.reveal()),
        "prefix": key.reveal()[:_PREFIX_LENGTH],
        "created_at": values.to_stored(values.now()),
        "not_before": values.stored_or_none(not_before),
        "expires_at": values.stored_or_none(expires_at),
        "made_with": made_with,
    }
    if not await tx.insert("api_keys", given, "ON CONFLICT (hash) DO NOTHING"):
        raise Conflict("this key exists already")
    [row] = await tx.all(_KEYS + " WHERE k.hash = :hash", given)
    return record_of(row, ApiKey)


async def find_key(source: Queryable, key_id: int) -> Row | None:
    """Return the row of a key joined with its user, or None."""
    return await source.one(_KEYS + " WHERE k.id = :id", {"id": key_id})


def _to_stored_key(row: Row) -> _StoredKey:
    is_barred = row["revoked_at"] is not None or row["blocked_at"] is not None
    return record_of(row, _StoredKey, principal=_to_principal(row), is_barred=is_barred)


def _to_principal(row: Row) -> Principal:
    is_service = row["made_with"] is not None
    return record_of(row, Principal, key_id=row["id"], login_id=None, is_service=is_service)


def _checked(key: Secret) -> Secret:
    text = key.reveal()
    if len(text) < SHORTEST_KEY:
        raise BadRequest(f"the key is shorter than {SHORTEST_KEY} characters")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise BadRequest("a key consists of printable ASCII characters without blanks")
    return key


# Users


USERS: Final = "SELECT id, name, role, created_at, blocked_at, leaving_at FROM users"


async def add_user(tx: Transaction, name: str, role: Role) -> User:
    """Add a user in the caller's transaction; raises like `Users.create`."""
    check_name(name)
    user = User(id=values.new_id(), name=name, role=role, created_at=values.now(), blocked_at=None)
    if not await tx.insert("users", row_of(user), "ON CONFLICT (name) DO NOTHING"):
        raise name_taken(user)
    return user


async def get_user(source: Queryable, user_id: str) -> User:
    """Return a user; raises NotFound."""
    row = await source.one(USERS + " WHERE id = :id", {"id": user_id})
    if row is None:
        raise NotFound("no such user")
    return record_of(row, User)


async def find_named(source: Queryable, name: str) -> User | None:
    """Return the user with a name, or None."""
    row = await source.one(USERS + " WHERE name = :name", {"name": name})
    return record_of(row, User) if row else None


async def is_admin(source: Queryable, user_id: str) -> bool:
    """Return whether a user is an administrator."""
    sql = "SELECT role FROM users WHERE id = :id"
    return bool(await source.value(sql, {"id": user_id}) == Role.ADMIN)


async def list_barred(source: Queryable) -> frozenset[str]:
    """Return the ids of the users who are blocked or viewers."""
    sql = "SELECT id FROM users WHERE blocked_at IS NOT NULL OR role = 'viewer'"
    return frozenset(await source.column(sql))


def check_name(name: str) -> None:
    """Raise BadRequest for an invalid name of a user or a key."""
    if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise BadRequest(f"a name has 1 to {_LONGEST_NAME} printable characters")


def name_taken(user: User) -> Conflict:
    """Return the error for a user name that is taken."""
    return Conflict(f"a user of this name exists already: {user.name}")


_KEYS: Final = """
    SELECT k.id, k.user_id, u.name AS user_name, u.role, u.blocked_at, k.name, k.hash, k.prefix,
           k.scope, k.created_at, k.last_used_at, k.not_before, k.expires_at, k.revoked_at,
           k.made_with
    FROM api_keys AS k
    JOIN users AS u ON u.id = k.user_id
"""
_OF_IDS: Final = " WHERE k.id IN (SELECT value FROM json_each(:ids))"
