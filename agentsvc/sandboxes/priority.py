"""Lowers the priority of running sandboxes while others start on the same machine."""

import asyncio
from collections import defaultdict

import msgspec

from agentsvc.plugin import Handle
from agentsvc.sandboxes.admission.slots import StartSlots
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.state import Sandbox


class PriorityManager(msgspec.Struct, eq=False):
    """Tells backends which sandboxes run at lower priority, and when that ends."""

    calls: BackendCalls
    slots: StartSlots
    _begun: dict[str, Sandbox] = {}
    """Sandboxes whose start has ended while other starts were still in progress."""
    _notified: set[str] = set()
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    def add(self, begun: Sandbox) -> None:
        """Lower the priority of this sandbox, too, until no start is in progress."""
        self._begun[begun.id] = begun

    async def apply(self) -> None:
        """Send backends their sandboxes of lower priority; a failed call is retried next time."""
        if self.slots.is_over:
            self._begun.clear()
        sandboxes = list(self._begun.values())
        async with self._lock:
            handles: defaultdict[str, list[Handle]] = defaultdict(list)
            for sandbox in sandboxes:
                if sandbox.handle is not None:
                    handles[sandbox.backend].append(sandbox.handle)
            for name in handles.keys() | self._notified:
                is_done = await self.calls.give_way(name, handles[name])
                if handles[name] or not is_done:
                    self._notified.add(name)
                else:
                    self._notified.discard(name)
