"""How long conversations take to begin with real agent servers, which are forks of a loaded one."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.values import monotonic, new_key
from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import Reply, ScriptedModel
from tests.bench.figures import Figure, Section, Target, percentile
from tests.bench.sizes import Sizes
from tests.live.client import LiveClient
from tests.live.installation import Installation, eventually

_ENVIRONMENT: Final = {
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "true",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_DELAY_SECONDS": "0.1",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_SECONDS": "120",
    # On a busy machine the first start waits for the zygote that long.
    "AGENTSVC_SANDBOXES__CALL_SECONDS": "150",
    "AGENTSVC_SANDBOXES__START_SECONDS": "200",
}
_NONE: Final[Mapping[str, str]] = {}
_LOADED: Final = "fork server ready"
_LOAD_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.01
_LOOK_AT_ALL_SECONDS: Final = 0.05
_TASKS: Final = "/api/v1/app-conversations/start-tasks"
_PATIENCE_SECONDS: Final = 240.0
_OVER: Final = ("READY", "ERROR")
_READY: Final = Target(most=0.5)
_READY_OF_MOST: Final = Target(most=1.0)
_FIRST_EVENT: Final = Target(most=1.0)
_READY_AT_ONCE: Final = Target(most=5.0)
_SHORTEST_STAGE_MS: Final = 1.0


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that has begun: what it took until then, and its start task."""

    ready_seconds: float
    event_seconds: float
    max_ahead: int
    """The last place in the queue at which it was seen, 0 for none."""
    task: dict[str, Any]


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Begin conversations one after another, then many at once."""
    async with warm_server(folder) as (_, client):
        alone = [await begin_alone(client) for _ in range(sizes.agents)]
        together = await begin_together(client, sizes.agents_at_once)
    return Section(
        title="Real agent servers",
        about="`agentsvc serve` with the process backend as it is by default, its zygote loaded, a"
        " scripted model and no repository: from the request to the stored status, and to the first"
        " stored event of the agent's own. Below the figures of starts alone is where their time"
        " went, as the start task says it.",
        figures=(*_of_alone(alone), *_of_together(together)),
    )


@asynccontextmanager
async def warm_server(
    folder: Path, more: Mapping[str, str] = _NONE
) -> AsyncIterator[tuple[Installation, LiveClient]]:
    """Serve with the zygote loaded, and all that is read at the first start read."""
    scripts = {"default": [Reply(text="I am there.")]}
    async with ScriptedModel(scripts=scripts, key=new_key("model_")) as model:
        hosts = json.dumps([host_of_url(model.url)])
        environment = {**_ENVIRONMENT, **more, "AGENTSVC_SANDBOXES__MODEL_HOSTS": hosts}
        server = Installation(folder, model, environment)
        try:
            await server.start()
            client = server.client()
            await client.save_settings()
            # The zygote is loaded at full speed when somebody waits for it.
            await begin_alone(client)
            await eventually(lambda: _LOADED in server.log, _LOADED, time_limit=_LOAD_SECONDS)
            yield server, client
        finally:
            await server.close()


def _of_alone(begun: list[_Begun]) -> list[Figure]:
    ready = tuple(one.ready_seconds for one in begun)
    events = tuple(one.event_seconds for one in begun)
    slow = (percentile(ready, 0.95),)
    return [
        Figure(name="request to READY", unit="s", ours=ready, target=_READY),
        Figure(name="19 of 20 are READY after", unit="s", ours=slow, target=_READY_OF_MOST),
        *_stages(begun),
        Figure(
            name="request to the agent's first event", unit="s", ours=events, target=_FIRST_EVENT
        ),
    ]


def _stages(begun: list[_Begun]) -> list[Figure]:
    """Return how long each stage took, and each part that a stage names, without the shortest."""
    took: dict[str, list[float]] = {}
    for one in begun:
        for stage in one.task["stages"]:
            name = stage["status"].lower().replace("_", " ")
            took.setdefault(f"of it {name}", []).append(stage["duration_ms"] or 0)
            for part, milliseconds in stage["parts"].items():
                took.setdefault(f"of it {name}: {part}", []).append(milliseconds)
    return [
        Figure(name=name, unit="ms", ours=tuple(times))
        for name, times in took.items()
        if max(times) > _SHORTEST_STAGE_MS
    ]


def _of_together(begun: list[_Begun]) -> list[Figure]:
    count = len(begun)
    by_end = sorted(one.ready_seconds for one in begun)
    waited = sum(one.max_ahead > 0 for one in begun)
    return [
        Figure(name=f"the first of {count} starts at once", unit="s", ours=(by_end[0],)),
        Figure(
            name=f"the last of {count} starts at once",
            unit="s",
            ours=(by_end[-1],),
            target=_READY_AT_ONCE,
        ),
        Figure(name="of them seen waiting, with their place in the queue", unit="", ours=(waited,)),
    ]


async def begin_alone(client: LiveClient) -> _Begun:
    """Begin one conversation, wait for its agent, and delete its sandbox."""
    begun = await _begin(client)
    await _end(client, [begun])
    return begun


async def begin_together(client: LiveClient, count: int) -> list[_Begun]:
    """Begin so many at once, and look at all of them with one request, as their user would."""
    began = monotonic()
    orders = [client.start_task("say that you are there") for _ in range(count)]
    waiting = {task["id"]: task for task in await asyncio.gather(*orders)}
    begun: list[_Begun] = []
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while waiting:
            await asyncio.sleep(_LOOK_AT_ALL_SECONDS)
            ids = "&".join(f"ids={task_id}" for task_id in waiting)
            for task in (await client.get(f"{_TASKS}?{ids}")).json():
                places = (waiting[task["id"]]["queue_position"], task["queue_position"])
                # The last place at which it was seen is kept.
                waiting[task["id"]] = {**task, "queue_position": places[1] or places[0]}
                if task["status"] in _OVER:
                    assert task["status"] == "READY", task["detail"]
                    begun.append(_begun(waiting.pop(task["id"]), monotonic() - began))
        for one in begun:
            await client.until(
                one.task["app_conversation_id"], lambda found: any(map(is_of_agent, found))
            )
    return begun


def _begun(task: dict[str, Any], ready_seconds: float) -> _Begun:
    return _Begun(
        ready_seconds=ready_seconds,
        event_seconds=0.0,
        max_ahead=task["queue_position"] or 0,
        task=task,
    )


async def _begin(client: LiveClient) -> _Begun:
    began = monotonic()
    task = await client.start_task("say that you are there")
    max_ahead = task["queue_position"] or 0
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while task["status"] not in _OVER:
            await asyncio.sleep(_POLL_SECONDS)
            task = await client.task(task["id"])
            max_ahead = max(max_ahead, task["queue_position"] or 0)
        ready_seconds = monotonic() - began
        assert task["status"] == "READY", task["detail"]
        await client.until(task["app_conversation_id"], lambda found: any(map(is_of_agent, found)))
    return _Begun(
        ready_seconds=ready_seconds,
        event_seconds=monotonic() - began,
        max_ahead=max_ahead,
        task=task,
    )


def is_of_agent(event: dict[str, Any]) -> bool:
    """Whether the agent did it; what it was told at its beginning is its own in name only."""
    return event["source"] == "agent" and event["kind"] in ("ActionEvent", "MessageEvent")


async def _end(client: LiveClient, begun: list[_Begun]) -> None:
    for one in begun:
        await client.delete(f"/api/v1/sandboxes/{one.task['sandbox_id']}")
