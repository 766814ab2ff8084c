"""What clients wait for: single requests, and starts of conversations. Runs against any server."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from agentsvc.base.values import monotonic
from tests.bench.figures import Figure, Section, Target
from tests.bench.load import Work, as_many_as_can_be, in_turns
from tests.bench.processes import serve_bare
from tests.bench.rig import client_of, run
from tests.bench.sizes import Sizes
from tests.service import Client

_READY_SECONDS: Final = 0.5
_ALL_READY_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01
_START_SECONDS: Final = 300.0
_LIST: Final = "/api/v1/app-conversations/search?limit=20"
_STARTS: Final = "/api/v1/app-conversations"


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Ask a server of ours whose sandboxes are a fake agent."""
    async with (
        run("tests.bench.server", str(folder / "api"), "") as server,
        client_of(server) as client,
    ):
        await client.save_settings()
        return await measure_against(sizes, client)


async def measure_against(sizes: Sizes, client: Client) -> Section:
    """Ask any server with this interface, whose settings name a language model."""
    async with AsyncExitStack() as opened:
        bare = Client((await opened.enter_async_context(serve_bare())).url, None)
        opened.push_async_callback(bare.close)
        starts = await _starts(sizes, client)
        figures = [
            await _single(sizes, name, client, bare, path)
            for name, path in (
                ("a constant answer", "/alive"),
                ("settings", "/api/settings"),
                ("a list of conversations", _LIST),
            )
        ]
        rates = [
            await as_many_as_can_be(work, seconds=sizes.seconds / 4, at_once=sizes.clients)
            for work in (_get(client, "/alive"), _get(bare, "/alive"))
        ]
    figures.append(
        Figure(
            name=f"constant answers to {sizes.clients} clients",
            unit="/s",
            ours=(rates[0],),
            floor=(rates[1],),
        )
    )
    return Section(
        title="Requests and starts",
        about="One request at a time beside a constant answer of the same size by bare aiohttp."
        " Starts without a repository and without a first message; agents of our own server are a"
        " fake one in its process, so that they show its own part of a start.",
        figures=(*figures, *starts),
    )


async def _single(sizes: Sizes, name: str, client: Client, bare: Client, path: str) -> Figure:
    size = len((await client.get(path)).body)
    works = [_get(client, path), _get(bare, f"/data?bytes={size}")]
    ours, floor = await in_turns(works, sizes.requests)
    return Figure(
        name=name,
        unit="ms",
        ours=tuple(1000 * seconds for seconds in ours),
        floor=tuple(1000 * seconds for seconds in floor),
    )


async def _starts(sizes: Sizes, client: Client) -> list[Figure]:
    made: list[str] = []
    try:
        alone = [await _start(client, made) for _ in range(sizes.conversation_starts)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_start(client, made)) for _ in range(sizes.starts_at_once)]
    finally:
        # The server may be one that is there for others.
        for conversation_id in made:
            await client.delete(f"{_STARTS}/{conversation_id}")
    return [
        Figure(
            name="request to READY",
            unit="s",
            ours=tuple(alone),
            target=Target(most=_READY_SECONDS),
        ),
        Figure(
            name=f"the last of {sizes.starts_at_once} starts at once",
            unit="s",
            ours=(max(task.result() for task in tasks),),
            target=Target(most=_ALL_READY_SECONDS),
        ),
    ]


async def _start(client: Client, made: list[str]) -> float:
    """Return how long a start takes; what it makes is put on the list."""
    began = monotonic()
    answer = await client.post(_STARTS, json={})
    assert answer.status == 200, answer.text
    task: dict[str, Any] = answer.json()
    async with asyncio.timeout(_START_SECONDS):
        while task["status"] not in ("READY", "ERROR"):
            await asyncio.sleep(_POLL_SECONDS)
            task = await client.task(task["id"])
    took = monotonic() - began
    if task["app_conversation_id"]:
        made.append(task["app_conversation_id"])
    assert task["status"] == "READY", task["detail"]
    return took


def _get(client: Client, path: str) -> Work:
    async def get() -> None:
        answer = await client.get(path)
        assert answer.status == 200, answer.text

    return get
