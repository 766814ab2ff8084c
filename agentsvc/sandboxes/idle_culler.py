"""Pauses, stops and removes what nobody uses, and makes room for who waits for it.

What is stored says which sandboxes may be idle; before one is touched its agent server is asked,
and one that does not answer is left alone.
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
    """Keeps to the rules for idle sandboxes."""

    sandboxes: Sandboxes
    agents: AgentClient
    settings: SettingsStore
    supervisor: Supervisor
    config: SandboxesConfig
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        """Make room for who waits for it."""
        self.sandboxes.admission.on_wanted(self.make_room_soon)

    async def cull(self) -> None:
        """Store what was used, and do what the rules say; called now and then."""
        await self.sandboxes.idle.store_usage()
        for unused in await self.sandboxes.idle.find_unused():
            await self._apply(unused)
        await self._relieve()
        await self._make_room()

    def make_room_soon(self) -> None:
        """Look in the background for a sandbox to pause, for one that waits."""
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

    async def _relieve(self) -> None:
        """Let idle sandboxes rest deeper until this machine has memory again, one after the other."""
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
                # What it had is free only then, and others are left alone if that is enough.
                await self.sandboxes.wait_until_settled(one.id)

    async def _cull(self, sandbox_id: str, target: Target) -> bool:
        """Pause, stop or remove a sandbox if it is really idle; say whether it was.

        A failure is logged: it concerns no other sandbox.
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
        """Whether its agent server says that an agent runs, or says nothing."""
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
    """Return the rules for sandboxes of which neither spec nor user says anything."""
    return copy_to(IdleRules, config)


async def rules_for(
    unused: UnusedSandbox, settings: SettingsStore, defaults: IdleRules
) -> IdleRules:
    """Return the rules for one sandbox: its user's word wins, then its spec's."""
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
    """Return what the rules want of a sandbox that was not used for this long, None for nothing.

    Where its memory can be kept on no disk, it is pushed out at that age at the latest, and where
    that cannot be either, it is paused.
    """
    if unused.phase in (None, Phase.STARTING):
        return None
    if _is_over(rules.delete_after_seconds, idle):
        return Target.DELETED
    if unused.may_stop and _is_over(rules.stop_after_seconds, idle):
        return Target.STOPPED
    may_hibernate = unused.may_pause or (hibernates and unused.may_hibernate)
    may_reclaim = unused.may_pause or (reclaims and unused.may_reclaim)
    is_old = _is_over(rules.hibernate_after_seconds, idle)
    if is_old and may_hibernate:
        return Target.HIBERNATED
    if may_reclaim and (is_old or _is_over(rules.reclaim_after_seconds, idle)):
        return Target.RECLAIMED
    is_paused = unused.may_pause and _is_over(rules.pause_after_seconds, idle)
    return Target.PAUSED if is_paused else None


def deeper(
    unused: UnusedSandbox, *, reclaims: bool, hibernates: bool, stops: bool
) -> Target | None:
    """Return the next deeper rest of a sandbox that takes memory, None where there is none."""
    if reclaims and (unused.may_pause or unused.may_reclaim):
        return Target.RECLAIMED
    if hibernates and (unused.may_pause or unused.may_hibernate):
        return Target.HIBERNATED
    if unused.may_pause:
        return Target.PAUSED
    return Target.STOPPED if stops and unused.may_stop else None


def _is_over(limit_seconds: float | None, idle: timedelta) -> bool:
    return bool(limit_seconds) and idle >= timedelta(seconds=limit_seconds or 0)
