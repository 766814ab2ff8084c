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
from agentsvc.http.keys import BACKENDS, CONFIG, DATABASE, MEASURES, SANDBOXES, SUPERVISOR
from agentsvc.http.middleware.pipeline import ACTIVITY
from agentsvc.http.routes import TEXT, Routes, Scope
from agentsvc.http.server.metrics_registry import Family, counter, gauge, to_text
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
    families = [
        *app[MEASURES].families(),
        *_stored(figures),
        *_database(figures, sizes),
        _backends(app[BACKENDS], app[SANDBOXES].silent_backends()),
        _info(app[CONFIG].sandboxes.default_backend),
        _loops(app[SUPERVISOR].loop_failures()),
        *_process(app[ACTIVITY].uptime_seconds),
    ]
    return web.Response(body=to_text(families).encode(), headers={"Content-Type": MEDIA})


def _stored(figures: Figures) -> Iterator[Family]:
    yield gauge(
        "sandboxes",
        "Sandboxes by backend, what is wanted and what was last seen.",
        (
            ({"backend": backend, "target": target, "phase": phase}, count)
            for (backend, target, phase), count in sorted(figures.sandboxes.items())
        ),
    )
    yield gauge(
        "conversations",
        "Conversations by what their agents do.",
        (({"status": name}, count) for name, count in sorted(figures.conversations.items())),
    )
    yield gauge(
        "starts",
        "Start tasks of the last hour by where they are.",
        (({"status": name}, count) for name, count in sorted(figures.starts.items())),
    )
    yield gauge(
        "start_stage_seconds",
        "How long starts of the last hour were in a stage.",
        (
            ({"stage": stage, "quantile": f"{part:g}"}, quantile(seconds, part))
            for stage, seconds in sorted(figures.stage_seconds.items())
            for part in _QUANTILES
        ),
    )
    yield gauge(
        "queue_depth",
        "What waits: starts for room, messages, deliveries of webhooks, removals that failed.",
        (({"queue": name}, count) for name, count in sorted(figures.queues.items())),
    )
    yield gauge(
        "event_lag_seconds",
        "How long the slowest of the newest events took to get here.",
        [({}, figures.event_lag_seconds)],
    )
    yield gauge(
        "model_cost_dollars",
        "What the conversations that are kept have cost, by model.",
        (({"model": name}, cost) for name, cost in sorted(figures.cost_dollars.items())),
    )


def _database(figures: Figures, sizes: dict[str, int]) -> Iterator[Family]:
    yield gauge(
        "database_bytes",
        "Size of the database and of its log, and what is free where they are.",
        (({"file": name}, size) for name, size in sizes.items()),
    )
    yield gauge(
        "database_read_seconds",
        "How long it took to read these figures.",
        [({}, figures.read_seconds)],
    )


def _backends(registry: BackendRegistry, silent: Collection[str]) -> Family:
    away = {*silent, *(name for name, health in registry.health().items() if not health.ok)}
    return gauge(
        "backend_up",
        "Whether a backend answered at the last look at its sandboxes, and, of a group, takes some.",
        (({"backend": name}, name not in away) for name in sorted(registry.names())),
    )


def _info(default: str) -> Family:
    return gauge(
        "info",
        "The version of the server, and the backend of sandboxes that ask for none.",
        [({"version": __version__, "default_backend": default}, 1)],
    )


def _loops(failures: Mapping[str, int]) -> Family:
    return gauge(
        "loop_failures",
        "How often in a row what the server does in the background has failed.",
        (({"loop": name}, count) for name, count in sorted(failures.items())),
    )


def _process(uptime_seconds: float) -> Iterator[Family]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield gauge("uptime_seconds", "How long the server has run.", [({}, uptime_seconds)])
    yield counter(
        "cpu_seconds_total",
        "Time of processors that the server has used.",
        [({}, used.ru_utime + used.ru_stime)],
    )
    yield gauge("memory_bytes", "Memory of the server.", [({}, _memory())])
    yield gauge("open_files", "Files and connections it has open.", [({}, _open_files())])
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield gauge("open_files_limit", "How many it may have open; -1 is no limit.", [({}, most)])


def _memory() -> int:
    try:
        return int((_PROC / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


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
