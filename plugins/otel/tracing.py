"""The spans of a server, and their export to a collector."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from aiohttp import web

from agentsvc.base import StartFailed
from agentsvc.extension.server import (
    VERSION,
    Extension,
    Handler,
    Middleware,
    NoSettings,
    Server,
    StartStatus,
    StartTask,
)
from agentsvc.extension.web import REQUEST_ID, route_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_NAMED: Final = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
_UNTRACED_PATHS: Final = frozenset({"/alive", "/health", "/ready", "/metrics"})
_TIME_LIMIT: Final = "OTEL_EXPORTER_OTLP_TIMEOUT"
# Maximum time that a stop waits for an unreachable collector.
_SEND_SECONDS: Final = 3.0
_FLUSH_SECONDS: Final = 5.0
_ENDED: Final = (StartStatus.READY, StartStatus.ERROR)


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a collector for traces."""
    is_off = environ.get(_DISABLED, "").strip().lower() == "true"
    return not is_off and any(environ.get(name) for name in _ENDPOINTS)


class Tracing(Extension[NoSettings]):
    """Creates the spans of one server, and exports them.

    The constructor raises StartFailed if the packages are not installed.
    """

    def __init__(self, config: NoSettings) -> None:
        super().__init__(config)
        try:
            provider = _make_provider(os.environ)
            from opentelemetry import trace  # noqa: PLC0415  # an extra
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as exc:
            raise StartFailed(
                "a collector for traces is named, but the extra `otel` is not installed",
                hint=f"install agentsvc[otel], or unset {_ENDPOINTS[0]}",
            ) from exc
        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("agentsvc", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def middlewares(self) -> Iterable[Middleware]:
        """Return the middleware that creates a span for each request."""
        return (self.trace,)

    @contextlib.asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Subscribe to starts; at the end, export the remaining spans."""
        server.conversations.starts.on_change(self.note_start)
        yield
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await asyncio.to_thread(self._provider.shutdown)

    @web.middleware
    async def trace(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Create a span for a request, in the trace of its caller."""
        if request.path in _UNTRACED_PATHS:
            return await handler(request)
        route = route_of(request)
        name = request.method if route is None else f"{request.method} {route.path}"
        attributes = {
            "http.request.method": request.method,
            "url.path": request.rel_url.raw_path,
            "agentsvc.request_id": request[REQUEST_ID],
            **({} if route is None else {"http.route": route.path}),
        }
        with self._tracer.start_as_current_span(
            name,
            context=self._propagator.extract(request.headers),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,
        ) as span:
            response = await handler(request)
            span.set_attribute("http.response.status_code", response.status)
            if response.status >= web.HTTPInternalServerError.status_code:
                span.set_status(self._api.StatusCode.ERROR)
            return response

    def note_start(self, task: StartTask) -> None:
        """Create a trace for a start that has ended, with a span for each of its stages."""
        if task.status not in _ENDED:
            return
        *stages, end = task.stages
        attributes = {
            "agentsvc.conversation_id": task.conversation_id,
            "agentsvc.start_task_id": task.id,
            "agentsvc.sandbox_id": task.sandbox_id or "",
        }
        first = stages[0] if stages else end
        whole = self._tracer.start_span(
            "start of a conversation",
            context=self._api.set_span_in_context(self._api.INVALID_SPAN),
            start_time=_nanoseconds(first.started_at),
            attributes=attributes,
        )
        inside = self._api.set_span_in_context(whole)
        for stage in stages:
            part = self._tracer.start_span(
                str(stage.status).lower().replace("_", " "),
                context=inside,
                start_time=_nanoseconds(stage.started_at),
            )
            duration = timedelta(milliseconds=stage.duration_ms or 0)
            part.end(_nanoseconds(stage.started_at + duration))
        if task.status is StartStatus.ERROR:
            whole.set_status(self._api.StatusCode.ERROR)
        whole.end(_nanoseconds(end.started_at))


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


def _make_provider(environ: Mapping[str, str]) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # an extra
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    attributes = {"service.version": VERSION}
    # Attributes given here would override the environment.
    if not environ.get(_NAMED[0]) and "service.name=" not in environ.get(_NAMED[1], ""):
        attributes["service.name"] = "agentsvc"
    provider = TracerProvider(resource=Resource.create(dict(attributes)))
    time_limit = None if environ.get(_TIME_LIMIT) else _SEND_SECONDS
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=time_limit)))
    return provider
