"""Attempts through the socket, on a fake backend with a fake agent."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.accounts.quotas import Quotas
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.values import new_id, now, to_stored
from agentsvc.testing.llm import Playbook, Reply, call, finish
from tests.service import Answer, Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually

BASE = "/api/v1/attempts"
TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
type Json = dict[str, Any]


async def create(client: Client, **more: Any) -> Json:
    answer = await client.post(BASE, json={"message": "Do the work.", "count": 2, **more})
    assert answer.status == 201, answer.text
    made: Json = answer.json()
    return made


async def show(client: Client, made: Json) -> Json:
    found: Json = (await client.get(f"{BASE}/{made['id']}")).json()
    return found


async def wait_until(client: Client, made: Json, is_enough: Callable[[Json], bool]) -> Json:
    found: Json = {}
    try:
        async with asyncio.timeout(client.patience):
            while True:
                found = await show(client, made)
                if is_enough(found):
                    return found
                await asyncio.sleep(0.03)
    except TimeoutError:
        raise AssertionError(f"they stayed like this: {found}") from None


def are(*statuses: str) -> Callable[[Json], bool]:
    return lambda found: [one["status"] for one in found["attempts"]] == list(statuses)


async def told(client: Client, one: Json) -> list[Json]:
    """Return what its agent was told, as soon as that is anything."""
    async with asyncio.timeout(client.patience):
        while True:
            events = await client.events(one["conversation_id"])
            found = [event for event in events if event["kind"] == "MessageEvent"]
            if said := [event for event in found if event["source"] == "user"]:
                return said
            await asyncio.sleep(0.03)


async def titles(client: Client) -> dict[str, str]:
    answer = await client.get("/api/v1/app-conversations/search")
    return {one["id"]: one["title"] for one in answer.json()["items"]}


def rows(service: Service) -> list[Any]:
    with contextlib.closing(sqlite3.connect(service.data_dir / "agentsvc.db")) as db:
        return db.execute("SELECT set_id, number FROM plugin_attempts_attempts").fetchall()


def says(stdout: str, *, code: int = 0) -> CommandResult:
    return CommandResult(exit_code=code, stdout=stdout, stderr="")


@pytest.fixture
def slow(fake_agent: TroubledAgent) -> None:
    """Have agents work until they are stopped."""
    fake_agent.on_command("^slow", says(""), seconds=60)
    fake_agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])


async def test_attempts_are_measured_and_one_is_chosen(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.on_command("write-tree", says(f"{TREE}\n"))
    fake_agent.on_command("shortstat", says(" 3 files changed, 10 insertions(+)\n"))
    fake_agent.on_command("agentsvc-run", says("1\n2 tests failed"))
    await client.save_settings()
    await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "ADD_TO_ANY"})
    made = await create(client, title="Work", models=["openai/other"], test_command="make test")
    assert [one["number"] for one in made["attempts"]] == [1, 2]
    done = await wait_until(client, made, are("finished", "finished"))
    first, second = done["attempts"]
    assert (first["files"], first["additions"], first["deletions"]) == (3, 10, 0)
    assert (first["test_exit_code"], first["test_output"]) == (1, "2 tests failed")
    assert (first["model"], first["duration_seconds"] > 0) == ("openai/other", True)
    assert done["cost"] == pytest.approx(first["cost"] + second["cost"])
    assert done["completed_at"] is not None
    # Each has a sandbox of its own, whatever the settings say, and it is paused when it is over.
    for sandbox_id in fake_world.sandboxes:
        await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert sorted((await titles(client)).values()) == ["Work (1/2)", "Work (2/2)"]
    [listed] = (await client.get(BASE)).json()["items"]
    assert listed["attempts"][0] == {**first, "test_output": None}

    path = f"{BASE}/{made['id']}/choose"
    assert (await client.post(path, json={"attempt": 3})).status == 404
    answer = await client.post(path, json={"attempt": second["conversation_id"]})
    assert (answer.status, answer.json()["chosen"]) == (200, 2), answer.text
    assert are("discarded", "chosen")(answer.json())
    await eventually(lambda: len(fake_world.sandboxes) == 1)
    await client.wait_for_conversation(
        second["conversation_id"], lambda one: bool(one["title"] == "Work")
    )
    assert (await client.post(path, json={"attempt": 2})).status == 200
    assert (await client.post(path, json={"attempt": 1})).status == 409
    assert (await client.delete(f"{BASE}/{made['id']}")).status == 200
    assert (await client.get(f"{BASE}/{made['id']}")).status == 404
    assert len(await titles(client)) == 1


async def test_forks_go_on_where_their_conversation_is(
    client: Client, fake_world: TroubledWorld
) -> None:
    await client.save_settings()
    source = await client.start_conversation()
    await client.wait_for_execution(source, "finished")
    made = await create(client, conversation_id=source, count=3)
    done = await wait_until(client, made, are(*["finished"] * 3))
    # Its workspace is no repository as far as the agent says.
    assert {one["files"] for one in done["attempts"]} == {None}
    for one in done["attempts"]:
        said = [event["id"] for event in await client.events(one["conversation_id"])]
        assert {event["id"] for event in await client.events(source)} <= set(said)
    for field, value, status in (
        ("up_to_event_id", "none-such", 404),
        ("conversation_id", new_id(), 404),
        ("repository", "a/b", 422),
        ("environment_id", new_id(), 422),
    ):
        body = {"message": "a", "count": 2, "conversation_id": source, field: value}
        assert (await client.post(BASE, json=body)).status == status, field
    kept = {"attempt": 1, "keep_others": True}
    chosen = await client.post(f"{BASE}/{made['id']}/choose", json=kept)
    assert are("chosen", "finished", "finished")(chosen.json())
    assert len(await titles(client)) == 4
    await client.delete(f"{BASE}/{made['id']}")
    await eventually(lambda: len(fake_world.sandboxes) == 2)
    assert set(await titles(client)) == {source, done["attempts"][0]["conversation_id"]}


@pytest.mark.usefixtures("slow")
async def test_all_are_stopped_when_the_budget_is_used_up(client: Client) -> None:
    await client.save_settings()
    made = await create(client, count=3, budget=0.0000001)
    done = await wait_until(client, made, are(*["cancelled"] * 3))
    assert done["is_over_budget"]
    assert all("budget" in one["detail"] for one in done["attempts"])
    for one in done["attempts"]:
        await client.wait_for_execution(one["conversation_id"], "paused")


@pytest.mark.usefixtures("slow")
async def test_attempts_outlive_the_server_and_begin_once(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await client.save_settings()
    made = await create(client, count=3)
    await service.restart()
    await wait_until(client, made, are(*["running"] * 3))
    await service.restart()
    busy = await client.post(
        BASE,
        json={
            "message": "a",
            "count": 2,
            "conversation_id": made["attempts"][0]["conversation_id"],
        },
    )
    assert (busy.status, "is running" in busy.text) == (409, True)
    assert len(await titles(client)) == 3
    for one in made["attempts"]:
        assert len(await told(client, one)) == 1
    kept = {"attempt": 2, "keep_others": True}
    await client.post(f"{BASE}/{made['id']}/choose", json=kept)
    stopped = await wait_until(client, made, are("cancelled", "chosen", "cancelled"))
    assert stopped["attempts"][0]["detail"] == "Another attempt was chosen"
    await client.delete(f"{BASE}/{made['id']}")
    await eventually(lambda: len(fake_world.sandboxes) == 1)
    assert list(await titles(client)) == [made["attempts"][1]["conversation_id"]]


async def test_what_makes_no_sense_is_refused_and_others_see_nothing(
    client: Client, service: Service
) -> None:
    await client.save_settings()
    refused: list[Json] = [
        {},
        {"message": " ", "count": 2},
        {"message": "a", "count": 1},
        {"message": "a", "count": 9},
        {"message": "a"},
        {"message": "a", "count": 2, "models": ["a", "b", "c"]},
        {"message": "a", "count": 2, "budget": 0},
        {"message": "a", "count": 2, "branch": "main"},
        {"message": "a", "count": 2, "up_to_event_id": "e"},
        {"message": "a", "count": 2, "repository": "https://a:b@example.com/a/b"},
        {"message": "a", "count": 2, "test_command": ""},
    ]
    for body in refused:
        assert (await client.post(BASE, json=body)).status == 422, body
    unknown = {"message": "a", "count": 2, "environment_id": new_id()}
    assert (await client.post(BASE, json=unknown)).status == 404
    made = await create(client)
    ann = await service.make_client("ann", Role.MEMBER, scope=KeyScope.RUN)
    await ann.save_settings()
    assert (await ann.get(BASE)).json() == {"items": []}
    answers: list[Answer] = [
        await ann.get(f"{BASE}/{made['id']}"),
        await ann.post(f"{BASE}/{made['id']}/choose", json={"attempt": 1}),
        await ann.delete(f"{BASE}/{made['id']}"),
        await ann.post(
            BASE,
            json={
                "message": "a",
                "count": 2,
                "conversation_id": made["attempts"][0]["conversation_id"],
            },
        ),
    ]
    assert [answer.status for answer in answers] == [404] * 4
    assert (await show(client, made))["chosen"] is None


async def test_they_count_as_starts_and_there_are_only_so_many(
    client: Client, service: Service
) -> None:
    await client.save_settings()
    [user] = (await client.get("/api/v1/users")).json()
    quotas = msgspec.to_builtins(Quotas(conversations_per_hour=3))
    assert (await client.put(f"/api/v1/users/{user['id']}/quotas", json=quotas)).status == 200
    many = await client.post(BASE, json={"message": "a", "count": 4})
    assert (many.status, many.json()["code"]) == (429, "quota_exceeded")
    key = {"Idempotency-Key": new_id()}
    body = {"message": "a", "count": 3}
    made = await client.post(BASE, json=body, headers=key)
    again = await client.post(BASE, json=body, headers=key)
    assert (made.status, again.json()["id"]) == (201, made.json()["id"])
    await wait_until(client, made.json(), are(*["finished"] * 3))
    assert (await client.post(BASE, json={"message": "a", "count": 2})).status == 429

    limits: Json = {"most_per_user": 1, "most_attempts": 3}
    service.config = msgspec.structs.replace(service.config, extensions={"attempts": limits})
    await service.restart()
    full = await client.post(BASE, json={"message": "a", "count": 2})
    assert (full.status, "at most 1 " in full.text) == (429, True)
    assert (await client.post(BASE, json={"message": "a", "count": 4})).status == 422


async def test_the_record_is_deleted_when_it_is_old(client: Client, service: Service) -> None:
    await client.save_settings()
    made = await create(client)
    await wait_until(client, made, are("finished", "finished"))
    await service.stop()
    before = to_stored(now() - timedelta(days=91))
    with contextlib.closing(sqlite3.connect(service.data_dir / "agentsvc.db")) as db, db:
        db.execute("UPDATE plugin_attempts_sets SET completed_at = ?", [before])
    assert rows(service)
    await service.start()
    await eventually(lambda: not rows(service))
    assert len(await titles(client)) == 2


async def test_one_that_cannot_start_or_is_deleted_says_so(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await client.save_settings()
    fake_agent.playbook = Playbook([Reply(status=400)])
    bad = await wait_until(client, await create(client), are("failed", "failed"))
    assert bad["attempts"][0]["detail"] == "The agent has failed"
    fake_agent.on_command("^slow", says(""), seconds=60)
    fake_agent.playbook = Playbook([call("terminal", command="slow"), finish("done")])
    made = await create(client)
    await wait_until(client, made, are("running", "running"))
    gone = made["attempts"][0]["conversation_id"]
    await client.delete(f"/api/v1/app-conversations/{gone}")
    left = await wait_until(client, made, are("cancelled", "running"))
    assert left["attempts"][0]["detail"] == "Its conversation was deleted"
    refused = await client.post(f"{BASE}/{made['id']}/choose", json={"attempt": 1})
    assert refused.status == 409
