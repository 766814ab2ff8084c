"""Who changed what is written down, refused requests included, and nothing secret with it."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import hdrs

from agentsvc.accounts.audit import Entry
from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.app import published_routes
from agentsvc.base.values import now
from agentsvc.http.keys import AUDIT, DATABASE
from agentsvc.http.routes import OF_USERS
from agentsvc.storage.database import Transaction
from tests.conftest import FAST
from tests.description import description_of, example_body, example_path
from tests.http.v0.steps import start_running
from tests.service import Client, Service
from tests.sockets import follow

LOG = "/api/v1/audit-log"
CHANGES = [
    operation
    for operation in description_of(published_routes(FAST)).operations()
    if operation.route.scope in OF_USERS
    and operation.route.method != hdrs.METH_GET
    # Its tools are noted by their own names, see `test_mcp_server`.
    and operation.path != "/mcp"
]


async def entries(admin: Client, **query: Any) -> list[dict[str, Any]]:
    answer = await admin.get(LOG, params=query)
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def me(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/keys/current")).json()
    return found


async def test_a_change_is_noted_with_who_made_it_and_how_it_ended(service: Service) -> None:
    admin = await service.make_client()
    made = await admin.post("/api/v1/users", json={"name": "ann"})
    path = f"/api/v1/users/{made.json()['id']}"
    missed = await admin.patch("/api/v1/users/nobody", json={"role": "viewer"})
    changed = await admin.patch(path, json={"role": "viewer"})
    wrong = await admin.post("/api/v1/users", data=b"{")

    found = await entries(admin)
    about = [(one["action"], one["subject"], one["status"], one["request_id"]) for one in found]
    assert about == [
        ("POST /api/v1/users", "", 415, wrong.headers["X-Request-Id"]),
        (
            "PATCH /api/v1/users/{user_id}",
            f"user_id={made.json()['id']}",
            200,
            changed.headers["X-Request-Id"],
        ),
        (
            "PATCH /api/v1/users/{user_id}",
            "user_id=nobody",
            404,
            missed.headers["X-Request-Id"],
        ),
        ("POST /api/v1/users", f"id={made.json()['id']}", 201, made.headers["X-Request-Id"]),
    ]
    key = await me(admin)
    assert {one["key_id"] for one in found} == {key["id"]}
    assert {one["user_name"] for one in found} == {"admin"}
    assert {one["address"] for one in found} == {"127.0.0.1"}
    [user] = [one for one in (await admin.get("/api/v1/users")).json() if one["name"] == "admin"]
    assert {one["user_id"] for one in found} == {user["id"]}


async def test_every_operation_that_changes_something_is_noted_though_it_is_refused(
    service: Service,
) -> None:
    admin = await service.make_client()
    viewer = await service.make_client("viewer", Role.VIEWER)
    asked = set()
    for operation in CHANGES:
        [options, *_] = example_body(operation, {})
        path = example_path(operation, {})
        await viewer.request(operation.method.upper(), path, **options)
        asked.add(f"{operation.route.method} {operation.route.path}")
    found: list[dict[str, Any]] = []
    page_id = ""
    while True:
        query = {"limit": 20, **({"page_id": page_id} if page_id else {})}
        page = (await admin.get(LOG, params=query)).json()
        found += page["items"]
        if not (page_id := page["next_page_id"]):
            break
    assert len(found) == len(CHANGES) > 60
    assert {one["action"] for one in found} == asked
    assert {one["user_name"] for one in found} == {"viewer"}
    numbers = [one["number"] for one in found]
    assert numbers == sorted(numbers, reverse=True)


async def test_what_is_looked_at_and_who_is_not_known_is_not_noted(service: Service) -> None:
    admin = await service.make_client()
    nobody = service.client_with(None)
    for path in ("/api/keys", "/api/v1/users", LOG, "/alive"):
        await admin.get(path)
    assert (await nobody.post("/api/settings", json={})).status == 401
    assert (await nobody.post("/api/v1/logins", json={"api_key": "x" * 40})).status == 401
    assert await entries(admin) == []


async def test_logins_are_noted_as_those_of_their_key(service: Service) -> None:
    admin = await service.make_client()
    nobody = service.client_with(None)
    login = await nobody.post("/api/v1/logins", json={"api_key": admin.key})
    assert login.status == 201
    waiting = (await nobody.post("/oauth/device/authorize")).json()
    form = {"user_code": waiting["user_code"], "api_key": admin.key}
    assert (await nobody.post("/oauth/device/verify", data=form)).status == 200

    found = await entries(admin)
    assert [(one["action"], one["status"]) for one in found] == [
        ("POST /oauth/device/verify", 200),
        ("POST /api/v1/logins", 201),
    ]
    key = await me(admin)
    assert {one["key_id"] for one in found} == {key["id"]}
    assert found[-1]["subject"] == f"id={login.json()['id']}"


async def test_what_is_said_over_the_event_socket_is_noted(
    client: Client, service: Service
) -> None:
    name = await start_running(client)
    looker = await service.make_client(scope=KeyScope.READ)
    async with follow(client.base_url, looker.key, name) as follower:
        await follower.say("no")
        await follower.until(lambda _: follower.errors)
    async with follow(client.base_url, client.key, name) as follower:
        await follower.say("please work")
        await follower.until_state("finished")
        await follower.wish("nonsense")
        await follower.until(lambda _: follower.errors)
    said = [one for one in await entries(client) if one["action"] == "SOCKET /socket.io"]
    assert [one["status"] for one in said] == [400, 200, 403]
    assert {one["user_name"] for one in said} == {"admin"}
    assert len({one["subject"] for one in said}) == 1
    assert said[0]["subject"].startswith("conversation_id=")


async def test_entries_of_one_user_are_found(service: Service) -> None:
    admin = await service.make_client()
    bob = await service.make_client("bob", Role.MEMBER)
    for client in (admin, bob, admin):
        await client.post("/api/settings", json={"language": "en"})
    users = {one["name"]: one["id"] for one in (await admin.get("/api/v1/users")).json()}
    shown = (await bob.get("/api/v1/users/me")).json()["id"]
    assert shown != users["bob"]
    for user_id in (users["bob"], shown):
        found = await entries(admin, user_id=user_id)
        assert [one["user_name"] for one in found] == ["bob"]
    assert await entries(admin, user_id="nobody") == []
    assert (await admin.get(LOG, params={"page_id": "x"})).status == 422


async def test_no_secret_is_noted(service: Service) -> None:
    admin = await service.make_client()
    hidden = "sk-0123456789abcdef"
    await admin.post("/api/settings", json={"llm_api_key": hidden})
    await admin.post("/api/v1/secrets", json={"name": "TOKEN", "value": hidden})
    made = (await admin.post("/api/keys", json={})).json()
    text = (await admin.get(LOG)).text
    assert len(await entries(admin)) == 3
    assert [one for one in (hidden, made["key"], str(admin.key)) if one in text] == []


async def test_entries_outlive_a_restart_and_are_deleted_when_they_are_old(
    service: Service,
) -> None:
    admin = await service.make_client()
    await admin.post("/api/settings", json={"language": "en"})
    await service.restart()
    [entry] = await entries(admin)
    log = service.app[AUDIT]
    old = Entry(
        at=now() - timedelta(days=2),
        user_id="gone",
        user_name="gone",
        key_id=None,
        action="POST /x",
        subject="",
        status=200,
        address="",
        request_id="",
    )
    await log.note(old)
    assert len(await entries(admin)) == 2
    await log.delete_older_than(timedelta(days=1))
    assert await entries(admin) == [entry]


async def test_a_full_disk_stops_nobody(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    admin = await service.make_client()

    async def refuse_entries(tx: Transaction) -> None:
        await tx.run(
            "CREATE TRIGGER full BEFORE INSERT ON audit_log"
            " BEGIN SELECT RAISE(ROLLBACK, 'full'); END"
        )

    await service.app[DATABASE].write(refuse_entries)
    with caplog.at_level(logging.WARNING):
        assert (await admin.post("/api/settings", json={"language": "en"})).status == 200
    assert "change not written to the audit log" in caplog.text


async def test_entries_are_found_by_words_outcome_and_time_and_everybody_sees_their_own(
    service: Service,
) -> None:
    admin = await service.make_client()
    made = (await admin.post("/api/v1/users", json={"name": "ann"})).json()
    path = f"/api/v1/users/{made['id']}"
    await admin.patch(path, json={"role": "viewer"})
    await admin.patch("/api/v1/users/nobody", json={"role": "viewer"})
    member = await service.make_client("bob", Role.MEMBER)
    await member.post("/api/v1/users", json={"name": "eve"})

    every = await entries(admin)
    assert [one["status"] for one in every] == [403, 404, 200, 201]
    assert await entries(admin, text="PATCH") == every[1:3] == await entries(admin, text="patch")
    assert await entries(admin, text=made["id"]) == every[2:]
    assert await entries(admin, text="%") == []
    assert await entries(admin, is_refused="true") == every[:2]
    assert await entries(admin, is_refused="false", text="USERS") == every[2:]
    assert await entries(admin, at__gte=every[1]["at"]) == every[:2]
    assert await entries(admin, at__lt=every[1]["at"]) == every[2:]
    assert (await admin.get(LOG, params={"at__gte": "soon"})).status == 422

    assert (await member.get(LOG)).status == 403
    mine = "/api/v1/users/me/audit-log"
    assert (await member.get(mine)).json()["items"] == every[:1]
    assert (await member.get(mine, params={"text": "nothing"})).json()["items"] == []
    first = (await admin.get(mine, params={"limit": 2})).json()
    assert first["items"] == every[1:3]
    rest = await admin.get(mine, params={"page_id": first["next_page_id"]})
    assert rest.json()["items"] == every[3:]


async def test_an_address_that_is_no_text_is_not_noted(service: Service) -> None:
    server = msgspec.structs.replace(service.config.server, trusted_proxies=("127.0.0.1",))
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    admin = await service.make_client()
    reader, writer = await asyncio.open_connection(*admin.base_url[7:].split(":"))
    head = f"POST /api/v1/users HTTP/1.1\r\nHost: localhost\r\nX-Session-API-Key: {admin.key}\r\n"
    form = b"Content-Type: application/json\r\nContent-Length: 14\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + b"X-Forwarded-For: \xff\r\n" + form + b'{"name":"ann"}')
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert (await entries(admin))[0]["address"] == "127.0.0.1"
    await admin.post("/api/keys", json={}, headers={"X-Forwarded-For": "198.51.100.7:40001"})
    assert (await entries(admin))[0]["address"] == "198.51.100.7"
