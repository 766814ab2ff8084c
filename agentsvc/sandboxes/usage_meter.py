"""Resource usage of sandboxes, polled from their backends and cached.

Lists of sandboxes show the cached measurement and call no backend.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, now
from agentsvc.plugin import Phase, Usage
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.state import Sandbox, SandboxSummary

log = logging.getLogger(__name__)

_CONCURRENCY: Final = 8
_MAX_KEPT: Final = 240
"""How many measurements of each sandbox are kept."""
_MEASURED: Final = (Phase.STARTING, Phase.RUNNING, Phase.PAUSED)


class UsageSample(msgspec.Struct, frozen=True, kw_only=True):
    """Resource usage of a sandbox at a point in time."""

    usage: Usage
    at: datetime


class Meter(msgspec.Struct, eq=False):
    """Measures sandboxes and caches the results."""

    calls: BackendCalls
    _known: dict[str, UsageSample] = {}
    _recent: dict[str, deque[UsageSample]] = {}

    def find(self, sandbox: Sandbox) -> UsageSample | None:
        """Return the last measurement of a sandbox, or None if its phase uses no resources."""
        return self._known.get(sandbox.id) if sandbox.phase in _MEASURED else None

    def recent(self, sandbox: Sandbox) -> list[UsageSample]:
        """Return the kept measurements of a sandbox since the server started, oldest first."""
        return list(self._recent.get(sandbox.id, ()))

    async def measure(self, sandboxes: Sequence[SandboxSummary]) -> None:
        """Measure these sandboxes, all backends concurrently, and drop all other measurements."""
        by_backend: defaultdict[str, list[SandboxSummary]] = defaultdict(list)
        for sandbox in sandboxes:
            if sandbox.phase in _MEASURED and sandbox.handle is not None:
                by_backend[sandbox.backend].append(sandbox)
        found: dict[str, UsageSample] = {}
        async with asyncio.TaskGroup() as group:
            for name, its in by_backend.items():
                queue = its[::-1]
                for _ in range(min(_CONCURRENCY, len(queue))):
                    group.create_task(self._work(name, queue, found))
        self._known = found
        self._recent = {
            one.id: self._recent.get(one.id, deque(maxlen=_MAX_KEPT)) for one in sandboxes
        }
        for sandbox_id, measured in found.items():
            self._recent[sandbox_id].append(measured)

    async def _work(
        self, name: str, queue: list[SandboxSummary], found: dict[str, UsageSample]
    ) -> None:
        while queue:
            sandbox = queue.pop()
            if sandbox.handle is None:
                continue
            try:
                async with self.calls.to(name) as backend:
                    usage = await backend.usage(sandbox.handle)
            except AgentsvcError as exc:
                log.debug(
                    "resource usage not available",
                    extra={"sandbox_id": sandbox.id, "reason": str(exc)},
                )
                if exc.may_pass:
                    # A backend that is unavailable is not asked about its other sandboxes.
                    queue.clear()
                continue
            if usage is not None:
                found[sandbox.id] = UsageSample(usage=usage, at=now())
