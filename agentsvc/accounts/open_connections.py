"""Connections that stay open, each let in by a key: they end when the key has lost its worth.

That a key was revoked, has expired or belongs to a user who is blocked or may do less by now is seen
here whoever did it, be it a command in another process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from agentsvc.accounts.keys import KeyRing, Principal
from agentsvc.accounts.logins import Logins
from agentsvc.base import monotonic

POLL_SECONDS: Final = 1.0
"""How often it is looked whether keys are good still."""


class _Held(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A connection; `needs` tells whether its caller may go on."""

    caller: Principal
    end: Callable[[], None]
    needs: Callable[[Principal], bool]


class _Owned(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A connection to a sandbox of a user that the sandbox's own key opened."""

    user_id: str
    end: Callable[[], None]


class OpenConnections:
    """Knows every connection that stays open, and who opened it."""

    def __init__(self, keyring: KeyRing, logins: Logins) -> None:
        self._keyring = keyring
        self._logins = logins
        self._open: set[_Held] = set()
        self._owned: set[_Owned] = set()
        self._barred: frozenset[str] = frozenset()
        self._barred_at: float | None = None

    @contextmanager
    def held(
        self,
        caller: Principal,
        end: Callable[[], None],
        *,
        needs: Callable[[Principal], bool] = lambda _caller: True,
    ) -> Iterator[None]:
        """Call `end()` when the caller's key has lost its worth while this lasts.

        So it is called when the caller is no longer what `needs` asks for.
        """
        held = _Held(caller=caller, end=end, needs=needs)
        self._open.add(held)
        try:
            yield
        finally:
            self._open.discard(held)

    @contextmanager
    def held_of(self, user_id: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end()` when a user may use no sandbox any more while this lasts."""
        owned = _Owned(user_id=user_id, end=end)
        self._owned.add(owned)
        try:
            yield
        finally:
            self._owned.discard(owned)

    async def is_barred(self, user_id: str) -> bool:
        """Tell whether a user may use no sandbox: one who is blocked, or may only look.

        What is known of that is not older than POLL_SECONDS.
        """
        if self._barred_at is None or monotonic() - self._barred_at >= POLL_SECONDS:
            await self._read_barred()
        return user_id in self._barred

    async def find(self, caller: Principal) -> Principal | None:
        """Return what a caller is by now, or None if the key, or the login for it, is not good."""
        if caller.login_id is not None:
            return (await self._logins.find_good([caller.login_id])).get(caller.login_id)
        return (await self._keyring.find_good([caller.key_id])).get(caller.key_id)

    async def close_revoked(self) -> None:
        """End the connections whose key, or the login that stands for it, is not good now."""
        self._barred_at = None
        if self._owned:
            await self._check_owners()
        if self._open:
            await self._check_callers()

    async def _read_barred(self) -> None:
        self._barred = await self._keyring.find_barred()
        self._barred_at = monotonic()

    async def _check_owners(self) -> None:
        await self._read_barred()
        for one in tuple(self._owned):
            if one.user_id in self._barred:
                self._owned.discard(one)
                one.end()

    async def _check_callers(self) -> None:
        seen = tuple(self._open)
        logins = {one.caller.login_id for one in seen if one.caller.login_id is not None}
        keys = {one.caller.key_id for one in seen if one.caller.login_id is None}
        by_login = await self._logins.find_good(logins) if logins else {}
        by_key = await self._keyring.find_good(keys) if keys else {}
        for one in seen:
            login_id = one.caller.login_id
            now = by_login.get(login_id) if login_id else by_key.get(one.caller.key_id)
            if one in self._open and (now is None or not one.needs(now)):
                self._open.discard(one)
                one.end()
