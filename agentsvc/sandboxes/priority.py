"""Lowers the priority of running sandboxes while others start on the same machine."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from agentsvc.plugin import Handle
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.state import Sandbox


class PriorityManager:
    """Tells backends, and remembers which of them have to be told when it is over."""

    def __init__(self, calls: BackendCalls) -> None:
        self._calls = calls
        self._told: set[str] = set()
        self._lock = asyncio.Lock()

    async def settle(self, sandboxes: Iterable[Sandbox]) -> None:
        """Let these give way and no others; a backend that cannot be told is told the next time."""
        async with self._lock:
            handles: defaultdict[str, list[Handle]] = defaultdict(list)
            for sandbox in sandboxes:
                if sandbox.handle is not None:
                    handles[sandbox.backend].append(sandbox.handle)
            for name in handles.keys() | self._told:
                is_taken = await self._calls.give_way(name, handles[name])
                if handles[name] or not is_taken:
                    self._told.add(name)
                else:
                    self._told.discard(name)
