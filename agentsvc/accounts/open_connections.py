"""Long-lived connections, each authorized by a key: closes them when the key becomes invalid.

Polls the database, so that revoked and expired keys, blocked users and changed roles are noticed,
even if a command in another process made the change.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import msgspec

from agentsvc.accounts.keys import KeyRing, Principal
from agentsvc.accounts.logins import Logins
from agentsvc.base import monotonic

POLL_SECONDS: Final = 1.0
"""Interval of the checks whether keys are still valid."""


class _Connection(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An open connection; `needs` returns whether its caller is still authorized.

    Without a caller it is a connection to a user's sandbox, authorized by the session key.
    """

    user_id: str
    end: Callable[[], None]
    caller: Principal | None = None
    needs: Callable[[Principal], bool] = lambda _caller: True


class OpenConnections:
    """The open long-lived connections and their callers."""

    def __init__(self, keyring: KeyRing, logins: Logins) -> None:
        self._keyring = keyring
        self._logins = logins
        self._open: set[_Connection] = set()
        self._barred: frozenset[str] = frozenset()
        self._barred_at: float | None = None

    def held(
        self,
        caller: Principal,
        end: Callable[[], None],
        *,
        needs: Callable[[Principal], bool] = lambda _caller: True,
    ) -> AbstractContextManager[None]:
        """Register a connection inside the context; `end()` is called when its key becomes invalid.

        `end()` is also called when `needs` returns False for the caller's current permissions.
        """
        return self._add(_Connection(user_id=caller.user_id, end=end, caller=caller, needs=needs))

    def held_of(self, user_id: str, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Register a connection to a user's sandbox; `end()` is called once the user is barred."""
        return self._add(_Connection(user_id=user_id, end=end))

    async def is_barred(self, user_id: str) -> bool:
        """Return whether a user may not use sandboxes, being blocked or a viewer.

        The answer is at most POLL_SECONDS old.
        """
        if self._barred_at is None or monotonic() - self._barred_at >= POLL_SECONDS:
            await self._read_barred()
        return user_id in self._barred

    async def find(self, caller: Principal) -> Principal | None:
        """Return the caller's current principal, or None if its key or login is invalid."""
        return (await self._find_all([caller])).get(caller)

    async def close_revoked(self) -> None:
        """Close the connections whose key or login is invalid now, or not sufficient any more."""
        self._barred_at = None
        seen = tuple(self._open)
        callers = [one.caller for one in seen if one.caller is not None]
        good = await self._find_all(callers)
        if len(callers) < len(seen):
            await self._read_barred()
        for one in seen:
            if one.caller is None:
                may_go_on = one.user_id not in self._barred
            else:
                may_go_on = one.caller in good and one.needs(good[one.caller])
            if one in self._open and not may_go_on:
                self._open.discard(one)
                one.end()

    @contextmanager
    def _add(self, one: _Connection) -> Iterator[None]:
        self._open.add(one)
        try:
            yield
        finally:
            self._open.discard(one)

    async def _find_all(self, callers: Sequence[Principal]) -> dict[Principal, Principal]:
        """Return the current principals of callers whose key or login is valid."""
        logins = {one.login_id for one in callers if one.login_id is not None}
        keys = {one.key_id for one in callers if one.login_id is None}
        by_login = await self._logins.find_good(logins) if logins else {}
        by_key = await self._keyring.find_good(keys) if keys else {}
        found = {
            one: by_login.get(one.login_id) if one.login_id else by_key.get(one.key_id)
            for one in callers
        }
        return {one: now for one, now in found.items() if now is not None}

    async def _read_barred(self) -> None:
        self._barred = await self._keyring.find_barred()
        self._barred_at = monotonic()
