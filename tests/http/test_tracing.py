"""Traces as a collector gets them that the environment names."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import StartFailed
from agentsvc.plugin.files import bundled, is_needed
from tests.plugin_loading import part
from tests.service import Service

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span, as far as it is looked at."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    is_error: bool
    seconds: float
    attributes: dict[str, Any]
    service: str


@pytest.fixture
async def collected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Span]]:
    """Return what a collector gets, of a server that is started or restarted from now on."""
    spans: list[Span] = []

    async def take(request: web.Request) -> web.Response:
        spans.extend(_read(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield spans
    await runner.cleanup()


def _read(body: bytes) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            is_error=span.status.code == 2,
            seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            attributes={one.key: _value(one.value) for one in span.attributes},
            service=next(
                one.value.string_value
                for one in group.resource.attributes
                if one.key == "service.name"
            ),
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return value.int_value or value.string_value


async def test_a_collector_gets_requests_and_the_stages_of_starts(
    collected: list[Span], service: Service
) -> None:
    client = await service.make_client()
    await client.save_settings()
    answer = await client.get(
        "/api/v1/users/me", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
    )
    conversation_id = await client.start_conversation()
    stranger = await service.make_client("bob", Role.MEMBER)
    failed = await stranger.start_task()
    await stranger.end_of_start(failed["id"])
    await client.get("/alive")
    # What is not sent yet is sent when it stops.
    await service.stop()

    [asked] = [span for span in collected if span.name == "GET /api/v1/users/me"]
    assert (asked.trace_id, asked.parent_id) == (TRACE, PARENT)
    assert asked.attributes["http.response.status_code"] == 200
    assert asked.attributes["agentsvc.request_id"] == answer.headers["X-Request-Id"]
    assert asked.service == "agentsvc"
    assert [span for span in collected if span.name == "GET /alive"] == []

    starts = {
        span.attributes["agentsvc.conversation_id"]: span
        for span in collected
        if span.name == "start of a conversation"
    }
    good = starts.pop(conversation_id)
    [bad] = starts.values()
    assert (good.is_error, bad.is_error) == (False, True)
    parts = [span for span in collected if span.parent_id == good.id]
    assert {"waiting for sandbox", "starting conversation"} <= {part.name for part in parts}
    assert sum(part.seconds for part in parts) <= good.seconds + 0.1


async def test_a_server_whose_collector_is_away_serves_and_stops(
    monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    await service.stop()
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    await service.start()
    client = await service.make_client()
    assert (await client.get("/api/v1/users/me")).status == 200
    async with asyncio.timeout(50):
        await service.stop()


def test_without_a_collector_the_plugin_is_not_loaded() -> None:
    [plugin] = [one for one in bundled() if one.name == "otel"]
    whole: dict[str, Any] = {"kinds": frozenset({"process"}), "settings": {}}
    assert not is_needed(plugin, environ={}, **whole)
    assert is_needed(plugin, environ={ENDPOINT: "http://x"}, **whole)


def test_traces_can_be_switched_off_by_the_environment() -> None:
    tracing = part("otel.tracing")
    assert tracing.is_wanted({ENDPOINT: "http://x"})
    assert not tracing.is_wanted({})
    assert not tracing.is_wanted({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "true"})


def test_a_collector_without_the_extra_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = part("otel.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartFailed, match="the extra `otel` is not installed") as caught:
        tracing.Tracing(tracing.NoSettings())
    assert "agentsvc[otel]" in caught.value.hint
