"""Connections that stay open, each let in by a key: they end when the key has lost its worth.

That a key was revoked, has expired or belongs to a user who is blocked or may do less by now is seen
here whoever did it, be it a command in another process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from agentsvc.auth import KeyRing, Principal
from agentsvc.logins import Logins

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether keys are good still."""


class _Held(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A connection; `needs` tells whether its caller may go on."""

    caller: Principal
    end: Callable[[], None]
    needs: Callable[[Principal], bool]


class Admitted:
    """Knows every connection that stays open, and who opened it."""

    def __init__(self, keyring: KeyRing, logins: Logins) -> None:
        self._keyring = keyring
        self._logins = logins
        self._open: set[_Held] = set()

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

    async def find(self, caller: Principal) -> Principal | None:
        """Return what a caller is by now, or None if the key, or the login for it, is not good."""
        if caller.login_id is not None:
            return (await self._logins.find_good([caller.login_id])).get(caller.login_id)
        return (await self._keyring.find_good([caller.key_id])).get(caller.key_id)

    async def look(self) -> None:
        """End the connections whose key, or the login that stands for it, is not good now."""
        if not self._open:
            return
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
