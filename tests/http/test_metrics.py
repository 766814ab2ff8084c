import asyncio
import re
from datetime import UTC, datetime

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.conversations.statistics import lag_seconds, quantile, read_figures
from agentsvc.http.server.metrics_registry import RequestMetrics, gauge, to_text
from agentsvc.storage.database import Database
from agentsvc.testing.backend import FakeWorld
from tests.conversations.test_events import ADD_CONVERSATION, ADD_USER
from tests.service import WAIT_SECONDS, Client, Service

_LINE = re.compile(r'^(agentsvc_\w+)(?:\{((?:\w+="[^"]*",?)*)\})? (\S+)$')


async def read(client: Client) -> dict[tuple[str, str], float]:
    """Return the value of each figure by its name and its labels."""
    answer = await client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            parts = _LINE.match(line)
            assert parts is not None, line
            found[parts[1], parts[2] or ""] = float(parts[3])
    return found


async def test_the_figures_tell_of_all_that_an_operator_watches(client: Client) -> None:
    conversation_id = await client.start_conversation("please work")
    await client.wait_for_execution(conversation_id, "finished")
    found = await read(client)
    assert found["agentsvc_sandboxes", 'backend="fake",target="running",phase="running"'] == 1
    assert found["agentsvc_conversations", 'status="finished"'] == 1
    assert found["agentsvc_starts", 'status="READY"'] == 1
    stages = [labels for name, labels in found if name == "agentsvc_start_stage_seconds"]
    assert 'stage="WAITING_FOR_SANDBOX",quantile="0.95"' in stages
    assert found["agentsvc_queue_depth", 'queue="messages"'] == 0
    assert found["agentsvc_model_cost_dollars", 'model="openai/scripted"'] > 0
    assert found["agentsvc_database_bytes", 'file="database"'] > 0
    assert found["agentsvc_event_lag_seconds", ""] >= 0
    assert found["agentsvc_memory_bytes", ""] > 0
    assert found["agentsvc_requests_running", ""] >= 1


async def test_requests_are_counted_by_their_routes_and_times_add_up(client: Client) -> None:
    for name in ("a", "b"):
        await client.get(f"/api/v1/app-conversations/{name * 32}")
    await client.get("/made/up/by/a/client")
    await client.get("/docs/", allow_redirects=False)
    found = await read(client)
    route = "/api/v1/app-conversations/{conversation_id}"
    counted = f'method="GET",route="{route}",status="404"'
    assert found["agentsvc_requests_total", counted] == 2
    assert found["agentsvc_requests_total", 'method="GET",route="none",status="404"'] >= 1
    assert found["agentsvc_requests_total", 'method="GET",route="/docs",status="308"'] == 1
    assert found["agentsvc_request_seconds_count", f'route="{route}"'] == 2
    assert found["agentsvc_request_seconds_bucket", f'route="{route}",le="+Inf"'] == 2
    buckets = [
        value
        for (name, labels), value in found.items()
        if name == "agentsvc_request_seconds_bucket" and f'"{route}"' in labels
    ]
    assert buckets == sorted(buckets)


async def test_who_was_turned_away_is_counted_by_why(client: Client, service: Service) -> None:
    nobody = service.client_with("wrong")
    await nobody.get("/api/settings")
    elsewhere = {"Host": "evil.example"}
    assert (await service.client_with(None).get("/login", headers=elsewhere)).status == 421
    await nobody.post("/api/v1/logins", json={"api_key": "wrong"})
    await nobody.post("/api/v1/logins/link", json={"token": "wrong"})
    found = await read(client)
    refused = {
        labels.partition('"')[2].rstrip('"'): value
        for (name, labels), value in found.items()
        if name == "agentsvc_refused_total"
    }
    assert refused == {
        "host": 1,
        "key": 1,
        "login": 2,
        "key_rate": 0,
        "address_rate": 0,
        "other_rate": 0,
        "connections": 0,
        "address_connections": 0,
        "keyless_connections": 0,
        "user_connections": 0,
        "sandbox_connections": 0,
        "sandbox_rate": 0,
        "sandbox_bytes": 0,
        "sandbox_quota": 0,
    }


async def test_a_backend_that_does_not_answer_is_down_until_it_does(
    client: Client, fake_world: FakeWorld
) -> None:
    async def is_up(value: float) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                if (await read(client))["agentsvc_backend_up", 'backend="fake"'] == value:
                    return
                await asyncio.sleep(0.05)

    await is_up(1)
    fake_world.unreachable = True
    await is_up(0)
    fake_world.unreachable = False
    await is_up(1)


async def test_the_figures_are_for_administrators(service: Service) -> None:
    member = await service.make_client("bob", role=Role.MEMBER)
    assert (await member.get("/metrics")).status == 403


def test_what_a_label_says_is_escaped() -> None:
    text = to_text([gauge("x", "An x.", [({"name": 'a"b\\c\nd'}, 1.5)])])
    assert text == (
        '# HELP agentsvc_x An x.\n# TYPE agentsvc_x gauge\nagentsvc_x{name="a\\"b\\\\c\\nd"} 1.5\n'
    )


def test_a_time_is_in_the_first_part_it_fits_and_in_all_later_ones() -> None:
    measures = RequestMetrics()
    for seconds in (0.1, 0.3, 1000.0):
        measures.note(method="GET", route="/x", status=200, seconds=seconds)
    measures.note(method="GET", route="/stream", status=200, seconds=None)
    lines = to_text(measures.families()).splitlines()
    for line in (
        'agentsvc_request_seconds_bucket{route="/x",le="0.025"} 0',
        'agentsvc_request_seconds_bucket{route="/x",le="0.1"} 1',
        'agentsvc_request_seconds_bucket{route="/x",le="0.5"} 2',
        'agentsvc_request_seconds_bucket{route="/x",le="+Inf"} 3',
        'agentsvc_request_seconds_sum{route="/x"} 1000.4',
        'agentsvc_requests_total{method="GET",route="/stream",status="200"} 1',
    ):
        assert line in lines
    assert not [line for line in lines if "_bucket" in line and "/stream" in line]


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("2026-11-22T10:00:00.500000", 1.5),
        ("2026-11-22T10:00:00Z", 2.0),
        ("2026-11-22T11:00:00+01:00", 2.0),
        ("2026-11-22T10:00:03Z", 0.0),
        ("yesterday", 0.0),
    ],
)
def test_an_event_took_from_when_it_is_told_to_have_happened(
    timestamp: str, seconds: float
) -> None:
    received = datetime(2026, 11, 22, 10, 0, 2, tzinfo=UTC)
    assert lag_seconds(timestamp, received) == seconds


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], part) for part in (0.0, 0.5, 0.95, 1.0)] == [1, 2, 3, 3]


async def test_models_that_cost_little_are_one_figure(db: Database) -> None:
    """Users name models, so there may be any number of them."""
    await db.write(lambda tx: tx.run(ADD_USER))
    ids = [{"id": f"c{number}"} for number in range(102)]
    await db.write(lambda tx: tx.run_many(ADD_CONVERSATION, ids))
    await db.write(
        lambda tx: tx.run(
            "UPDATE conversations"
            " SET llm_model = CASE id WHEN 'c50' THEN 'other' ELSE 'm' || substr(id, 2) END,"
            " metrics = CAST('{\"accumulated_cost\": ' || substr(id, 2) || '}' AS BLOB)"
        )
    )
    costs = (await read_figures(db)).cost_dollars
    assert len(costs) == 100
    assert (costs["m101"], costs["m2"], costs["other"]) == (101, 2, 51)
