"""Connections that stay open, each let in by a key: they end when the key has lost its worth.

That a key was revoked, has expired or belongs to a user who is blocked or may do less by now is seen
here whoever did it, be it a command in another process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import msgspec

from agentsvc.accounts.keys import KeyRing, Principal
from agentsvc.accounts.logins import Logins
from agentsvc.base import monotonic

POLL_SECONDS: Final = 1.0
"""How often it is looked whether keys are good still."""


class _Held(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A connection; `needs` tells whether its caller may go on.

    Without a caller it is one to a sandbox of a user that the sandbox's own key opened.
    """

    user_id: str
    end: Callable[[], None]
    caller: Principal | None = None
    needs: Callable[[Principal], bool] = lambda _caller: True


class OpenConnections:
    """Knows every connection that stays open, and who opened it."""

    def __init__(self, keyring: KeyRing, logins: Logins) -> None:
        self._keyring = keyring
        self._logins = logins
        self._open: set[_Held] = set()
        self._barred: frozenset[str] = frozenset()
        self._barred_at: float | None = None

    def held(
        self,
        caller: Principal,
        end: Callable[[], None],
        *,
        needs: Callable[[Principal], bool] = lambda _caller: True,
    ) -> AbstractContextManager[None]:
        """Call `end()` when the caller's key has lost its worth while this lasts.

        So it is called when the caller is no longer what `needs` asks for.
        """
        return self._hold(_Held(user_id=caller.user_id, end=end, caller=caller, needs=needs))

    def held_of(self, user_id: str, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `end()` when a user may use no sandbox any more while this lasts."""
        return self._hold(_Held(user_id=user_id, end=end))

    async def is_barred(self, user_id: str) -> bool:
        """Tell whether a user may use no sandbox: one who is blocked, or may only look.

        What is known of that is not older than POLL_SECONDS.
        """
        if self._barred_at is None or monotonic() - self._barred_at >= POLL_SECONDS:
            await self._read_barred()
        return user_id in self._barred

    async def find(self, caller: Principal) -> Principal | None:
        """Return what a caller is by now, or None if the key, or the login for it, is not good."""
        return (await self._find_all([caller])).get(caller)

    async def close_revoked(self) -> None:
        """End the connections whose key, or the login that stands for it, is not good now."""
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
    def _hold(self, one: _Held) -> Iterator[None]:
        self._open.add(one)
        try:
            yield
        finally:
            self._open.discard(one)

    async def _find_all(self, callers: Sequence[Principal]) -> dict[Principal, Principal]:
        """Return what callers are by now, as far as their keys, or the logins for these, are good."""
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
