"""What one sandbox may send: beyond it the sandbox waits, then is refused, and nobody else is."""

import asyncio
import gzip
import io
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.accounts.quotas import Quotas
from agentsvc.agentserver.client import AgentServer
from agentsvc.base.throttle import Throttle
from agentsvc.base.values import dashed, monotonic, new_id
from agentsvc.config.conversations import EventsConfig
from agentsvc.config.schema import Config, LimitsConfig
from agentsvc.http.wire import CALLBACK_BODY_BYTES
from tests.http.test_metrics import read
from tests.http.v1.streaming import Feeder, deltas, events, feeder
from tests.service import Answer, Client, Service
from tests.streams import open_lines, path_of

ADOPTED = 504
FLOOD_BYTES = 320 * 1000 * 1000
BODY_BYTES = 4 * 1000 * 1000
EVENT_BYTES = 1000 * 1000
SECONDS = 10
JSON = {"Content-Type": "application/json"}


async def limited(service: Service, **limits: Any) -> None:
    """Start the server with the default limits, but for these."""
    config = msgspec.structs.replace(Config().limits, **limits)
    service.config = msgspec.structs.replace(service.config, limits=config)
    await service.restart()


def large_event(size: int) -> dict[str, Any]:
    [event] = events(1)
    return {**event, "id": dashed(new_id()), "text": "x" * size}


def statuses(answers: list[Answer]) -> list[int]:
    return [answer.status for answer in answers]


async def report(fed: Feeder, size: int) -> Answer:
    return await fed.sandbox.post(fed.path, json=[large_event(size)])


async def refused(client: Client, reason: str) -> float:
    return (await read(client))["agentsvc_refused_total", f'reason="{reason}"']


