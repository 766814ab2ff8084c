"""Administrators delete users: what a user owns is in the way, or goes first, and nothing is left over."""

import asyncio
from typing import Any

import msgspec

from agentsvc.accounts.keys import Role
from agentsvc.http.keys import DATABASE
from agentsvc.testing.backend import FakeWorld
from tests.service import WAIT_SECONDS, Client, Service

USERS = "/api/v1/users"
UNKNOWN = "0" * 32


async def rows_of(service: Service, user_id: str) -> dict[str, int]:
    """Return in which tables there is something of a user, whatever tables there are."""
    database = service.app[DATABASE]
    tables = await database.all("SELECT name FROM sqlite_schema WHERE type = 'table'")
    found = {}
    for table in (row["name"] for row in tables):
        columns = {row["name"] for row in await database.all(f"PRAGMA table_info({table})")}
        key = "id" if table == "users" else "user_id"
        if key in columns and table != "audit_log":
            sql = f"SELECT COUNT(*) AS n FROM {table} WHERE {key} = :id"  # noqa: S608  # names of the schema
            row: Any = await database.one(sql, {"id": user_id})
            found[table] = row["n"]
    return {table: count for table, count in found.items() if count}


async def until_gone(boss: Client, user_id: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if (await boss.get(f"{USERS}/{user_id}")).status == 404:
                return
            await asyncio.sleep(0.05)


async def make_user(boss: Client, service: Service, name: str) -> tuple[str, Client]:
    """Return the id of a new user, and a client of the user."""
    made = await boss.post(USERS, json={"name": name})
    user_id: str = made.json()["id"]
    key = (await boss.post(f"{USERS}/{user_id}/keys", json={})).json()["key"]
    holder = service.client_with(key)
    await holder.save_settings()
    return user_id, holder


async def test_who_owns_nothing_is_deleted_at_once_with_keys_and_settings(service: Service) -> None:
    boss = await service.make_client()
    user_id, holder = await make_user(boss, service, "ann")
    await holder.post("/api/v1/logins", json={"api_key": holder.key})
    order = {"url": "https://receiver.invalid/hook", "changes": ["conversation"]}
    await holder.post("/api/v1/webhook-subscriptions", json=order)
    automation = {"name": "any", "prompt": "any", "trigger": {"type": "manual"}}
    await holder.post("/api/automation/v1", json=automation)
    await boss.put(f"{USERS}/{user_id}/quotas", json={"running_sandboxes": 5})
    assert set(await rows_of(service, user_id)) >= {"users", "api_keys", "settings", "quotas"}

    deleted = await boss.delete(f"{USERS}/{user_id}")
    nothing = {"conversations": 0, "sandboxes": 0, "archives": 0}
    assert deleted.json() == {"id": user_id, "name": "ann", "is_over": True, "owned": nothing}
    assert await rows_of(service, user_id) == {}
    assert (await holder.get("/api/keys")).status == 401
    assert (await boss.delete(f"{USERS}/{user_id}")).status == 404
    # The name is free again, and what is called so knows nothing of who was.
    _, again = await make_user(boss, service, "ann")
    assert (await again.get("/api/v1/webhook-subscriptions")).json() == []
    # What was done stays known, by the name that there was.
    done = (await boss.get(f"/api/v1/audit-log?user_id={user_id}")).json()["items"]
    assert {entry["user_name"] for entry in done} == {"ann"}


async def test_what_a_user_owns_is_in_the_way_or_goes_first(
    service: Service, fake_world: FakeWorld
) -> None:
    archives = msgspec.structs.replace(service.config.archives, on_delete=True)
    service.config = msgspec.structs.replace(service.config, archives=archives)
    await service.restart()
    boss = await service.make_client()
    user_id, holder = await make_user(boss, service, "ann")
    conversation_id = await holder.start_conversation()
    await holder.start_conversation(parent_conversation_id=conversation_id)
    alone = (await holder.post("/api/v1/sandboxes")).json()["id"]
    await holder.wait_for_sandbox(alone, "RUNNING")
    path = f"{USERS}/{user_id}"

    refused = await boss.delete(path)
    assert refused.status == 409
    assert "`ann` owns 2 conversations and 2 sandboxes" in refused.json()["detail"]
    assert (await boss.get(path)).json()["blocked_at"] is None
    assert len(fake_world.sandboxes) == 2

    fake_world.unreachable = True
    taken = (await boss.delete(path, params={"with_owned": "true"})).json()
    assert (taken["is_over"], taken["owned"]["sandboxes"]) == (False, 2)
    assert (await holder.get("/api/keys")).status == 401
    leaving = (await boss.get(path)).json()
    assert leaving["leaving_at"] is not None
    assert (await boss.patch(path, json={"is_blocked": False})).status == 409
    assert (await boss.delete(path)).json()["is_over"] is False
    await service.restart()
    assert (await boss.get(path)).json() == leaving
    fake_world.unreachable = False
    await until_gone(boss, user_id)
    assert fake_world.sandboxes == {}
    assert await rows_of(service, user_id) == {}


async def test_who_is_being_started_something_for_leaves_nothing_behind(
    service: Service, fake_world: FakeWorld
) -> None:
    boss = await service.make_client()
    user_id, holder = await make_user(boss, service, "ann")
    fake_world.slow = 0.2
    await holder.start_task()
    await boss.delete(f"{USERS}/{user_id}", params={"with_owned": "true"})
    await until_gone(boss, user_id)
    assert fake_world.sandboxes == {}
    assert await rows_of(service, user_id) == {}


async def test_a_user_who_cannot_be_removed_holds_up_no_other(
    service: Service, fake_world: FakeWorld
) -> None:
    boss = await service.make_client()
    users = [await make_user(boss, service, name) for name in ("ann", "bob")]
    for _, holder in users:
        await holder.start_conversation()
    (stuck, _), (user_id, _) = users
    sql = "UPDATE conversations SET metrics = :metrics WHERE user_id = :id"
    broken = {"id": stuck, "metrics": b"[]"}
    await service.app[DATABASE].write(lambda tx: tx.run(sql, broken))
    for one in (stuck, user_id):
        await boss.delete(f"{USERS}/{one}", params={"with_owned": "true"})
    await until_gone(boss, user_id)
    assert (await boss.get(f"{USERS}/{stuck}")).status == 200


async def test_what_a_user_asks_for_who_is_deleted_meanwhile_is_nobodys(service: Service) -> None:
    boss = await service.make_client()
    user_id, holder = await make_user(boss, service, "ann")
    automation = {"name": "any", "prompt": "any", "trigger": {"type": "manual"}}
    deleted, quotas, *answers = await asyncio.gather(
        boss.delete(f"{USERS}/{user_id}"),
        boss.put(f"{USERS}/{user_id}/quotas", json={"running_sandboxes": 5}),
        holder.post("/api/v1/logins", json={"api_key": holder.key}),
        holder.post("/api/settings", json={"language": "en"}),
        holder.post("/api/v1/secrets", json={"name": "ANY", "value": "any"}),
        holder.post("/api/automation/v1", json=automation),
        holder.post("/api/keys", json={}),
    )
    assert (deleted.status, quotas.status) == (200, 404)
    # What came first was done, and is gone with the user.
    assert {answer.status for answer in answers} <= {200, 201, 401}
    assert await rows_of(service, user_id) == {}


async def test_only_an_administrator_deletes_and_never_the_last_one(service: Service) -> None:
    boss = await service.make_client()
    [me] = (await boss.get(USERS)).json()
    kept = await boss.delete(f"{USERS}/{me['id']}")
    assert (kept.status, "only administrator" in kept.json()["detail"]) == (409, True)
    assert (await boss.delete(f"{USERS}/{UNKNOWN}")).status == 404
    member = await service.make_client("bob", Role.MEMBER)
    assert (await member.delete(f"{USERS}/{me['id']}")).status == 403
    wrong = await boss.delete(f"{USERS}/{me['id']}", params={"with_owned": "perhaps"})
    assert wrong.status == 422
