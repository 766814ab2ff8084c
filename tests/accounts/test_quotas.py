"""What users may use at most: counted, said with the time to come back, and never exceeded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentsvc.accounts import quotas
from agentsvc.accounts.keys import Role
from agentsvc.accounts.quotas import Quotas, QuotaStore
from agentsvc.accounts.users import Users
from agentsvc.base.errors import QuotaExceeded
from agentsvc.base.values import now, to_stored
from agentsvc.storage.database import Database
from agentsvc.storage.records import row_of
from agentsvc.testing.llm import Playbook, Reply, ToolCall, call
from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service
from tests.sockets import follow

STARTS = "/api/v1/app-conversations"
SANDBOXES = "/api/v1/sandboxes"
DAY_SECONDS = 24 * 3600
SLOW = Reply(
    calls=(ToolCall(tool="terminal", arguments={"command": "sleep 60"}),), delay_seconds=60
)
COSTLY = [call("terminal", command=f"echo {number}") for number in range(20)]


@pytest.fixture
async def ann(db: Database) -> str:
    return (await Users(db).create("ann", Role.MEMBER)).id


async def limit(client: Client, service: Service, **limits: Any) -> Client:
    """Return a client that has settings and may use so much at most."""
    bob = await service.make_client("bob", Role.MEMBER)
    await bob.save_settings()
    [user] = [one for one in (await client.get("/api/v1/users")).json() if one["name"] == "bob"]
    answer = await client.put(f"/api/v1/users/{user['id']}/quotas", json=limits)
    assert answer.status == 200, answer.text
    assert answer.json()["quotas"] == {**dict.fromkeys(Quotas.__struct_fields__), **limits}
    return bob


async def usage(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/v1/users/me/usage")).json()
    return found


def check_refused(answer: Answer, words: str, *, at_most_seconds: int) -> None:
    assert answer.status == 429, answer.text
    assert answer.json()["code"] == "quota_exceeded"
    assert words in answer.json()["detail"]
    assert 0 < int(answer.headers["Retry-After"]) <= at_most_seconds


async def test_nothing_is_limited_by_itself(client: Client) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    found = await usage(client)
    assert found["quotas"] == dict.fromkeys(Quotas.__struct_fields__)
    assert (found["running_sandboxes"], found["conversations_last_hour"]) == (1, 1)
    assert found["spent_today"] == found["spent_this_month"] > 0


async def test_so_many_conversations_are_started_an_hour_and_no_more(
    client: Client, service: Service
) -> None:
    bob = await limit(client, service, conversations_per_hour=2)
    first = await bob.start_conversation(None)
    assert (await bob.delete(f"{STARTS}/{first}")).status == 200
    assert (await bob.post("/api/conversations", json={})).status == 200
    words = "You may start 2 conversations an hour, and have started 2"
    check_refused(await bob.post(STARTS, json={}), words, at_most_seconds=3601)
    check_refused(await bob.post("/api/conversations", json={}), words, at_most_seconds=3601)
    stream = await bob.post(f"{STARTS}/stream-start", json={})
    assert words in stream.text
    assert (await bob.get(f"{STARTS}/start-tasks/count")).json() == 1
    assert (await client.post(STARTS, json={})).status == 200


async def test_a_start_that_is_asked_for_twice_counts_once(
    client: Client, service: Service
) -> None:
    bob = await limit(client, service, conversations_per_hour=1)
    body = {"conversation_id": "7c9e6679742540de944be07fc1f90ae7"}
    for _ in range(2):
        assert (await bob.post(STARTS, json=body)).status == 200
    assert (await usage(bob))["conversations_last_hour"] == 1


async def test_so_many_sandboxes_run_and_no_more(client: Client, service: Service) -> None:
    bob = await limit(client, service, running_sandboxes=1)
    first = (await bob.post(SANDBOXES)).json()["id"]
    words = "You may have 1 sandboxes running, and have 1"
    for path in (SANDBOXES, f"{SANDBOXES}?when_full=queue", STARTS):
        check_refused(await bob.post(path, json={}), words, at_most_seconds=60)
    assert (await usage(bob))["conversations_last_hour"] == 0
    await bob.wait_for_sandbox(first, "RUNNING")
    assert (await bob.post(f"{SANDBOXES}/{first}/pause")).status == 200
    second = (await bob.post(SANDBOXES)).json()["id"]
    resume = f"{SANDBOXES}/{first}/resume"
    check_refused(await bob.post(resume), words, at_most_seconds=60)
    await bob.wait_for_sandbox(second, "RUNNING")
    await bob.delete(f"{SANDBOXES}/{second}")
    assert (await bob.post(resume)).status == 200
    assert (await client.post(SANDBOXES)).status == 200


async def test_who_has_spent_enough_starts_and_says_nothing_more(
    client: Client, service: Service
) -> None:
    bob = await limit(client, service)
    name = await bob.start_conversation()
    await bob.wait_for_execution(name, "finished")
    await limit(client, service, spend_per_day=0.0001)
    words = "You may spend 0.00 US dollars a day, and have spent"
    message = {"role": "user", "content": [{"type": "text", "text": "go on"}]}
    told = {"message": "go on"}
    for path, body in (
        (STARTS, {}),
        ("/api/conversations", {}),
        (f"{STARTS}/{name}/send-message", message),
        (f"/api/v1/conversations/{name}/pending-messages", message),
        (f"/api/conversations/{name}/message", told),
    ):
        answer = await bob.post(path, json=body)
        check_refused(answer, words, at_most_seconds=DAY_SECONDS + 1)
    async with follow(bob.base_url, bob.key, name) as follower:
        await follower.say("go on")
        await follower.until(lambda _: follower.errors)
        assert words in follower.errors[0]
    assert "go on" not in str(await bob.events(name))
    await limit(client, service, spend_per_month=100.0)
    assert (await bob.post(f"{STARTS}/{name}/send-message", json=message)).status == 200


async def test_a_run_that_spends_the_last_of_it_is_interrupted_and_says_so(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    bob = await limit(client, service, spend_per_month=0.03)
    fake_agent.playbook = Playbook([*COSTLY, SLOW])
    name = await bob.start_conversation()
    await bob.wait_for_execution(name, "paused")
    stops = [one for one in await bob.events(name) if one.get("code") == "QuotaReached"]
    assert len(stops) >= 1
    assert "You may spend 0.03 US dollars a month" in stops[0]["detail"]
    assert (await usage(bob))["spent_this_month"] >= 0.03
    await bob.delete(f"{STARTS}/{name}")
    assert (await usage(bob))["spent_this_month"] >= 0.03


NO_LIMITS: list[dict[str, Any]] = [
    {"running_sandboxes": -1},
    {"running_sandboxes": 1.5},
    {"conversations_per_hour": "2"},
    {"spend_per_day": -0.01},
    {"spend_per_month": 1e300},
    {"conversations_per_hour": 2**63},
]


async def test_limits_are_numbers_that_make_sense(client: Client) -> None:
    [admin] = (await client.get("/api/v1/users")).json()
    path = f"/api/v1/users/{admin['id']}"
    for limits in NO_LIMITS:
        assert (await client.put(f"{path}/quotas", json=limits)).status == 422, limits
    found = (await client.get(f"{path}/usage")).json()
    assert found["quotas"] == dict.fromkeys(Quotas.__struct_fields__)


async def test_an_unknown_user_has_no_limits(client: Client) -> None:
    path = "/api/v1/users/7c9e6679742540de944be07fc1f90ae7"
    assert (await client.put(f"{path}/quotas", json={})).status == 404
    assert (await client.get(f"{path}/usage")).status == 404


async def spend(db: Database, user_id: str, moment: datetime, dollars: float) -> None:
    day = f"{moment:%Y-%m-%d}"
    row = row_of(quotas.NONE, user_id=user_id, day=day, dollars=dollars)
    await db.write(lambda tx: tx.insert("spending", row))


async def test_what_was_spent_before_today_counts_for_the_month_only(
    db: Database, ann: str
) -> None:
    first = now().replace(day=1)
    await spend(db, ann, first - timedelta(days=1), 100)
    await spend(db, ann, first, 1)
    assert await db.write(lambda tx: quotas.note_spend(tx, ann, 0.5)) == ""
    used = await QuotaStore(db).used(ann)
    assert used.spent_this_month == 1.5
    assert used.spent_today in (0.5, 1.5)  # the month begins today

    await QuotaStore(db).set(ann, Quotas(spend_per_month=1.5))
    with pytest.raises(QuotaExceeded, match=r"1\.50 US dollars a month, .* spent 1\.50") as caught:
        await quotas.check_spend(db, ann)
    assert 0 < caught.value.retry_after_seconds <= 31 * DAY_SECONDS + 1
    said = await db.write(lambda tx: quotas.note_spend(tx, ann, 0.5))
    assert said == "You may spend 1.50 US dollars a month, and have spent 2.00"


async def test_what_was_used_is_told_by_day_and_model(client: Client, db: Database) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    seen = await client.conversation(conversation_id)
    [used] = (await client.get("/api/v1/users/me/usage/days")).json()
    tokens = seen["metrics"]["accumulated_token_usage"]
    assert (used["day"], used["model"]) == (f"{now():%Y-%m-%d}", seen["llm_model"])
    assert used["prompt_tokens"] == tokens["prompt_tokens"] > 0
    assert used["completion_tokens"] == tokens["completion_tokens"] > 0
    assert used["dollars"] == pytest.approx(seen["metrics"]["accumulated_cost"])
    assert (await client.get("/api/v1/usage/days?days=1")).json() == [used]
    assert (await client.get("/api/v1/usage/days?days=0")).status == 422


async def start(db: Database, user_id: str, moment: datetime) -> None:
    row = {"user_id": user_id, "started_at": to_stored(moment)}
    await db.write(lambda tx: tx.insert("conversation_starts", row))


async def test_a_start_counts_for_an_hour(db: Database, ann: str) -> None:
    await QuotaStore(db).set(ann, Quotas(conversations_per_hour=2))
    for minutes in (61, 59, 30):
        await start(db, ann, now() - timedelta(minutes=minutes))
    with pytest.raises(QuotaExceeded) as caught:
        await db.write(lambda tx: quotas.note_start(tx, ann))
    assert 0 < caught.value.retry_after_seconds <= 61
    await QuotaStore(db).set(ann, Quotas(conversations_per_hour=3))
    await db.write(lambda tx: quotas.note_start(tx, ann))
    assert (await QuotaStore(db).used(ann)).conversations_last_hour == 3


async def test_what_was_started_while_the_clock_was_ahead_keeps_nothing_from_starting(
    db: Database, ann: str
) -> None:
    await QuotaStore(db).set(ann, Quotas(conversations_per_hour=1))
    await start(db, ann, now() + timedelta(days=400))
    assert (await QuotaStore(db).used(ann)).conversations_last_hour == 0
    await db.write(lambda tx: quotas.note_start(tx, ann))
    with pytest.raises(QuotaExceeded) as caught:
        await db.write(lambda tx: quotas.note_start(tx, ann))
    assert 0 < caught.value.retry_after_seconds <= 3601


async def test_a_limit_of_none_at_all_lets_nothing_start(db: Database, ann: str) -> None:
    await QuotaStore(db).set(ann, Quotas(conversations_per_hour=0, running_sandboxes=0))
    with pytest.raises(QuotaExceeded, match="0 conversations an hour, and have started 0"):
        await db.write(lambda tx: quotas.note_start(tx, ann))
    with pytest.raises(QuotaExceeded, match="0 sandboxes running, and have 0"):
        quotas.check_running(await quotas.find_running(db, ann), 0)


@pytest.mark.parametrize(
    ("day", "month"), [("2026-01-31", "2026-02-01"), ("2026-12-05", "2027-01-01")]
)
def test_a_month_ends_with_the_next_one(day: str, month: str) -> None:
    moment = datetime.fromisoformat(f"{day}T23:59:59").replace(tzinfo=UTC)
    assert quotas.next_month(moment) == datetime.fromisoformat(month).replace(tzinfo=UTC)
