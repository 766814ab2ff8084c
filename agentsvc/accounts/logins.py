"""Browser logins: each is bound to an API key, is identified by a token, and expires.

A token has two parts, one for a cookie and one for the page's own storage; either is useless without
the other. A login is valid as long as its key is. A login link logs a browser in once, without the
key being typed. The tokens of logins and links are stored as hashes, like keys.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.accounts.device_logins import AttemptLimit
from agentsvc.accounts.keys import KeyRing, Principal, find_key, note_use
from agentsvc.base import NotAuthenticated, NotFound, Secret, values
from agentsvc.storage import Database, Queryable, Row, Transaction, record_of, row_of

LINK_LIFETIME: Final = timedelta(minutes=15)
"""Lifetime of a login link."""
MAX_LOGINS: Final = 50
"""Maximum number of logins per key; a new login replaces the least recently used one."""
TRIES_A_MINUTE: Final = 60
"""Maximum number of login attempts per minute from one address."""

_LONGEST_CLIENT: Final = 255


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The public fields of a login; `client` is the browser's User-Agent."""

    id: str
    key_id: int
    client: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime


class LoginProvider(msgspec.Struct, frozen=True, kw_only=True):
    """An external identity provider that logs browsers in, instead of a key."""

    name: str
    """Name of the provider for `POST /api/v1/sign-in/attempts`; empty for the proxy in front of the
    server, for which `POST /api/v1/sign-in/proxy` is used"""
    title: str
    """Title shown to users"""


