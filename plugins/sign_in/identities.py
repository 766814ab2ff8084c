"""Maps accounts of providers and proxies to users of this server, and records their logins."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from agentsvc.base import (
    Conflict,
    NotAllowed,
    NotAuthenticated,
    Secret,
    new_key,
    now,
    sha256,
    to_stored,
)
from agentsvc.extension.accounts import (
    KEY_PREFIX,
    Role,
    UserPatch,
    add_user,
    change_user,
    get_user,
    insert_key,
)
from agentsvc.extension.storage import Database, Row, Transaction

log = logging.getLogger(__name__)

MIGRATIONS: Final = (
    """
    CREATE TABLE plugin_sign_in_identities (
        provider TEXT NOT NULL,
        subject TEXT NOT NULL,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        key_id INTEGER NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (provider, subject)
    ) STRICT;
    CREATE INDEX plugin_sign_in_identities_by_user ON plugin_sign_in_identities (user_id);
    CREATE TABLE plugin_sign_in_logins (
        login_id TEXT NOT NULL PRIMARY KEY REFERENCES logins (id) ON DELETE CASCADE,
        provider TEXT NOT NULL,
        subject TEXT NOT NULL,
        session TEXT
    ) STRICT;
    CREATE INDEX plugin_sign_in_logins_by_subject ON plugin_sign_in_logins (provider, subject);
    CREATE INDEX plugin_sign_in_logins_by_session ON plugin_sign_in_logins (provider, session);
    CREATE TABLE plugin_sign_in_invitations (
        hash TEXT NOT NULL PRIMARY KEY,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        expires_at TEXT NOT NULL
    ) STRICT;
    """,
)


class ExternalIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a provider or a proxy, with its name and role."""

    provider: str
    subject: str
    """The permanent id of the account."""
    name: str
    role: Role
    may_be_new: bool
    has_groups: bool
    """Whether the role is updated from the groups at each sign-in."""


class Identities:
    """The accounts that have signed in."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def find_key(self, person: ExternalIdentity, invitation: str | None) -> int:
        """Return the id of an account's key; create the user and the key if necessary.

        Raises NotAllowed if the user is not invited or is blocked, Conflict if the name is taken,
        and NotAuthenticated for an invalid invitation.
        """

        async def body(tx: Transaction) -> int:
            found = await _find(tx, person)
            invited = await _take_invitation(tx, invitation) if invitation else None
            if found is not None and invited not in (None, found["user_id"]):
                raise Conflict("You already sign in as another user; the invitation is still valid")
            user_id = found["user_id"] if found else invited
            if user_id is None:
                if not person.may_be_new:
                    raise NotAllowed("You are not invited; ask an administrator for an invitation")
                user_id = (await add_user(tx, person.name, person.role)).id
            elif person.has_groups:
                await _set_role(tx, user_id, person.role)
            return await _key_for(tx, person, user_id, found)

        return await self._db.write(body)

    async def note_login(
        self, login_id: str, person: ExternalIdentity, session: str | None
    ) -> None:
        """Store the account of a login, so that its provider can end it."""
        row = {
            "login_id": login_id,
            "provider": person.provider,
            "subject": person.subject,
            "session": session,
        }
        await self._db.write(lambda tx: tx.insert("plugin_sign_in_logins", row))

    async def logins_of(
        self, provider: str, *, subject: str | None, session: str | None
    ) -> Sequence[tuple[str, str]]:
        """Return user ids and login ids of a provider's session, or of an account."""
        sql = """
            SELECT k.user_id, s.login_id
            FROM plugin_sign_in_logins AS s
            JOIN logins AS l ON l.id = s.login_id
            JOIN api_keys AS k ON k.id = l.key_id
            WHERE s.provider = :provider
              AND (:subject IS NULL OR s.subject = :subject)
              AND (:session IS NULL OR s.session = :session)
        """
        params = {"provider": provider, "subject": subject, "session": session}
        return [(row["user_id"], row["login_id"]) for row in await self._db.all(sql, params)]

    async def invite(self, user_id: str, lifetime: timedelta) -> Secret:
        """Create an invitation's token: the first account that uses it becomes this user."""
        token = new_key()
        row = {
            "hash": sha256(token.reveal()),
            "user_id": user_id,
            "expires_at": to_stored(now() + lifetime),
        }

        async def body(tx: Transaction) -> None:
            await tx.run(
                "DELETE FROM plugin_sign_in_invitations WHERE expires_at <= :now",
                {"now": to_stored(now())},
            )
            await get_user(tx, user_id)
            await tx.insert("plugin_sign_in_invitations", row)

        await self._db.write(body)
        return token


async def _find(tx: Transaction, person: ExternalIdentity) -> Row | None:
    sql = """
        SELECT i.user_id, k.id AS key_id
        FROM plugin_sign_in_identities AS i
        LEFT JOIN api_keys AS k
          ON k.id = i.key_id AND k.user_id = i.user_id AND k.revoked_at IS NULL
        WHERE i.provider = :provider AND i.subject = :subject
    """
    return await tx.one(sql, {"provider": person.provider, "subject": person.subject})


async def _take_invitation(tx: Transaction, token: str) -> str:
    sql = """
        DELETE FROM plugin_sign_in_invitations
        WHERE hash = :hash AND expires_at > :now
        RETURNING user_id
    """
    row = await tx.one(sql, {"hash": sha256(token), "now": to_stored(now())})
    if row is None:
        raise NotAuthenticated("The invitation is not valid, or was used before")
    return str(row["user_id"])


async def _key_for(
    tx: Transaction, person: ExternalIdentity, user_id: str, found: Row | None
) -> int:
    """Return the id of the key for an account's logins; a revoked one is replaced."""
    if (await get_user(tx, user_id)).blocked_at is not None:
        raise NotAllowed("This user is blocked")
    if found is not None and found["key_id"] is not None:
        return int(found["key_id"])
    name = f"sign-in by {person.provider}"
    # Nobody sees this key: logins belong to it, and it can be revoked like any other.
    key = await insert_key(tx, user_id, name, new_key(KEY_PREFIX))
    row = {
        "provider": person.provider,
        "subject": person.subject,
        "user_id": user_id,
        "key_id": key.id,
        "created_at": to_stored(now()),
    }
    otherwise = "ON CONFLICT (provider, subject) DO UPDATE SET key_id = excluded.key_id"
    await tx.insert("plugin_sign_in_identities", row, otherwise)
    return key.id


async def _set_role(tx: Transaction, user_id: str, role: Role) -> None:
    user = await get_user(tx, user_id)
    if user.role is role:
        return
    try:
        await change_user(tx, user_id, UserPatch(role=role))
    except Conflict as exc:
        # The last administrator must not lose the role.
        raise NotAllowed(f"Your role cannot follow your groups: {exc.message}") from exc
