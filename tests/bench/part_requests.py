"""The request path beside bare aiohttp: 1, 16 and 64 clients in a closed loop."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.closed_loop import MakeRequest, Measured, fetch, request_to, run_clients
from tests.bench.figures import Figure, Section, Target
from tests.bench.part_pages import event_of, make_list, make_log
from tests.bench.processes import Started, cpu_of, serve_bare
from tests.bench.rig import Running, client_of, feeder_of, run
from tests.bench.sizes import Sizes
from tests.http.v1.streaming import Feeder

_SETTINGS: Final = b'{"llm_model":"openai/gpt-4o","language":"en"}'
_EVENTS: Final = 100
_CONVERSATIONS: Final = 20
_CPU_RISE: Final = 1.2
_P99_OF_P50: Final = 3.0
_P99_MS: Final = 60.0
_WRITES: Final = 3_000
_EVENTS_OF_ONE: Final = 6_000
_EVENTS_OF_MANY: Final = 15_000


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Read, write and report with ever more clients, each time beside the floor."""
    data_dir = folder / "requests"
    async with AsyncExitStack() as opened:
        ours = await opened.enter_async_context(run("tests.bench.server", str(data_dir), ""))
        bare = await opened.enter_async_context(serve_bare())
        client = await opened.enter_async_context(client_of(ours))
        feeders = [
            await opened.enter_async_context(feeder_of(client)) for _ in range(sizes.writers)
        ]
        log = await make_log(data_dir, sizes.logged, sizes.event_bytes)
        listed = await make_list(data_dir, sizes.listed)
        one = f"/api/v1/app-conversations/{feeders[0].conversation_id}"
        page = f"/api/v1/app-conversations/search?limit={_CONVERSATIONS}"
        events = f"/api/v1/conversation/{log.conversation_id}/events/search?limit={_EVENTS}"
        bench = _Bench(sizes, ours, bare)
        figures = [
            *await bench.compare("GET /health", "/health", "", "/alive", 0.5),
            *await bench.compare("one conversation", one, ours.key, "/data?bytes={size}", 0.25),
            *await bench.compare("settings", "/api/settings", ours.key, "/data?bytes={size}", 0.25),
            *await bench.compare("20 conversations", page, listed.key, "/structs", 0.3),
            *await bench.compare("100 events", events, log.key, "/structs", 0.3),
            *await bench.write(),
            *await bench.report(feeders),
        ]
    return Section(
        title="Requests of many clients",
        about="Clients on connections of their own, each with its next request when it has its"
        " answer; a real key, an access line for each, no limit on requests. The floor is bare"
        " aiohttp: a constant answer of as many bytes, and for pages the structs, encoded anew each"
        f" time. Settings and reports of {sizes.batch} events are stored at `synchronous=FULL`.",
        figures=tuple(figures),
    )


class _Bench:
    """Two servers, and what is measured of them."""

    def __init__(self, sizes: Sizes, ours: Running, bare: Started) -> None:
        self._sizes = sizes
        self._ours = ours
        self._bare = bare

    async def compare(
        self, name: str, path: str, key: str, bare_path: str, least: float
    ) -> list[Figure]:
        """Read the same of both servers."""
        request = request_to(self._ours.url, path, key=key)
        body = await asyncio.to_thread(fetch, self._ours.url, request)
        if bare_path == "/structs":
            given = request_to(self._bare.url, "/structs", method="POST", body=body)
            await asyncio.to_thread(fetch, self._bare.url, given)
        floor = request_to(self._bare.url, bare_path.format(size=len(body)))
        taken: dict[int, tuple[Measured, Measured]] = {}
        for count in self._sizes.closed_loops:
            taken[count] = (
                await self._run(self._ours, [lambda: request] * count),
                await self._run(self._bare, [lambda: floor] * count),
            )
        return _figures(name, taken, least)

    async def write(self) -> list[Figure]:
        """Store settings."""
        make = partial(
            request_to, self._ours.url, "/api/settings", key=self._ours.key, method="POST"
        )
        most = max(self._sizes.closed_loops)
        found = await self._run(self._ours, [partial(make, body=_SETTINGS)] * most)
        return [
            _of(f"settings stored, {most} clients", "/s", found.per_second, Target(least=_WRITES)),
            _of(f"settings stored, {most} clients, p99", "ms", found.p99_ms, Target(most=_P99_MS)),
        ]

    async def report(self, feeders: list[Feeder]) -> list[Figure]:
        """Report events, of one sandbox and of all."""
        figures = []
        for count, least in ((1, _EVENTS_OF_ONE), (2 * len(feeders), _EVENTS_OF_MANY)):
            some = list(itertools.islice(itertools.cycle(feeders), count))
            found = await self._run(self._ours, [self._reporting(one) for one in some])
            figures.append(
                _of(
                    f"events reported, {count} clients",
                    "/s",
                    self._sizes.batch * found.per_second,
                    Target(least=least),
                )
            )
        return figures

    def _reporting(self, feeder: Feeder) -> MakeRequest:
        numbers = itertools.count()
        size, batch = self._sizes.event_bytes, self._sizes.batch

        def make() -> bytes:
            body = b"[" + b",".join(event_of(next(numbers), size) for _ in range(batch)) + b"]"
            key = feeder.sandbox.key or ""
            return request_to(self._ours.url, feeder.path, key=key, method="POST", body=body)

        return make

    async def _run(self, server: Running | Started, requests: list[MakeRequest]) -> Measured:
        cpu: Callable[[], float] = partial(cpu_of, server.pid)
        seconds = self._sizes.seconds / 5
        return await asyncio.to_thread(
            run_clients, server.url, requests, seconds=seconds, cpu_seconds=cpu
        )


def _figures(
    name: str, taken: Mapping[int, tuple[Measured, Measured]], least: float
) -> list[Figure]:
    first, last = min(taken), max(taken)
    figures = [
        Figure(
            name=f"{name}, {count} clients",
            unit="/s",
            ours=(ours.per_second,),
            floor=(floor.per_second,),
            target=Target(least=least, of_floor=True) if count == last else None,
        )
        for count, (ours, floor) in taken.items()
    ]
    ours, floor = taken[last]
    # A run of a moment may take less than the system counts.
    cpu = [taken[count][0].cpu_ms or floor.cpu_ms or 1.0 for count in (first, last)]
    return [
        *figures,
        Figure(name=f"{name}, processor time", unit="ms", ours=(cpu[1],), floor=(floor.cpu_ms,)),
        _of(f"{name}, that of {last} to {first}", "times", cpu[1] / cpu[0], Target(most=_CPU_RISE)),
        _of(f"{name}, p50", "ms", ours.p50_ms, None),
        _of(f"{name}, p99 to p50", "times", ours.p99_ms / ours.p50_ms, Target(most=_P99_OF_P50)),
    ]


def _of(name: str, unit: str, value: float, target: Target | None) -> Figure:
    return Figure(name=name, unit=unit, ours=(value,), target=target)
