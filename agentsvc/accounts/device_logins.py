"""Logins of programs that have no browser: a program asks, a user confirms, the program gets a key.

The flow of RFC 8628. A login is asked for by anybody, lives for some minutes and hands out one
key, once. Its two codes are stored as hashes, like keys.
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
"""How long a program waits between two questions."""
INTERVAL_STEP_SECONDS: Final = 5
"""How much longer it must wait once it asked too early."""
PENDING_MAX: Final = 1000
"""How many logins may wait at a time; anybody can ask for one."""
BEGINNINGS_A_MINUTE: Final = 30
"""How many logins one address may start in a minute."""
QUESTIONS_A_MINUTE: Final = 300
"""How often one address may ask for keys in a minute, or try a user's key."""

_CODE_LENGTH: Final = 8
_KEY_NAME: Final = "device login"
_NOT_IN_CODE = re.compile(r"[^A-Z]")


class DeviceLogin(Struct, frozen=True, kw_only=True):
    """A login that was asked for: a code for the program and one for the user."""

    device_code: Secret
    user_code: str
    lifetime: timedelta
    interval_seconds: int


class ClaimState(StrEnum):
    """How a question for the key of a login ends; all but the first are names of RFC 8628."""

    GRANTED = "granted"
    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"


class Claim(Struct, frozen=True, kw_only=True):
    """The answer to a question for the key of a login; `key` is there if it is granted."""

    state: ClaimState
    key: Secret | None = None
    interval_seconds: int = 0


class AttemptLimit(Throttle):
    """Lets each caller do a thing so many times a minute."""

    def check(self, caller: str) -> None:
        """Count what a caller does now; raises TooManyRequests, and then it does not count."""
        if not self.admits(caller):
            raise TooManyRequests("Too many requests come from this address")


class DeviceLogins:
    """Every login that waits for its user."""

    def __init__(self, db: Database, *, lifetime: timedelta = LIFETIME) -> None:
        self._db = db
        self._lifetime = lifetime
        self._beginnings = AttemptLimit(BEGINNINGS_A_MINUTE)
        self._questions = AttemptLimit(QUESTIONS_A_MINUTE)

    def admit(self, address: str) -> None:
        """Count a question that anybody can ask; raises TooManyRequests if it comes too soon."""
        self._questions.check(address)

    async def begin(self, address: str = "") -> DeviceLogin:
        """Start a login; raises TooManyRequests while too many wait or come from one address."""
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
            "user_code_hash": values.sha256(_plain(login.user_code)),
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
        """Let the program with this code in as a user; raises NotFound unless it waits.

        Raises Conflict for a user who has as many keys as there may be.
        """
        await self._db.write(lambda tx: check_room(tx, user_id))
        await self._decide(user_code, "approved", user_id)

    async def deny(self, user_code: str) -> None:
        """Refuse the program with this code; raises NotFound unless it waits."""
        await self._decide(user_code, "denied", None)

    async def claim(self, device_code: Secret) -> Claim:
        """Return the key of an approved login, or why there is none; the key is given once.

        A code that was never given is answered like one that has expired.
        """
        device_hash = values.sha256(device_code.reveal())

        async def body(tx: Transaction) -> Claim:
            row = await _find(tx, device_hash)
            if row is None or row["expires_at"] <= values.to_stored(values.now()):
                return Claim(state=ClaimState.EXPIRED)
            if row["state"] == "pending":
                return await _put_off(tx, row)
            sql = "DELETE FROM device_logins WHERE device_hash = :device_hash"
            await tx.run(sql, {"device_hash": device_hash})
            if row["state"] == "denied":
                return Claim(state=ClaimState.DENIED)
            key = values.new_key(KEY_PREFIX)
            await insert_key(tx, row["user_id"], _KEY_NAME, key)
            return Claim(state=ClaimState.GRANTED, key=key)

        if await _find(self._db, device_hash) is None:
            # Anybody can ask, so a code that was never given costs no write.
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
            "code_hash": values.sha256(_plain(user_code)),
            "state": state,
            "user_id": user_id,
            "now": values.to_stored(values.now()),
        }
        if await self._db.write(lambda tx: tx.run(sql, params)) != 1:
            raise NotFound("No login waits with this code; it may have expired")


async def _find(reader: Queryable, device_hash: str) -> Row | None:
    """Return the login of a program."""
    sql = """
        SELECT device_hash, state, user_id, interval_seconds, polled_at, expires_at
        FROM device_logins
        WHERE device_hash = :device_hash
    """
    return await reader.one(sql, {"device_hash": device_hash})


async def _put_off(tx: Transaction, row: Row) -> Claim:
    """Return the answer for a login that waits: ask again later, and not so often."""
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


def _plain(user_code: str) -> str:
    """Return a code as it is hashed, however the user typed it."""
    return _NOT_IN_CODE.sub("", user_code.upper())
