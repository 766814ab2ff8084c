"""Subscribes to an engine's events to learn in which containers the OOM killer ran.

If the killed process was not the container's first, no other API reports it.
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

_RETRY_SECONDS = 5.0
_KEPT = 10_000
_NANO = 1_000_000_000
_EVENT_SECONDS = 1.0


class EngineWatch:
    """Subscribes to one engine's events from `start` to `stop`, and reconnects after failures."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._instance_id = instance_id
        self._ooms: dict[str, float] = {}
        self._since = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Subscribe; the engine first sends the past events that it still has."""
        if self._task is None:
            name = f"events of {self._engine.name}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        """Unsubscribe. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def had_oom(self, container: Json) -> bool:
        """Return whether the OOM killer ran in a container since its start."""
        return self._ooms.get(str(container.get("Id")), -1.0) >= _time_of(container, "StartedAt")

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(AgentsvcError, ValueError):
                await self._listen()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        filters = {"event": ["oom"], **names.of_installation(self._instance_id)}
        query = {"since": self._since, "filters": filters}
        async with self._engine.stream("GET", "events", params=query) as answer:
            assert answer is not None  # noqa: S101  # no status was expected
            async for line in answer.content:
                if line.strip():
                    self._process(json.loads(line))

    def _process(self, event: dict[str, Any]) -> None:
        container_id = str((event.get("Actor") or {}).get("ID") or event.get("id") or "")
        second = int(event.get("time") or 0)
        self._since = max(self._since, second)
        self._ooms.pop(container_id, None)
        self._ooms[container_id] = int(event.get("timeNano") or second * _NANO) / _NANO
        if len(self._ooms) > _KEPT:
            del self._ooms[next(iter(self._ooms))]


async def has_observed_end(engine: Engine, container: Json, time_limit: float) -> bool:
    """Return whether the engine observed the end of a container whose exit code is ambiguous.

    An engine that was not running at that time has no event for it.
    """
    if (container.get("State") or {}).get("ExitCode") != UNKNOWN:
        return False
    # The query waits until then, so that a late event is not missed.
    return await has_told(engine, container, "die", within=_EVENT_SECONDS, time_limit=time_limit)


async def has_told(
    engine: Engine, container: Json, event: str, *, within: float, time_limit: float
) -> bool:
    """Return whether an engine has an event of a container's last run.

    Waits for a late event until `within` seconds after the run's end.
    """
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
