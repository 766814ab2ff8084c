"""Authorizes gateway requests, and resumes sandboxes for them.

An API key of the sandbox's owner or the sandbox's session key opens all its ports. Also waits until
the sandbox is ready for a request.
"""

import hmac
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec

from agentsvc.accounts import KEY_PREFIX, KeyRing, Logins, OpenConnections, Principal
from agentsvc.base import errors
from agentsvc.config import GatewayConfig
from agentsvc.http.gateway.port_cookies import port_token
from agentsvc.http.gateway.target import RequestKeys
from agentsvc.http.routes import Scope, check_scope
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus, Target, failure_of


class GatewayCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The identities behind a request's keys; `keys` are those that must not reach a sandbox."""

    principal: Principal | None = None
    sandbox: Sandbox | None = None
    keys: frozenset[str] = frozenset()


class Authorizer:
    """Identifies callers by their keys, and waits for sandboxes that start."""

    def __init__(
        self,
        *,
        keyring: KeyRing,
        logins: Logins,
        admitted: OpenConnections,
        sandboxes: Sandboxes,
        config: GatewayConfig,
    ) -> None:
        self._keyring = keyring
        self._admitted = admitted
        self._logins = logins
        self._sandboxes = sandboxes
        self._config = config

    async def find_by_key(self, shown: RequestKeys) -> Sandbox | None:
        """Return the sandbox of the first session key among the keys, whatever its state."""
        for key in (*shown.keys, *shown.sandbox_keys):
            sandbox = await self._find(key)
            if sandbox is not None:
                return sandbox
        return None

    async def identify(self, shown: RequestKeys, sandbox_id: str = "") -> GatewayCaller:
        """Return the caller with these keys; raises NotAuthenticated if no key is valid.

        `sandbox_id` is the sandbox of the origin that the port cookie is for.
        """
        caller = GatewayCaller()
        for key in shown.keys:
            caller = await self._add(caller, key)
        for key in shown.sandbox_keys:
            caller = _merge(
                caller, GatewayCaller(sandbox=await self._find(key), keys=frozenset({key}))
            )
        if caller.principal is None and shown.login:
            caller = await self._add_login(caller, shown.login)
        if caller.principal is None and caller.sandbox is None:
            caller = await self._find_by_token(shown, sandbox_id)
        with_others = caller
        for key in shown.others:
            with_others = await self._add(with_others, key)
        return msgspec.structs.replace(caller, keys=with_others.keys)

    async def let_in(self, sandbox_id: str) -> GatewayCaller:
        """Return a caller for a request that needs no key.

        Raises NotAuthenticated for an unknown or deleted sandbox, as if a key were required,
        and Conflict for a paused one, which only a request with a key resumes.
        """
        sandbox = await self._sandboxes.find_any(sandbox_id)
        if sandbox is None or sandbox.target is Target.DELETED:
            raise errors.NotAuthenticated
        if _is_paused(sandbox):
            raise _paused(sandbox)
        return GatewayCaller(sandbox=sandbox)

    async def get(self, caller: GatewayCaller, sandbox_id: str) -> Sandbox:
        """Return a sandbox that the caller may use; raises NotFound for sandboxes of other users.

        Raises NotAllowed for a read-only user, because any request to a sandbox may change it, and
        for a session key whose user is barred.
        """
        if caller.sandbox is not None and caller.sandbox.id == sandbox_id:
            if await self._admitted.is_barred(caller.sandbox.user_id):
                raise errors.NotAllowed("The user of this sandbox may not use it")
            return caller.sandbox
        if caller.principal is None:
            raise errors.NotFound
        sandbox = await self._sandboxes.get(caller.principal.user_id, sandbox_id)
        check_scope(Scope.RUN, caller.principal)
        return sandbox

    def held(
        self, caller: GatewayCaller, sandbox_id: str, end: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Call `end()` if the caller's key or user loses access during the context."""
        if caller.sandbox is not None and caller.sandbox.id == sandbox_id:
            return self._admitted.held_of(caller.sandbox.user_id, end)
        if caller.principal is not None:
            return self._admitted.held(caller.principal, end, needs=lambda caller: caller.may_run)
        return nullcontext()

    def using(self, sandbox_id: str) -> AbstractContextManager[None]:
        """Mark a sandbox as in use inside the context, so that no idle rule applies to it."""
        return self._sandboxes.usage.hold(sandbox_id)

    async def wait_usable(self, sandbox: Sandbox, *, wakes_culled: bool = False) -> Sandbox:
        """Return the sandbox once it runs; waits up to `gateway.start_seconds` for a start.

        A paused sandbox is resumed if `gateway.resume_on_traffic` is set, or if `wakes_culled` and
        an idle rule has paused it; otherwise raises Conflict. Raises Gone for a lost sandbox,
        NotFound if it is deleted meanwhile, SandboxNotUsable if it failed, and SandboxStarting
        after the time limit.
        """
        if _is_paused(sandbox):
            is_woken = wakes_culled and await self._sandboxes.idle.is_culled(sandbox)
            if not (self._config.resume_on_traffic or is_woken):
                raise _paused(sandbox)
            await self._sandboxes.resume(sandbox.user_id, sandbox.id)
        elif sandbox.status is not SandboxStatus.STARTING:
            return _running(sandbox)
        seen = await self._sandboxes.wait_for(
            sandbox.id,
            lambda found: found is None or found.status not in _UNDER_WAY,
            time_limit=self._config.start_seconds,
        )
        if seen is None:
            raise errors.NotFound
        return _running(seen)

    async def _add(self, caller: GatewayCaller, key: str) -> GatewayCaller:
        keys = frozenset({key})
        sandbox = await self._find(key)
        if sandbox is not None:
            return _merge(caller, GatewayCaller(sandbox=sandbox, keys=keys))
        try:
            principal = await self._keyring.identify(key)
        except errors.NotAuthenticated:
            return caller
        return _merge(caller, GatewayCaller(principal=principal, keys=keys))

    async def _add_login(self, caller: GatewayCaller, token: str) -> GatewayCaller:
        try:
            principal = await self._logins.identify(token)
        except errors.NotAuthenticated:
            return caller
        return _merge(caller, GatewayCaller(principal=principal))

    async def _find_by_token(self, shown: RequestKeys, sandbox_id: str) -> GatewayCaller:
        sandbox = await self._sandboxes.find_any(sandbox_id) if shown.port_token else None
        if sandbox is None or shown.origin is None or sandbox.target is Target.DELETED:
            raise errors.NotAuthenticated
        expected = port_token(shown.origin, sandbox.session_key.reveal())
        if not hmac.compare_digest(expected, shown.port_token):
            raise errors.NotAuthenticated
        return GatewayCaller(sandbox=sandbox)

    async def _find(self, key: str) -> Sandbox | None:
        # API keys have a prefix and are by far the more common: skip the query.
        return None if key.startswith(KEY_PREFIX) else await self._sandboxes.find_by_key(key)


def _merge(caller: GatewayCaller, more: GatewayCaller) -> GatewayCaller:
    return GatewayCaller(
        principal=caller.principal or more.principal,
        sandbox=caller.sandbox or more.sandbox,
        keys=caller.keys | more.keys,
    )


_UNDER_WAY: Final = (SandboxStatus.STARTING, SandboxStatus.PAUSED)


def _is_paused(sandbox: Sandbox) -> bool:
    is_over = sandbox.status in (SandboxStatus.ERROR, SandboxStatus.MISSING)
    return not is_over and (sandbox.target.is_rest or sandbox.status is SandboxStatus.PAUSED)


def _paused(sandbox: Sandbox) -> errors.Conflict:
    path = f"/api/v1/sandboxes/{sandbox.id}/resume"
    return errors.Conflict(f"The sandbox is paused. Resume it with POST {path}")


def _running(sandbox: Sandbox) -> Sandbox:
    match sandbox.status:
        case SandboxStatus.RUNNING:
            return sandbox
        case SandboxStatus.MISSING:
            raise errors.Gone(
                "The sandbox does not exist any more; its stored events can still be read"
            )
        case SandboxStatus.ERROR:
            raise failure_of(sandbox)
        case SandboxStatus.STARTING | SandboxStatus.PAUSED:
            raise errors.SandboxStarting("The sandbox is starting")
