"""Users and their API keys: issue, identify, revoke.

A key is stored as its SHA-256: it is random and long, so a slow hash would add nothing but
time. The keys of sandboxes belong to `sandboxes`.
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
"""Characters a key brought from outside must have."""

_LONGEST_NAME: Final = 100
_SHOWN: Final = len(KEY_PREFIX) + 4
MAX_KEYS: Final = 1000
"""How many keys a user may have that are not revoked; they are listed all at once."""
USE_IS_NOTED_EVERY: Final = timedelta(minutes=1)
"""How often at most a use of a key is written down."""


class Role(StrEnum):
    """What a user may do."""

    ADMIN = "admin"
    """Everything of their own, and look after users and the server."""
    MEMBER = "member"
    """Everything of their own."""
    VIEWER = "viewer"
    """Look at what is their own."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user; all keys of one who is blocked open nothing."""

    id: str
    name: str
    role: Role
    created_at: datetime
    blocked_at: datetime | None
    leaving_at: datetime | None = None
    """Since when the user is being deleted."""

    @property
    def is_active_admin(self) -> bool:
        """Whether this is an administrator who is let in."""
        return self.role is Role.ADMIN and self.blocked_at is None


class KeyScope(StrEnum):
    """What a key opens of all that its user may do."""

    READ = "read"
    """What only looks."""
    RUN = "run"
    """All but keys, logins, users and the server itself."""
    ADMIN = "admin"
    """Everything."""
    SERVICE = "service"
    """Nothing but keys for users, with which a service acts for them; an administrator's only."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling; `login_id` is there where a browser's login stands for the key."""

    user_id: str
    user_name: str
    role: Role
    key_id: int
    scope: KeyScope = KeyScope.ADMIN
    login_id: str | None = None
    is_service: bool = False
    """Whether it is a service that acts for the user."""

    @property
    def may_run(self) -> bool:
        """Whether the caller may change what is their own, and use their sandboxes."""
        return self.role is not Role.VIEWER and self.scope is not KeyScope.READ

    @property
    def may_manage(self) -> bool:
        """Whether the caller may look after their own keys and logins."""
        return self.may_run and self.scope is KeyScope.ADMIN

    @property
    def is_admin(self) -> bool:
        """Whether the caller sees what administrators see."""
        return self.role is Role.ADMIN


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of a key; `prefix` is how the key itself begins."""

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


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it was read."""

    principal: Principal
    is_barred: bool
    not_before: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None

    def is_good(self, now: datetime) -> bool:
        """Whether the key opens anything."""
        has_begun = self.not_before is None or self.not_before <= now
        has_ended = self.expires_at is not None and self.expires_at <= now
        return has_begun and not has_ended and not self.is_barred


class KeyRing:
    """Every user and every API key."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def identify(self, key: str) -> Principal:
        """Return whose key this is and note its use, at most once a minute.

        Raises NotAuthenticated for an unknown, revoked, expired or malformed key, one that is not
        valid yet, one of a user who is blocked, or one of a service: one answer for all.
        """
        found = await self._identify(key)
        if found.scope is KeyScope.SERVICE:
            raise NotAuthenticated
        return found

    async def identify_maker(self, key: str) -> Principal:
        """Return whose key this is, where keys for users are made.

        That of a service is as good there as any other of its administrator. Raises as `identify`.
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
        """Return who shows which of these keys, as far as they are good; notes no use."""
        rows = await self._db.all(_KEYS + _OF_IDS, {"ids": json.dumps(list(key_ids))})
        now, known = values.now(), [_to_known(row) for row in rows]
        return {one.principal.key_id: one.principal for one in known if one.is_good(now)}

    async def find_barred(self) -> frozenset[str]:
        """Return the ids of the users who may not use their sandboxes, whatever key they show."""
        return await list_barred(self._db)

    async def create_user(self, name: str, role: Role) -> str:
        """Add a user and return the id; raises as `add_user`."""
        return (await self._db.write(lambda tx: add_user(tx, name, role))).id

    async def find_user(self, name: str) -> str | None:
        """Return the id of the user of this name, or None."""
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
        """Issue a key, random unless one is given; it can be seen now and never again.

        Raises BadRequest for a given key that is too short or not printable ASCII, Conflict for
        one that exists or is one too many, NotFound if there is no such user.
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
        """Make a key useless from now on, with those that it has made; again changes nothing.

        Raises NotFound if there is no such key, or if it is not of the user that is given.
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
        """Return what may be shown of a key; raises NotFound if there is no such key."""
        row = await find_key(self._db, key_id)
        if row is None:
            raise NotFound("no such key")
        return record_of(row, ApiKey)

    async def list_keys_of(self, user_id: str) -> list[ApiKey]:
        """Return the keys of a user that are not revoked, in the order they were made."""
        sql = _KEYS + " WHERE k.user_id = :user_id AND k.revoked_at IS NULL ORDER BY k.id"
        return [record_of(row, ApiKey) for row in await self._db.all(sql, {"user_id": user_id})]

    async def list_keys(self) -> list[ApiKey]:
        """Return every key, revoked ones too, in the order they were made."""
        return [record_of(row, ApiKey) for row in await self._db.all(_KEYS + " ORDER BY k.id")]

    async def has_keys(self) -> bool:
        """Tell whether a key was ever issued; a revoked one counts."""
        return await self._db.one("SELECT 1 FROM api_keys LIMIT 1") is not None

    async def _find(self, digest: str) -> _Known | None:
        row = await self._db.one(_KEYS + " WHERE k.hash = :hash", {"hash": digest})
        if row is None or not secrets.compare_digest(row["hash"], digest):
            return None
        return _to_known(row)