class LoginToken(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a logged-in browser."""

    cookie: Secret
    page: Secret

    @property
    def whole(self) -> Secret:
        """Both parts joined, as `Logins.identify` takes them."""
        return Secret(join_parts(self.cookie.reveal(), self.page.reveal()))


def join_parts(cookie: str, page: str) -> str:
    """Join the two parts of a token with a dot; neither contains one."""
    return f"{cookie}.{page}"


class Logins:
    """Creates, validates and ends logins and login links."""

    def __init__(self, db: Database, keyring: KeyRing, *, lifetime: timedelta) -> None:
        self._db = db
        self._keyring = keyring
        self._lifetime = lifetime
        self._tries = AttemptLimit(TRIES_A_MINUTE)

    def admit(self, address: str) -> None:
        """Count a login attempt of an address; raises TooManyRequests above the rate limit."""
        self._tries.check(address)

    async def begin(self, key: str, *, client: str) -> tuple[Login, LoginToken]:
        """Log a browser in with a key; raises NotAuthenticated. The token is not shown again."""
        return await self.begin_for((await self._keyring.identify(key)).key_id, client=client)

    async def begin_for(self, key_id: int, *, client: str) -> tuple[Login, LoginToken]:
        """Log a browser in with the key of this id, after an identity provider has confirmed it."""
        token = _new_token()
        return await self._db.write(lambda tx: self._insert(tx, key_id, token, client)), token

    async def make_link(self, key_id: int) -> Secret:
        """Create a login link and return its token, valid once within LINK_LIFETIME."""
        token = values.new_key()
        row = {
            "hash": values.sha256(token.reveal()),
            "key_id": key_id,
            "expires_at": values.to_stored(values.now() + LINK_LIFETIME),
        }

        async def body(tx: Transaction) -> None:
            await tx.run("DELETE FROM login_links WHERE expires_at <= :now", {"now": _now()})
            await tx.insert("login_links", row)

        await self._db.write(body)
        return token

    async def find_user_of_link(self, link: Secret) -> str:
        """Return the user name of a link without consuming the link; raises NotAuthenticated."""
        return str((await _get_link(self._db, link))["user_name"])

    async def begin_by_link(self, link: Secret, *, client: str) -> tuple[Login, LoginToken]:
        """Log a browser in with a link and consume the link; raises NotAuthenticated."""
        token = _new_token()

        async def body(tx: Transaction) -> Login:
            row = await _get_link(tx, link)
            sql = "DELETE FROM login_links WHERE hash = :hash"
            await tx.run(sql, {"hash": values.sha256(link.reveal())})
            return await self._insert(tx, row["key_id"], token, client)

        # Unauthenticated callers can get here, so an unknown link must cost no write.
        await self.find_user_of_link(link)
        return await self._db.write(body), token

    async def identify(self, token: str) -> Principal:
        """Return the principal of a login token and record its use, at most once a minute.

        Raises NotAuthenticated if the login is unknown or expired, or its key is no longer valid.
        """
        params = {"hash": values.sha256(token), "now": _now()}
        row = await self._db.one(_GOOD + " AND l.hash = :hash", params)
        if row is None:
            raise NotAuthenticated
        last_used_at = values.from_stored(row["last_used_at"])
        await note_use(self._db, "login", _NOTE_USE, row["id"], last_used_at)
        return _to_principal(row)

    async def find_good(self, login_ids: Collection[str]) -> dict[str, Principal]:
        """Return the principals of the valid ones of these logins, by id; records no use."""
        sql = _GOOD + " AND l.id = :id"
        rows = [await self._db.one(sql, {"id": one, "now": _now()}) for one in login_ids]
        return {row["id"]: _to_principal(row) for row in rows if row is not None}

    async def list_of(self, user_id: str) -> list[Login]:
        """Return the valid logins of a user, oldest first."""
        sql = _GOOD + " AND k.user_id = :user_id ORDER BY l.created_at, l.id"
        rows = await self._db.all(sql, {"user_id": user_id, "now": _now()})
        return [record_of(row, Login) for row in rows]

    async def end(self, user_id: str, login_id: str) -> None:
        """Delete a login of a user; raises NotFound."""
        sql = """
            DELETE FROM logins
            WHERE id = :id
              AND key_id IN (SELECT id FROM api_keys WHERE user_id = :user_id)
        """
        params = {"id": login_id, "user_id": user_id}
        if await self._db.write(lambda tx: tx.run(sql, params)) != 1:
            raise NotFound("no such login")

    async def _insert(self, tx: Transaction, key_id: int, token: LoginToken, client: str) -> Login:
        if await find_key(tx, key_id) is None:
            raise NotAuthenticated
        now = values.now()
        await tx.run("DELETE FROM logins WHERE expires_at <= :now", {"now": _now()})
        await tx.run(_DELETE_SURPLUS, {"key_id": key_id, "most": MAX_LOGINS - 1})
        login = Login(
            id=values.new_id(),
            key_id=key_id,
            client=client[:_LONGEST_CLIENT],
            created_at=now,
            last_used_at=now,
            expires_at=now + self._lifetime,
        )
        await tx.insert("logins", row_of(login, hash=values.sha256(token.whole.reveal())))
        return login


_NOTE_USE: Final = "UPDATE logins SET last_used_at = :now WHERE id = :id"
_DELETE_SURPLUS: Final = """
    DELETE FROM logins
    WHERE id IN (
        SELECT id
        FROM logins
        WHERE key_id = :key_id
        ORDER BY last_used_at DESC, id
        LIMIT -1 OFFSET :most
    )
"""
"""Keeps the most recently used logins of a key."""
_KEY_IS_GOOD: Final = """
    AND u.blocked_at IS NULL
    AND k.revoked_at IS NULL
    AND COALESCE(k.not_before, '') <= :now
    AND COALESCE(k.expires_at, '~') > :now
"""
_LOGINS: Final = """
    SELECT l.id, l.key_id, l.client, l.created_at, l.last_used_at, l.expires_at,
           k.user_id, k.scope, u.name AS user_name, u.role
    FROM logins AS l
    JOIN api_keys AS k ON k.id = l.key_id
    JOIN users AS u ON u.id = k.user_id
    WHERE l.expires_at > :now
"""
_GOOD: Final = _LOGINS + _KEY_IS_GOOD
_LINKS: Final = """
    SELECT n.key_id, u.name AS user_name
    FROM login_links AS n
    JOIN api_keys AS k ON k.id = n.key_id
    JOIN users AS u ON u.id = k.user_id
    WHERE n.hash = :hash AND n.expires_at > :now
"""


async def _get_link(source: Queryable, token: Secret) -> Row:
    """Return key id and user name of a link; raises NotAuthenticated unless link and key are valid."""
    sql = _LINKS + _KEY_IS_GOOD
    row = await source.one(sql, {"hash": values.sha256(token.reveal()), "now": _now()})
    if row is None:
        raise NotAuthenticated("The login link is not valid, or was used before")
    return row


def _new_token() -> LoginToken:
    return LoginToken(cookie=values.new_key(), page=values.new_key())


def _to_principal(row: Row) -> Principal:
    return record_of(row, Principal, login_id=row["id"], is_service=False)


def _now() -> str:
    return values.to_stored(values.now())
