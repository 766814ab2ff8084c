"""The figures of the server as Prometheus reads them."""

import asyncio
import os
import resource
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from agentsvc import __version__
from agentsvc.conversations import Figures, quantile, read_figures
from agentsvc.http.health import read_memory
from agentsvc.http.keys import BACKENDS, CONFIG, DATABASE, MEASURES, SANDBOXES, SUPERVISOR
from agentsvc.http.middleware.pipeline import ACTIVITY
from agentsvc.http.routes import TEXT, Routes, Scope
from agentsvc.http.server.metrics_registry import Labels, MetricFamily, counter, gauge, to_text
from agentsvc.sandboxes import BackendRegistry

MEDIA: Final = f"{TEXT}; version=0.0.4; charset=utf-8"
_QUANTILES: Final = (0.5, 0.95)
_PROC: Final = Path("/proc/self")

ROUTES: Final = Routes()


@ROUTES.add("GET", "/metrics", str, scope=Scope.ADMIN_READ, media=TEXT)
async def get_metrics(request: web.Request) -> web.Response:
    """Return figures of the server as Prometheus reads them.

    In the text format of Prometheus, with requests, conversations, sandboxes, deliveries and what
    the server uses.
    """
    app = request.app
    figures = await read_figures(app[DATABASE])
    sizes = await asyncio.to_thread(_sizes, app[DATABASE].path)
    versions = {"version": __version__, "default_backend": app[CONFIG].sandboxes.default_backend}
    info = "The version of the server, and the backend of sandboxes that ask for none."
    loops = "How often in a row what the server does in the background has failed."
    families = [
        *app[MEASURES].families(),
        *_stored(figures),
        *_database(figures, sizes),
        _backends(app[BACKENDS], app[SANDBOXES].unreachable_backends()),
        gauge("info", info, [(versions, 1)]),
        gauge("loop_failures", loops, _by("loop", app[SUPERVISOR].loop_failures())),
        *_process(app[ACTIVITY].uptime_seconds),
    ]
    return web.Response(body=to_text(families).encode(), headers={"Content-Type": MEDIA})


def _stored(figures: Figures) -> Iterator[MetricFamily]:
    sandboxes = (
        ({"backend": backend, "target": target, "phase": phase}, count)
        for (backend, target, phase), count in sorted(figures.sandboxes.items())
    )
    text = "Sandboxes by backend, what is wanted and what was last seen."
    yield gauge("sandboxes", text, sandboxes)
    text = "Conversations by what their agents do."
    yield gauge("conversations", text, _by("status", figures.conversations))
    text = "Start tasks of the last hour by where they are."
    yield gauge("starts", text, _by("status", figures.starts))
    stages = (
        ({"stage": stage, "quantile": f"{part:g}"}, quantile(seconds, part))
        for stage, seconds in sorted(figures.stage_seconds.items())
        for part in _QUANTILES
    )
    text = "How long starts of the last hour were in a stage."
    yield gauge("start_stage_seconds", text, stages)
    text = "What waits: starts for room, messages, deliveries of webhooks, removals that failed."
    yield gauge("queue_depth", text, _by("queue", figures.queues))
    text = "How long the slowest of the newest events took to get here."
    yield gauge("event_lag_seconds", text, [({}, figures.event_lag_seconds)])
    text = "What the conversations that are kept have cost, by model; all but the 100 dearest are `other`."
    yield gauge("model_cost_dollars", text, _by("model", figures.cost_dollars))


def _database(figures: Figures, sizes: dict[str, int]) -> Iterator[MetricFamily]:
    text = "Size of the database and of its log, and what is free where they are."
    yield gauge("database_bytes", text, (({"file": name}, size) for name, size in sizes.items()))
    text = "How long it took to read these figures."
    yield gauge("database_read_seconds", text, [({}, figures.read_seconds)])


def _backends(registry: BackendRegistry, silent: Collection[str]) -> MetricFamily:
    away = {*silent, *(name for name, health in registry.health().items() if not health.ok)}
    text = (
        "Whether a backend answered at the last look at its sandboxes, and, of a group, takes some."
    )
    return gauge(
        "backend_up", text, _by("backend", {one: one not in away for one in registry.names()})
    )


def _by(label: str, figures: Mapping[str, float]) -> Iterator[tuple[Labels, float]]:
    """Yield figures under the names they have, in the order of these."""
    return (({label: name}, figure) for name, figure in sorted(figures.items()))


def _process(uptime_seconds: float) -> Iterator[MetricFamily]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield gauge("uptime_seconds", "How long the server has run.", [({}, uptime_seconds)])
    seconds = used.ru_utime + used.ru_stime
    yield counter(
        "cpu_seconds_total", "Time of processors that the server has used.", [({}, seconds)]
    )
    yield gauge("memory_bytes", "Memory of the server.", [({}, read_memory().rss)])
    yield gauge("open_files", "Files and connections it has open.", [({}, _open_files())])
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield gauge("open_files_limit", "How many it may have open; -1 is no limit.", [({}, most)])


def _open_files() -> int:
    return len(os.listdir(_PROC / "fd")) if sys.platform == "linux" else 0  # noqa: PTH208  # names are enough


def _sizes(path: Path) -> dict[str, int]:
    log = path.with_name(f"{path.name}-wal")
    free = os.statvfs(path.parent)
    return {
        "database": path.stat().st_size,
        "log": log.stat().st_size if log.exists() else 0,
        "free": free.f_bavail * free.f_frsize,
    }
