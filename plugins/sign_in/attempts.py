"""Pending sign-ins, which browsers have started and whose provider has not responded yet.

They are kept in memory for some minutes: after a restart, users have to start again. The browser stores a
binding token in the storage of the origin, which proves that it started the sign-in.
"""

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from agentsvc.base import NotAuthenticated, monotonic, new_key, sha256

_SECONDS: Final = 600.0
_MAX: Final = 10_000


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A pending sign-in, with its secrets."""

    provider: str
    redirect_uri: str
    invitation: str | None
    binding_hash: str
    at: float
    nonce: str
    verifier: str


class Attempts:
    """The pending sign-ins, by the `state` that a provider returns."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, Attempt] = {}

    def begin(
        self, provider: str, *, redirect_uri: str, invitation: str | None
    ) -> tuple[str, str, Attempt]:
        """Start a sign-in; return its state, the binding token for the browser, and the attempt."""
        moment = self._clock()
        while self._pending:
            state, oldest = next(iter(self._pending.items()))
            if len(self._pending) < _MAX and moment - oldest.at < _SECONDS:
                break
            del self._pending[state]
        state, binding = new_key().reveal(), new_key().reveal()
        self._pending[state] = Attempt(
            provider=provider,
            redirect_uri=redirect_uri,
            invitation=invitation,
            binding_hash=sha256(binding),
            at=moment,
            nonce=new_key().reveal(),
            verifier=new_key().reveal(),
        )
        return state, binding, self._pending[state]

    def redeem(self, state: str, binding: str) -> Attempt:
        """Remove and return a sign-in; NotAuthenticated if it is expired or another browser's."""
        found = self._pending.get(state)
        is_own = found is not None and secrets.compare_digest(found.binding_hash, sha256(binding))
        if found is None or not is_own or self._clock() - found.at >= _SECONDS:
            raise NotAuthenticated("This sign-in was not started here, or has expired; start again")
        return self._pending.pop(state)
