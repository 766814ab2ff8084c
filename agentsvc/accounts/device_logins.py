"""Device logins: a program without a browser requests a login, a user approves, it gets a key.

The device flow of RFC 8628. Unauthenticated callers can begin a login; it expires after minutes and
returns one key, once. Its two codes are stored as hashes, like keys.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

from agentsvc.accounts.keys import KEY_PREFIX, check_room, insert_key
from agentsvc.base import NotFound, Secret, Throttle, TooManyRequests, values
from agentsvc.storage import Database, Queryable, Row, Transaction

LIFETIME: Final = timedelta(minutes=10)
INTERVAL_SECONDS: Final = 5
"""Polling interval of a program."""
INTERVAL_STEP_SECONDS: Final = 5
"""Added to the interval each time a program polls too early."""
PENDING_MAX: Final = 1000
"""Maximum number of pending logins; unauthenticated callers can create them."""
BEGINNINGS_A_MINUTE: Final = 30
"""Maximum number of logins that one address may begin per minute."""
QUESTIONS_A_MINUTE: Final = 300
"""Maximum number of polls, and of attempts with a user's key, per minute and address."""

_CODE_LENGTH: Final = 8
_KEY_NAME: Final = "device login"
_NOT_IN_CODE = re.compile(r"[^A-Z]")


class DeviceLogin(Struct, frozen=True, kw_only=True):
    """A pending login: a code for the program and one for the user."""

    device_code: Secret
    user_code: str
    lifetime: timedelta
    interval_seconds: int


class ClaimState(StrEnum):
    """Result of a poll for the key of a login; all but the first are error codes of RFC 8628."""

    GRANTED = "granted"
    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"


class Claim(Struct, frozen=True, kw_only=True):
    """The response to a poll for the key of a login; `key` is set if granted."""

    state: ClaimState
    key: Secret | None = None
    interval_seconds: int = 0


class AttemptLimit(Throttle):
    """Rate limit per caller and minute."""

    def check(self, caller: str) -> None:
        """Count an attempt; raises TooManyRequests above the limit, without counting it."""
        if not self.admits(caller):
            raise TooManyRequests("Too many requests come from this address")


class DeviceLogins:
    """The pending device logins."""

    def __init__(self, db: Database, *, lifetime: timedelta = LIFETIME) -> None:
        self._db = db
        self._lifetime = lifetime
        self._beginnings = AttemptLimit(BEGINNINGS_A_MINUTE)
        self._questions = AttemptLimit(QUESTIONS_A_MINUTE)

    def admit(self, address: str) -> None:
        """Count an unauthenticated request; raises TooManyRequests above the rate limit."""
        self._questions.check(address)

    async def begin(self, address: str = "") -> DeviceLogin:
        """Begin a login; raises TooManyRequests if too many are pending or from one address."""
        self._beginnings.check(address)
        code = values.new_code(_CODE_LENGTH)
        login = DeviceLogin(
            device_code=values.new_key(),
            user_code=f"{code[:4]}-{code[4:]}",
            lifetime=self._lifetime,
            interval_seconds=INTERVAL_SECONDS,
        )
        row = {
            "device_hash": values.sha256(login.device_code.reveal()),
            "user_code_hash": values.sha256(_normalized(login.user_code)),
            "state": "pending",
            "interval_seconds": login.interval_seconds,
            "created_at": values.to_stored(values.now()),
            "expires_at": values.to_stored(values.now() + self._lifetime),
        }

        async def insert(tx: Transaction) -> None:
            await tx.run(
                "DELETE FROM device_logins WHERE expires_at < :created_at",
                {"created_at": row["created_at"]},
            )
            if (await tx.value("SELECT COUNT(*) FROM device_logins") or 0) >= PENDING_MAX:
                raise TooManyRequests("Too many logins are waiting")
            await tx.insert("device_logins", row)

        await self._db.write(insert)
        return login

    async def approve(self, user_id: str, user_code: str) -> None:
        """Approve the pending login with this code for a user; raises NotFound.

        Raises Conflict if the user has the maximum number of keys.
        """
        await self._db.write(lambda tx: check_room(tx, user_id))
        await self._decide(user_code, "approved", user_id)

    async def deny(self, user_code: str) -> None:
        """Deny the pending login with this code; raises NotFound."""
        await self._decide(user_code, "denied", None)

    async def claim(self, device_code: Secret) -> Claim:
        """Return the key of an approved login, once, or the state of the login.

        An unknown code is treated like an expired one.
        """
        device_hash = values.sha256(device_code.reveal())

        async def body(tx: Transaction) -> Claim:
            row = await _find(tx, device_hash)
            if row is None or row["expires_at"] <= values.to_stored(values.now()):
                return Claim(state=ClaimState.EXPIRED)
            if row["state"] == "pending":
                return await _poll_pending(tx, row)
            sql = "DELETE FROM device_logins WHERE device_hash = :device_hash"
            await tx.run(sql, {"device_hash": device_hash})
            if row["state"] == "denied":
                return Claim(state=ClaimState.DENIED)
            key = values.new_key(KEY_PREFIX)
            await insert_key(tx, row["user_id"], _KEY_NAME, key)
            return Claim(state=ClaimState.GRANTED, key=key)

        if await _find(self._db, device_hash) is None:
            # Unauthenticated callers can get here, so an unknown code must cost no write.
            return Claim(state=ClaimState.EXPIRED)
        return await self._db.write(body)

    async def _decide(self, user_code: str, state: str, user_id: str | None) -> None:
        sql = """
            UPDATE device_logins
            SET state = :state,
                user_id = :user_id
            WHERE user_code_hash = :code_hash
              AND state = 'pending'
              AND expires_at > :now
        """
        params = {
            "code_hash": values.sha256(_normalized(user_code)),
            "state": state,
            "user_id": user_id,
            "now": values.to_stored(values.now()),
        }
        if await self._db.write(lambda tx: tx.run(sql, params)) != 1:
            raise NotFound("No login waits with this code; it may have expired")


async def _find(reader: Queryable, device_hash: str) -> Row | None:
    """Return the row of a login, or None."""
    sql = """
        SELECT device_hash, state, user_id, interval_seconds, polled_at, expires_at
        FROM device_logins
        WHERE device_hash = :device_hash
    """
    return await reader.one(sql, {"device_hash": device_hash})


async def _poll_pending(tx: Transaction, row: Row) -> Claim:
    """Record a poll of a pending login; return SLOW_DOWN with a longer interval if it was early."""
    interval = row["interval_seconds"]
    earliest = values.to_stored(values.now() - timedelta(seconds=interval))
    is_early = row["polled_at"] is not None and row["polled_at"] > earliest
    if is_early:
        interval += INTERVAL_STEP_SECONDS
    sql = """
        UPDATE device_logins
        SET polled_at = :now,
            interval_seconds = :interval
        WHERE device_hash = :device_hash
    """
    now = values.to_stored(values.now())
    await tx.run(sql, {"device_hash": row["device_hash"], "interval": interval, "now": now})
    state = ClaimState.SLOW_DOWN if is_early else ClaimState.PENDING
    return Claim(state=state, interval_seconds=interval)


def _normalized(user_code: str) -> str:
    """Return a user code in upper case without separators, as it is hashed."""
    return _NOT_IN_CODE.sub("", user_code.upper())
