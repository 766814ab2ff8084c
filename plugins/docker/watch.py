"""Hears from an engine which containers had a process killed for want of memory.

Where that was not the container's first process, nothing else ever tells of it.
"""

import asyncio
import contextlib
import json
from typing import Any

from agentsvc.base import AgentsvcError

from . import names
from .engine import Engine
from .inspection import UNKNOWN
from .plan import Json
from .streams import to_time

_AGAIN_SECONDS = 5.0
_KEPT = 10_000
_NANO = 1_000_000_000
_TOLD_SECONDS = 1.0


class EngineWatch:
    """Listens to one engine from `start` to `stop`, and again whenever it has been away."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._instance_id = instance_id
        self._heard: dict[str, float] = {}
        self._since = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; what the engine still remembers is told first."""
        if self._task is None:
            name = f"events of {self._engine.name}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        """End it. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def had_oom(self, container: Json) -> bool:
        """Say whether a process of a container was killed for want of memory since its start."""
        return self._heard.get(str(container.get("Id")), -1.0) >= _time_of(container, "StartedAt")

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(AgentsvcError, ValueError):
                await self._listen()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen(self) -> None:
        filters = {"event": ["oom"], **names.of_installation(self._instance_id)}
        query = {"since": self._since, "filters": filters}
        async with self._engine.stream("GET", "events", params=query) as answer:
            assert answer is not None  # noqa: S101  # no status was expected
            async for line in answer.content:
                if line.strip():
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        container_id = str((event.get("Actor") or {}).get("ID") or event.get("id") or "")
        second = int(event.get("time") or 0)
        self._since = max(self._since, second)
        self._heard.pop(container_id, None)
        self._heard[container_id] = int(event.get("timeNano") or second * _NANO) / _NANO
        if len(self._heard) > _KEPT:
            del self._heard[next(iter(self._heard))]


async def has_seen_the_end(engine: Engine, container: Json, time_limit: float) -> bool:
    """Say whether an engine itself saw a container end with what it gives as a code of its own.

    One that was away meanwhile tells of no end.
    """
    if (container.get("State") or {}).get("ExitCode") != UNKNOWN:
        return False
    # It waits until then, so that the end it may be about to tell of is not missed.
    return await has_told(engine, container, "die", within=_TOLD_SECONDS, time_limit=time_limit)


async def has_told(
    engine: Engine, container: Json, event: str, *, within: float, time_limit: float
) -> bool:
    """Say whether an engine tells of an event of a container's last run, so long after its end."""
    until = _time_of(container, "FinishedAt") + within
    query = {
        "since": f"{_time_of(container, 'StartedAt'):.6f}",
        "until": f"{until:.6f}",
        "filters": {"event": [event], "container": [container["Id"]]},
    }
    with contextlib.suppress(TimeoutError, AgentsvcError):
        async with (
            asyncio.timeout(time_limit),
            engine.stream("GET", "events", params=query) as answer,
        ):
            return answer is not None and bool((await answer.content.readline()).strip())
    return False


def _time_of(container: Json, what: str) -> float:
    return to_time((container.get("State") or {}).get(what) or "").timestamp()
