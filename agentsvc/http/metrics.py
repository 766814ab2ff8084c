"""The `/metrics` endpoint in the text format of Prometheus."""

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
    """Return the server's metrics in the text format of Prometheus.

    They cover requests, conversations, sandboxes, deliveries and the resource use of the server.
    """
    app = request.app
    figures = await read_figures(app[DATABASE])
    sizes = await asyncio.to_thread(_sizes, app[DATABASE].path)
    versions = {"version": __version__, "default_backend": app[CONFIG].sandboxes.default_backend}
    info = "Version of the server, and its default backend."
    loops = "Consecutive failures of each background loop; 0 after a success."
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
    text = "Sandboxes by backend, target and last observed phase."
    yield gauge("sandboxes", text, sandboxes)
    text = "Conversations by the execution status of their agents."
    yield gauge("conversations", text, _by("status", figures.conversations))
    text = "Start tasks of the last hour by status."
    yield gauge("starts", text, _by("status", figures.starts))
    stages = (
        ({"stage": stage, "quantile": f"{part:g}"}, quantile(seconds, part))
        for stage, seconds in sorted(figures.stage_seconds.items())
        for part in _QUANTILES
    )
    text = "Time that starts of the last hour spent in each stage, as quantiles."
    yield gauge("start_stage_seconds", text, stages)
    text = "Queue lengths: starts, pending messages, webhook deliveries, failed removals to retry."
    yield gauge("queue_depth", text, _by("queue", figures.queues))
    text = "Largest delay between the creation and the arrival of the newest events."
    yield gauge("event_lag_seconds", text, [({}, figures.event_lag_seconds)])
    text = "Model costs of stored conversations; all but the 100 most expensive models are `other`."
    yield gauge("model_cost_dollars", text, _by("model", figures.cost_dollars))


def _database(figures: Figures, sizes: dict[str, int]) -> Iterator[MetricFamily]:
    text = "Size of the database file and its write-ahead log, and free space on their file system."
    yield gauge("database_bytes", text, (({"file": name}, size) for name, size in sizes.items()))
    text = "Time that reading these metrics from the database took."
    yield gauge("database_read_seconds", text, [({}, figures.read_seconds)])


def _backends(registry: BackendRegistry, silent: Collection[str]) -> MetricFamily:
    away = {*silent, *(name for name, health in registry.health().items() if not health.ok)}
    text = "Whether a backend answered the last sweep and, if in a group, its last health check."
    return gauge(
        "backend_up", text, _by("backend", {one: one not in away for one in registry.names()})
    )


def _by(label: str, figures: Mapping[str, float]) -> Iterator[tuple[Labels, float]]:
    """Yield the figures with their names as the value of a label, sorted by name."""
    return (({label: name}, figure) for name, figure in sorted(figures.items()))


def _process(uptime_seconds: float) -> Iterator[MetricFamily]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield gauge("uptime_seconds", "Time since the start of the server.", [({}, uptime_seconds)])
    seconds = used.ru_utime + used.ru_stime
    yield counter("cpu_seconds_total", "CPU time used by the server process.", [({}, seconds)])
    yield gauge("memory_bytes", "Resident memory of the server process.", [({}, read_memory().rss)])
    yield gauge("open_files", "Open file descriptors of the server process.", [({}, _open_files())])
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield gauge("open_files_limit", "Limit of open file descriptors; -1 is no limit.", [({}, most)])


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