_NOTE_USE: Final = """
    UPDATE api_keys
    SET last_used_at = :now
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :before)
"""
"""Another process may have noted one that is recent enough."""


async def note_use(
    db: Database, what: str, sql: str, row_id: str | int, last_used_at: datetime | None
) -> None:
    """Note that a key, or what stands for one, is used now, at most once a minute."""
    now = values.now()
    if last_used_at is not None and now - last_used_at < USE_IS_NOTED_EVERY:
        return
    before = values.to_stored(now - USE_IS_NOTED_EVERY)
    params = {"id": row_id, "now": values.to_stored(now), "before": before}
    try:
        await db.write(lambda tx: tx.run(sql, params))
    except StorageFailed as exc:
        # A full disk must not lock everybody out.
        log.warning("last use of a %s not stored", what, extra={"reason": exc.detail})


async def check_room(tx: Transaction, user_id: str) -> None:
    """Raise Conflict for a user who has as many keys as there may be; expired ones make room first."""
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
    """Issue a key inside the caller's transaction; raises NotFound, NotAllowed or Conflict."""
    user = await get_user(tx, user_id)
    if scope is KeyScope.SERVICE and user.role is not Role.ADMIN:
        raise NotAllowed("A key of the scope `service` can only be an administrator's")
    given = {
        "user_id": user_id,
        "name": name,
        "scope": scope,
        "hash": values.sha256(key.reveal()),
        "prefix": key.reveal()[:_SHOWN],
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
    """Return the key of this id and its user, or None."""
    return await source.one(_KEYS + " WHERE k.id = :id", {"id": key_id})


def _to_known(row: Row) -> _Known:
    is_barred = row["revoked_at"] is not None or row["blocked_at"] is not None
    return record_of(row, _Known, principal=_to_principal(row), is_barred=is_barred)


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
    """Add a user inside the caller's transaction; raises as `Users.create`."""
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
    """Return the user of a name, or None."""
    row = await source.one(USERS + " WHERE name = :name", {"name": name})
    return record_of(row, User) if row else None


async def is_admin(source: Queryable, user_id: str) -> bool:
    """Say whether a user is an administrator."""
    sql = "SELECT role FROM users WHERE id = :id"
    return bool(await source.value(sql, {"id": user_id}) == Role.ADMIN)


async def list_barred(source: Queryable) -> frozenset[str]:
    """Return the ids of the users who are blocked or may only look."""
    sql = "SELECT id FROM users WHERE blocked_at IS NOT NULL OR role = 'viewer'"
    return frozenset(await source.column(sql))


def check_name(name: str) -> None:
    """Raise BadRequest for what cannot be the name of a user or a key."""
    if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
        raise BadRequest(f"a name has 1 to {_LONGEST_NAME} printable characters")


def name_taken(user: User) -> Conflict:
    """Return the error for a name that another user has."""
    return Conflict(f"a user of this name exists already: {user.name}")


_KEYS: Final = """
    SELECT k.id, k.user_id, u.name AS user_name, u.role, u.blocked_at, k.name, k.hash, k.prefix,
           k.scope, k.created_at, k.last_used_at, k.not_before, k.expires_at, k.revoked_at,
           k.made_with
    FROM api_keys AS k
    JOIN users AS u ON u.id = k.user_id
"""
_OF_IDS: Final = " WHERE k.id IN (SELECT value FROM json_each(:ids))"