# It reads and stores as much as a sandbox may send, which is work and not waiting.
@pytest.mark.timeout(240)
async def test_a_flood_of_reports_waits_and_then_is_refused(
    client: Client, service: Service
) -> None:
    await limited(service)
    fed = await feeder(client, service)
    fed.sandbox.patience = 60
    per_second = LimitsConfig().report_bytes_per_minute / 60
    count = BODY_BYTES // EVENT_BYTES

    async def post() -> int:
        body = io.BytesIO(json.dumps([large_event(EVENT_BYTES) for _ in range(count)]).encode())
        async with aiohttp.ClientSession(headers=headers) as session:
            url = f"{service.url}{fed.path}"
            async with session.post(url, data=body) as answer:
                if answer.status != 200:
                    assert int(answer.headers["Retry-After"]) >= 1
                    assert (await answer.json())["code"] == "too_many_requests"
                return answer.status

    headers = {**JSON, "X-Session-API-Key": str(fed.sandbox.key)}
    began = monotonic()
    found = await asyncio.gather(*(post() for _ in range(FLOOD_BYTES // BODY_BYTES)))
    took = monotonic() - began
    assert set(found) == {200, 429}
    taken = found.count(200) * BODY_BYTES
    assert taken > CALLBACK_BODY_BYTES - BODY_BYTES
    assert taken < CALLBACK_BODY_BYTES + per_second * (SECONDS + took)
    assert await refused(client, "sandbox_bytes") == found.count(429)
    assert (await client.get("/api/settings")).status == 200


async def test_a_report_may_be_longer_than_what_users_send(
    client: Client, service: Service
) -> None:
    server = msgspec.structs.replace(service.config.server, max_body_bytes=100_000)
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    fed = await feeder(client, service)
    assert (await report(fed, EVENT_BYTES)).status == 200
    assert (await client.post("/api/v1/settings", json={"x": "x" * EVENT_BYTES})).status == 413


async def test_what_is_compressed_counts_as_what_it_is(client: Client, service: Service) -> None:
    await limited(service, report_bytes_per_minute=600_000)
    fed = await feeder(client, service)
    body = gzip.compress(json.dumps([large_event(EVENT_BYTES) for _ in range(40)]).encode())
    assert len(body) < BODY_BYTES
    headers = {**JSON, "Content-Encoding": "gzip"}
    began = monotonic()
    answers = [await fed.sandbox.post(fed.path, data=body, headers=headers) for _ in range(2)]
    assert statuses(answers) == [200, 429]
    assert monotonic() - began < 2 * SECONDS


async def test_more_requests_than_a_sandbox_may_send_wait_and_none_is_lost(
    client: Client, service: Service
) -> None:
    await limited(service, sandbox_requests_per_minute=120)
    fed = await feeder(client, service)
    began = monotonic()
    await asyncio.gather(*(fed.send([large_event(10)]) for _ in range(130)))
    assert monotonic() - began > 1
    many = await asyncio.gather(*(report(fed, 10) for _ in range(40)))
    assert set(statuses(many)) == {200, 429}
    assert await refused(client, "sandbox_rate") == statuses(many).count(429)
    stored = [one for one in await client.events(fed.conversation_id) if "text" in one]
    assert len(stored) == 130 + statuses(many).count(200)


async def test_no_more_bytes_of_events_are_stored_of_a_sandbox(
    client: Client, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await limited(service, event_bytes_per_sandbox=100_000)
    fed, other = await feeder(client, service), await feeder(client, service)
    answers = [await report(fed, 30_000) for _ in range(5)]
    assert statuses(answers) == [200, 200, 200, 429, 429]
    assert answers[-1].json()["code"] == "quota_exceeded"
    assert int(answers[-1].headers["Retry-After"]) > 60
    assert (await report(other, 30_000)).status == 200
    assert await refused(client, "sandbox_quota") == 2
    told = [
        one
        for one in caplog.records
        if one.message == "request of a sandbox refused, its limit is reached"
    ]
    assert [one.levelno for one in told] == [logging.WARNING]


async def test_deltas_that_are_stored_count_for_the_bytes_of_a_sandbox(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()

    async def subscribe(_agent: AgentServer, _conversation_id: str) -> AsyncIterator[list[bytes]]:
        for number in range(20):
            yield [json.dumps(one).encode() for one in deltas(1, first=number, text="x" * 10_000)]
        told.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(AgentServer, "subscribe", subscribe)
    service.config = msgspec.structs.replace(service.config, events=EventsConfig(store_deltas=True))
    await limited(service, event_bytes_per_sandbox=100_000)
    fed = await feeder(client, service)
    async with open_lines(client, path_of(fed.conversation_id)):
        await asyncio.wait_for(told.wait(), SECONDS)
    stored = [one for one in await client.events(fed.conversation_id) if "text" in one]
    assert 5 <= len(stored) <= 9
    assert (await report(fed, 10_000)).status == 429


async def test_conversations_that_a_sandbox_tells_of_count_for_the_quota_of_its_user(
    client: Client, service: Service
) -> None:
    await limited(service)
    bob = await service.make_client("bob", Role.MEMBER)
    await bob.save_settings()
    fed = await feeder(bob, service)
    [user] = [one for one in (await client.get("/api/v1/users")).json() if one["name"] == "bob"]
    quotas = msgspec.to_builtins(Quotas(conversations_per_hour=5))
    assert (await client.put(f"/api/v1/users/{user['id']}/quotas", json=quotas)).status == 200
    answers = await adopt(fed, ADOPTED)
    assert statuses(answers).count(200) == 4
    assert {one.json()["code"] for one in answers if one.status != 200} == {"quota_exceeded"}
    assert await count(bob) == 5


async def test_without_a_quota_a_sandbox_tells_of_so_many(client: Client, service: Service) -> None:
    await limited(service)
    fed = await feeder(client, service)
    answers = await adopt(fed, ADOPTED)
    assert statuses(answers).count(200) == LimitsConfig().adopted_per_sandbox
    assert await count(client) == 1 + LimitsConfig().adopted_per_sandbox


async def adopt(fed: Feeder, count: int) -> list[Answer]:
    fed.sandbox.patience = 60
    path = "/api/v1/webhooks/conversations"
    return await asyncio.gather(
        *(fed.sandbox.post(path, json={"id": dashed(new_id())}) for _ in range(count))
    )


async def count(client: Client) -> int:
    answer = await client.get("/api/v1/app-conversations/count")
    return int(answer.text)


async def test_a_sandbox_has_so_many_connections(client: Client, service: Service) -> None:
    await limited(service, connections_per_sandbox=3)
    fed = await feeder(client, service)
    headers = {"X-Session-API-Key": str(fed.sandbox.key)}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def ask() -> int:
            async with session.get(f"{service.url}/api/v1/sandboxes/x/settings/secrets") as answer:
                return answer.status

        found = await asyncio.gather(*(ask() for _ in range(6)))
        assert sorted(found) == [403, 403, 403, 429, 429, 429]
        assert await refused(client, "sandbox_connections") == 3
        assert (await client.get("/api/settings")).status == 200


def test_whoever_has_sent_nothing_for_a_while_may_send_anything() -> None:
    throttle = Throttle(60, at_once=10)
    assert throttle.reserve("a", 1000, max_wait_seconds=10) == (10, True)
    assert throttle.reserve("b", 10, max_wait_seconds=0) == (0, True)
    seconds, is_taken = throttle.reserve("a", 1, max_wait_seconds=10)
    assert seconds > 980
    assert not is_taken


def test_of_callers_of_a_throttle_the_oldest_is_forgotten() -> None:
    throttle = Throttle(60, at_once=1)
    for number in range(10_001):
        assert throttle.reserve(str(number), 1, max_wait_seconds=0) == (0, True)
    assert throttle.reserve("0", 1, max_wait_seconds=0) == (0, True)
    assert throttle.reserve("10000", 1, max_wait_seconds=0)[1] is False
