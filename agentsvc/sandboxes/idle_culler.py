"""Pauses, stops and deletes unused sandboxes, and makes room for queued ones.

The database tells which sandboxes may be idle; before one is changed its agent server is asked for
running conversations, and a sandbox whose agent server does not answer is left alone.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Final

import msgspec

from agentsvc.agentserver import AgentClient
from agentsvc.base import AgentsvcError, Supervisor, copy_to, now
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import IdleRules, Phase
from agentsvc.sandboxes.admission.memory import available_bytes
from agentsvc.sandboxes.admission.table import UnusedSandbox
from agentsvc.sandboxes.service import Sandboxes
from agentsvc.sandboxes.state import Sandbox, Target
from agentsvc.settings import SettingsStore

log = logging.getLogger(__name__)

_ASK_SECONDS: Final = 5.0
_TASK: Final = "making room"


class IdleCuller(msgspec.Struct, kw_only=True, eq=False):
    """Applies the idle rules."""

    sandboxes: Sandboxes
    agents: AgentClient
    settings: SettingsStore
    supervisor: Supervisor
    config: SandboxesConfig
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Subscribe to sandboxes that wait for an idle one to be paused."""
        self.sandboxes.admission.on_wanted(self.make_room_soon)

    async def cull(self) -> None:
        """Store the times of last use, and apply the idle rules; called periodically."""
        await self.sandboxes.idle.store_usage()
        for unused in await self.sandboxes.idle.find_unused():
            await self._apply(unused)
        await self._free_memory()
        await self._make_room()

    def make_room_soon(self) -> None:
        """Schedule pausing idle sandboxes for those that wait for capacity."""
        self.supervisor.spawn(_TASK, self._make_room)

    async def _apply(self, unused: UnusedSandbox) -> None:
        try:
            rules = await rules_for(unused, self.settings, defaults_of(self.config))
        except Exception:
            log.exception("idle rules of a user could not be read", extra={"sandbox_id": unused.id})
            return
        idle = now() - self.sandboxes.idle.last_use(unused)
        target = due(rules, unused, idle, **self.sandboxes.idle.possible_rests(unused))
        if target is not None:
            await self._cull(unused.id, target)

    async def _free_memory(self) -> None:
        """Free memory of idle sandboxes, one after the other, until enough is available."""
        if not self.config.min_available_memory:
            return
        since = now() - timedelta(seconds=self.config.min_idle_seconds)
        unused = [
            one
            for one in await self.sandboxes.idle.find_unused()
            if self.sandboxes.idle.takes_memory_here(one)
            and self.sandboxes.idle.last_use(one) <= since
        ]
        for one in sorted(unused, key=self.sandboxes.idle.last_use):
            available = await asyncio.to_thread(available_bytes)
            if available is None or available >= self.config.min_available_memory:
                return
            rests = self.sandboxes.idle.possible_rests(one)
            target = deeper(one, stops=self.config.stop_under_pressure, **rests)
            if target is not None and await self._cull(one.id, target):
                log.info(
                    "memory low, idle sandbox culled",
                    extra={"sandbox_id": one.id, "available": available},
                )
                # Its memory is free only then; others are left alone if that is enough.
                await self.sandboxes.wait_until_settled(one.id)

    async def _cull(self, sandbox_id: str, target: Target) -> bool:
        """Set the target of a sandbox if it is really idle; return whether it was set.

        Errors are logged and not raised, so that they do not affect other sandboxes.
        """
        asked_at = now()
        try:
            sandbox = await self.sandboxes.find_any(sandbox_id)
            if sandbox is None or await self._may_be_busy(sandbox):
                return False
            if not await self.sandboxes.idle.cull(sandbox_id, target, unused_since=asked_at):
                return False
        except Exception:
            log.exception("idle sandbox not culled", extra={"sandbox_id": sandbox_id})
            return False
        log.info("idle sandbox culled", extra={"sandbox_id": sandbox_id, "target": str(target)})
        return True

    async def _may_be_busy(self, sandbox: Sandbox) -> bool:
        """Return whether its agent server reports a running agent, or does not answer."""
        if sandbox.phase is not Phase.RUNNING or sandbox.agent_url is None:
            return False
        agent = self.agents.at(sandbox.agent_url, sandbox.session_key)
        try:
            return await agent.count_running(time_limit=_ASK_SECONDS) > 0
        except AgentsvcError as exc:
            log.info(
                "agent server not reachable, its sandbox is not counted as idle",
                extra={"sandbox_id": sandbox.id, "reason": str(exc)},
            )
            return True

    async def _make_room(self) -> None:
        async with self._lock:
            for wanted in await self.sandboxes.admission.find_awaiting_idle():
                for idle in await self.sandboxes.admission.find_idle(wanted):
                    if await self._cull(idle.id, Target.PAUSED):
                        break


def defaults_of(config: SandboxesConfig) -> IdleRules:
    """Return the idle rules that apply unless a spec or user sets others."""
    return copy_to(IdleRules, config)


async def rules_for(
    unused: UnusedSandbox, settings: SettingsStore, defaults: IdleRules
) -> IdleRules:
    """Return the idle rules of one sandbox: its user's first, then its spec's, then `defaults`."""
    own = (await settings.get(unused.user_id)).sandbox_idle
    return own.over(unused.spec.idle).over(defaults)


def due(
    rules: IdleRules,
    unused: UnusedSandbox,
    idle: timedelta,
    *,
    reclaims: bool = True,
    hibernates: bool = False,
) -> Target | None:
    """Return the target that the rules set for a sandbox idle for this long, or None.

    If hibernation is due and not possible, the sandbox is reclaimed instead; if that is not
    possible either, the rule for pausing applies.
    """
    if unused.phase in (None, Phase.STARTING):
        return None
    if _is_exceeded(rules.delete_after_seconds, idle):
        return Target.DELETED
    if unused.may_stop and _is_exceeded(rules.stop_after_seconds, idle):
        return Target.STOPPED
    may_hibernate = unused.may_pause or (hibernates and unused.may_hibernate)
    may_reclaim = unused.may_pause or (reclaims and unused.may_reclaim)
    is_old = _is_exceeded(rules.hibernate_after_seconds, idle)
    if is_old and may_hibernate:
        return Target.HIBERNATED
    if may_reclaim and (is_old or _is_exceeded(rules.reclaim_after_seconds, idle)):
        return Target.RECLAIMED
    is_paused = unused.may_pause and _is_exceeded(rules.pause_after_seconds, idle)
    return Target.PAUSED if is_paused else None


def deeper(
    unused: UnusedSandbox, *, reclaims: bool, hibernates: bool, stops: bool
) -> Target | None:
    """Return the next target that frees memory of a sandbox, or None if none is possible."""
    if reclaims and (unused.may_pause or unused.may_reclaim):
        return Target.RECLAIMED
    if hibernates and (unused.may_pause or unused.may_hibernate):
        return Target.HIBERNATED
    if unused.may_pause:
        return Target.PAUSED
    return Target.STOPPED if stops and unused.may_stop else None


def _is_exceeded(limit_seconds: float | None, idle: timedelta) -> bool:
    return bool(limit_seconds) and idle >= timedelta(seconds=limit_seconds or 0)
