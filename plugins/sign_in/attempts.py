"""Sign-ins that browsers have begun and that their provider has not answered yet.

They are kept in memory, each for some minutes: after a restart a user begins anew. What a browser keeps to
itself, in storage that belongs to one origin, is what shows that it began the sign-in.
"""

import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from agentsvc.base import NotAuthenticated, monotonic, new_key, sha256

_SECONDS: Final = 600.0
_MAX: Final = 10_000


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in on its way: what only the server, the browser and the provider know of it."""

    provider: str
    redirect_uri: str
    invitation: str | None
    binding_hash: str
    at: float
    nonce: str
    verifier: str


class Attempts:
    """The sign-ins on their way, by the `state` that a provider hands back."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, Attempt] = {}

    def begin(
        self, provider: str, *, redirect_uri: str, invitation: str | None
    ) -> tuple[str, str, Attempt]:
        """Begin one, and return its state and what the browser keeps to itself."""
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
        """Return one, which is used up by that; raises NotAuthenticated for any but the browser's own."""
        found = self._pending.get(state)
        is_own = found is not None and secrets.compare_digest(found.binding_hash, sha256(binding))
        if found is None or not is_own or self._clock() - found.at >= _SECONDS:
            raise NotAuthenticated("This sign-in was not begun here, or is over; begin it anew")
        return self._pending.pop(state)
